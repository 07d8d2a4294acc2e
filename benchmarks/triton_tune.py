"""Measure tiles for the Triton backends on this machine's GPU, and write the best ones into their table.

    python benchmarks/triton_tune.py [--write] [--head-sizes 64,128,256] [--rounds 20]

For each phase, dtype and width of a head, every tile of a small grid that compiles is timed on one shape: a decode of
64 sequences of 4096 tokens, a prefill of one of 4096. Without --write the winners are only printed. With it, the rows
of this architecture go before all others in `tiles.json`, each with the measurement as its reason. Ends with status 2
where there is no GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.cuda import Event

import hardpoint_triton._tiles as tiles
from hardpoint.attention import AttentionBatch, AttentionConfig
from hardpoint.errors import EnvironmentFailure
from hardpoint_triton._failures import as_environment_failures
from hardpoint_triton._hardware import hardware_of
from hardpoint_triton._plan import TritonPlan, shape_of
from hardpoint_triton.backend import TritonAttentionBackend, TritonMlaBackend

NO_DEVICE = 2
TABLE = Path(tiles.__file__).with_name("tiles.json")
GRID: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    # block_m, block_n, num_warps, num_stages
    tiles.DECODE: ((16,), (16, 32, 64, 128), (2, 4, 8), (1, 2, 3, 4)),
    tiles.PREFILL: ((16, 32, 64, 128), (32, 64, 128), (4, 8), (1, 2, 3)),
}


def configs(head_sizes: list[int]) -> list[AttentionConfig]:
    found = [
        AttentionConfig(head_size=size, num_heads=32, num_kv_heads=8, dtype=dtype, block_size=16)
        for size, dtype in itertools.product(head_sizes, ("float16", "float32"))
    ]
    latent = AttentionConfig(
        kind="mla_attention", head_size=576, num_heads=128, kv_lora_rank=512, qk_rope_head_dim=64, dtype="float16",
        block_size=64,
    )  # fmt: skip
    return [*found, latent]


def event() -> Event:
    return Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own


def measure(config: AttentionConfig, phase: str, tile: tiles.Tile, rounds: int) -> float | None:
    """Median milliseconds; None where the tile does not compile or does not fit the device."""
    backend = TritonMlaBackend if config.kind == "mla_attention" else TritonAttentionBackend
    length, num_seqs = 4096, 64 if phase == tiles.DECODE else 1
    query_len = 1 if phase == tiles.DECODE else length
    assert config.block_size is not None
    blocks = length // config.block_size
    table = torch.randperm(num_seqs * blocks, dtype=torch.int32).view(num_seqs, blocks)
    batch = AttentionBatch.build(
        query_lens=[query_len] * num_seqs, seq_lens=[length] * num_seqs, block_table=table, device="cuda"
    )
    plan = TritonPlan(config, batch)
    block_m = max(tile.block_m, plan.segments[0].shape.block_m) if phase == tiles.DECODE else tile.block_m
    row_heads = min(config.group_size, block_m)
    shape = replace(
        plan.segments[0].shape,
        tile=tile,
        block_m=block_m,
        row_heads=row_heads,
        tokens=block_m // row_heads,
        head_blocks=-(-config.group_size // row_heads),
    )
    work = plan.segments[0].work
    if phase == tiles.PREFILL:
        first = torch.arange(0, query_len, shape.tokens, dtype=torch.int32, device="cuda").flip(0)
        work = torch.stack([torch.zeros_like(first), first], dim=1)
    plan.segments = [replace(plan.segments[0], shape=shape, work=work)]
    cache = backend.kv_cache_spec(config).allocate(num_seqs * blocks, device="cuda")
    query = torch.randn(query_len * num_seqs, config.num_heads, config.head_size, device="cuda").to(cache[0].dtype)
    layer = backend.create_layer(config, scale=config.head_size**-0.5, device="cuda")
    out = query.new_empty(len(query), config.num_heads, config.v_head_size)

    def run() -> None:
        layer.forward(query, None, None, cache, plan, out=out)

    try:
        with as_environment_failures("run a tile"):
            for _ in range(3):
                run()
            torch.cuda.synchronize()
    except EnvironmentFailure:
        return None
    times: list[float] = []
    for _ in range(rounds):
        start, end = event(), event()
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def best(config: AttentionConfig, phase: str, arch: str, rounds: int) -> dict[str, Any] | None:
    hardware = hardware_of(torch.device("cuda", torch.cuda.current_device()))
    shape = shape_of(config, hardware, phase)
    present = measure(config, phase, shape.tile, rounds)
    found: list[tuple[float, tiles.Tile]] = []
    for values in itertools.product(*GRID[phase]):
        tile = tiles.Tile(*values)
        if (taken := measure(config, phase, tile, rounds)) is not None:
            found.append((taken, tile))
    if not found:
        return None
    taken, tile = min(found, key=lambda item: item[0])
    before = "none" if present is None else f"{present:.3f} ms"
    name = torch.cuda.get_device_name()
    print(f"{phase} {config.dtype} {config.head_size}: {tile} {taken:.3f} ms (the table's: {before})", flush=True)
    return {
        "architectures": [arch],
        "phase": phase,
        "dtype_bytes": [4 if config.dtype == "float32" else 2],
        "max_width": max(shape.key.width, shape.value.width),
        "block_m": shape.tile.block_m if phase == tiles.DECODE else tile.block_m,
        "block_n": tile.block_n,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
        "reason": f"measured on {name}: {taken:.3f} ms, and {before} with the row that it replaces",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--head-sizes", default="64,128,256")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("there is no GPU here that torch can use: nothing is measured, the table stays as it is")
        return NO_DEVICE
    torch.manual_seed(0)
    arch = hardware_of(torch.device("cuda", torch.cuda.current_device())).arch
    rows = []
    for config in configs([int(size) for size in options.head_sizes.split(",")]):
        rows += [row for phase in GRID if (row := best(config, phase, arch, options.rounds)) is not None]
    if options.write and rows:
        # The first row that is wide enough is taken, so narrow ones go first; those measured earlier here are replaced.
        rows.sort(key=lambda row: row["max_width"])
        old = [row for row in tiles.rows() if row["architectures"] != [arch] or "measured" not in row["reason"]]
        lines = ",\n".join("    " + json.dumps(row) for row in [*rows, *old])
        TABLE.write_text('{\n  "rows": [\n' + lines + "\n  ]\n}\n", encoding="utf-8")
        print(f"wrote {len(rows)} rows for {arch} to {TABLE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
