"""Measure tiles for the Triton backends on this machine's GPU, and write the best ones into their table.

    python benchmarks/triton_tune.py [--write] [--sizes 64,128,256,latent] [--rounds 20] [--table FILE]

For each phase, dtype and width of a head, every tile of a small grid that compiles is timed on one shape: a decode of
64 sequences of 4096 tokens, a prefill of one of 4096. Without --write the winners are only printed. With it, the rows
of this architecture go before all others in `tiles.json`, each with the measurement as its reason; those of an earlier
run for the same phase, dtype and width are replaced. Ends with status 2 where there is no GPU.

With TRITON_INTERPRET=1 (and --tokens 64 --sequences 1) it runs on the CPU, which shows that it works and nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import hardpoint_triton._tiles as tiles
from hardpoint.attention import AttentionBatch, AttentionConfig
from hardpoint.errors import EnvironmentFailure
from hardpoint_triton._failures import as_environment_failures
from hardpoint_triton._hardware import hardware_of
from hardpoint_triton._kernel import interpreting
from hardpoint_triton._plan import TritonPlan, shape_of
from hardpoint_triton.backend import TritonAttentionBackend, TritonMlaBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NO_DEVICE = 2
TABLE = Path(tiles.__file__).with_name("tiles.json")
GRID: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    # block_m, block_n, num_warps, num_stages
    tiles.DECODE: ((16,), (16, 32, 64, 128), (2, 4, 8), (1, 2, 3, 4)),
    tiles.PREFILL: ((16, 32, 64, 128), (32, 64, 128), (4, 8), (1, 2, 3)),
}
WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Place:
    """Where is measured, and on how much."""

    device: torch.device
    rounds: int
    tokens: int
    sequences: int

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name() if self.device.type == "cuda" else "the interpreter"

    def milliseconds(self, run: Callable[[], None]) -> float:
        if self.device.type != "cuda":
            started = time.perf_counter()
            run()
            return (time.perf_counter() - started) * 1e3
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's own
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))


def configs(sizes: Sequence[str]) -> list[AttentionConfig]:
    found = [
        AttentionConfig(head_size=int(size), num_heads=32, num_kv_heads=8, dtype=dtype, block_size=16)
        for size, dtype in itertools.product(sizes, ("float16", "float32"))
        if size != "latent"
    ]
    if "latent" in sizes:
        latent = AttentionConfig(
            kind="mla_attention", head_size=576, num_heads=128, kv_lora_rank=512, qk_rope_head_dim=64,
            dtype="float16", block_size=64,
        )  # fmt: skip
        found.append(latent)
    return found


def measure(config: AttentionConfig, phase: str, tile: tiles.Tile, place: Place) -> float | None:
    """Median milliseconds; None where the tile does not compile or does not fit the device."""
    backend = TritonMlaBackend if config.kind == "mla_attention" else TritonAttentionBackend
    length, num_seqs = place.tokens, place.sequences if phase == tiles.DECODE else 1
    query_len = 1 if phase == tiles.DECODE else length
    assert config.block_size is not None
    blocks = -(-length // config.block_size)
    table = torch.randperm(num_seqs * blocks, dtype=torch.int32).view(num_seqs, blocks)
    batch = AttentionBatch.build(
        query_lens=[query_len] * num_seqs, seq_lens=[length] * num_seqs, block_table=table, device=place.device
    )
    plan = TritonPlan(config, batch)
    block_m = max(tile.block_m, plan.decode.block_m) if phase == tiles.DECODE else tile.block_m
    row_heads = min(config.group_size, block_m)
    shape = replace(
        plan.decode if phase == tiles.DECODE else plan.prefill,
        tile=tile,
        block_m=block_m,
        row_heads=row_heads,
        tokens=block_m // row_heads,
        head_blocks=-(-config.group_size // row_heads),
    )
    work = plan.segments[0].work
    if phase == tiles.PREFILL:
        first = torch.arange(0, query_len, shape.tokens, dtype=torch.int32, device=place.device).flip(0)
        work = torch.stack([torch.zeros_like(first), first], dim=1)
    plan.segments = [replace(plan.segments[0], shape=shape, work=work)]
    cache = backend.kv_cache_spec(config).allocate(num_seqs * blocks, device=place.device)
    query = torch.randn(query_len * num_seqs, config.num_heads, config.head_size, device=place.device)
    query = query.to(cache[0].dtype)
    layer = backend.create_layer(config, scale=config.head_size**-0.5, device=place.device)
    out = query.new_empty(len(query), config.num_heads, config.v_head_size)

    def run() -> None:
        layer.forward(query, None, None, cache, plan, out=out)

    try:
        with as_environment_failures("run a tile"):
            for _ in range(WARM_UP):
                run()
            if place.device.type == "cuda":
                torch.cuda.synchronize()
    except EnvironmentFailure:
        return None
    return statistics.median(place.milliseconds(run) for _ in range(place.rounds))


def best(config: AttentionConfig, phase: str, place: Place) -> dict[str, Any] | None:
    hardware = hardware_of(place.device)
    shape = shape_of(config, hardware, phase)
    present = measure(config, phase, shape.tile, place)
    found: list[tuple[float, tiles.Tile]] = []
    for values in itertools.product(*GRID[phase]):
        tile = tiles.Tile(*values)
        if (taken := measure(config, phase, tile, place)) is not None:
            found.append((taken, tile))
    if not found:
        return None
    taken, tile = min(found, key=lambda item: item[0])
    before = "none" if present is None else f"{present:.3f} ms"
    print(f"{phase} {config.dtype} {config.head_size}: {tile} {taken:.3f} ms (the table's: {before})", flush=True)
    return {
        "architectures": [hardware.arch],
        "phase": phase,
        "dtype_bytes": [4 if config.dtype == "float32" else 2],
        # Narrower heads were not measured.
        "min_width": max(shape.key.width, shape.value.width) // 2 + 1,
        "max_width": max(shape.key.width, shape.value.width),
        "block_m": shape.tile.block_m if phase == tiles.DECODE else tile.block_m,
        "block_n": tile.block_n,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
        "reason": f"measured on {place.name}: {taken:.3f} ms, and {before} with the row that it replaces",
    }


def write(rows: list[dict[str, Any]], table: Path) -> None:
    """Put the measured rows before the others. The first that is wide enough is taken, so narrow ones go first."""

    def case(row: dict[str, Any]) -> tuple[object, ...]:
        return row["architectures"], row["phase"], row["dtype_bytes"], row["max_width"]

    def is_measured(row: dict[str, Any]) -> bool:
        return str(row["reason"]).startswith("measured on ")

    new = [case(row) for row in rows]
    old = json.loads(table.read_text(encoding="utf-8"))["rows"]
    kept = [row for row in old if not (is_measured(row) and case(row) in new)]
    measured = sorted([*rows, *filter(is_measured, kept)], key=lambda row: row["max_width"])
    lines = ",\n".join("    " + json.dumps(row) for row in [*measured, *(row for row in kept if not is_measured(row))])
    table.write_text('{\n  "rows": [\n' + lines + "\n  ]\n}\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--sizes", default="64,128,256,latent", help="of a head; latent: that form")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=4096, help="of a sequence")
    parser.add_argument("--sequences", type=int, default=64, help="of a decode")
    parser.add_argument("--table", type=Path, default=TABLE, help="written with --write; read is always the package's")
    options = parser.parse_args(arguments)
    sizes = options.sizes.split(",")
    if wrong := [size for size in sizes if size != "latent" and not (size.isdecimal() and 1 <= int(size) <= 256)]:
        parser.error(f"--sizes {','.join(wrong)}: a head has 1 to 256 elements; or say latent")
    if min(options.rounds, options.tokens, options.sequences) < 1:
        parser.error("--rounds, --tokens and --sequences are at least 1")
    if not interpreting() and not torch.cuda.is_available():
        print("there is no GPU here that torch can use: nothing is measured, the table stays as it is")
        return NO_DEVICE
    device = torch.device("cpu") if interpreting() else torch.device("cuda", torch.cuda.current_device())
    place = Place(device, options.rounds, options.tokens, options.sequences)
    torch.manual_seed(0)
    found = (best(config, phase, place) for config, phase in itertools.product(configs(sizes), GRID))
    rows = [row for row in found if row is not None]
    if options.write and rows:
        write(rows, options.table)
        print(f"wrote {len(rows)} rows to {options.table}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
