"""Attention on the device against Hardpoint's float64 reference, as one process: JSON of the largest differences."""

from __future__ import annotations

import json
import random
import sys
from typing import TYPE_CHECKING

import torch

import hardpoint
from hardpoint.attention import AttentionBatch, AttentionConfig, reference_attention, write_kv_cache

if TYPE_CHECKING:
    from hardpoint.attention import AttentionBackend

platform = hardpoint.current_platform()
STEPS: tuple[list[tuple[int, int]], ...] = (
    [(1, 1)],
    [(17, 1), (3, 3), (40, 9)],
    [(16, 1), (33, 1), (8, 1)],
    [(5, 5), (0, 0), (9, 2)],
    [(64, 64), (30, 0)],
)
"""Sequences of so many keys, so many of them new."""


def difference(
    backend: type[AttentionBackend], config: AttentionConfig, step: list[tuple[int, int]], *, seed: int, index: int
) -> float:
    """The largest difference from the reference, of results, lse and cache; also with padding, and without new keys."""
    rng = random.Random(seed)  # noqa: S311  # nothing secret
    generator = torch.Generator().manual_seed(seed)
    size = config.block_size or 1
    numbers = list(range(sum(-(-keys // size) for keys, _ in step) + 1))
    rng.shuffle(numbers)
    table = [[numbers.pop() for _ in range(-(-keys // size))] for keys, _ in step]
    slots = [
        blocks[at // size] * size + at % size
        for blocks, (keys, new) in zip(table, step, strict=True)
        for at in range(keys - new, keys)
    ]
    count, padding = len(slots), 2
    dtype = getattr(torch, config.dtype)
    query, key, value = (
        torch.randn(count + padding, heads, config.head_size, generator=generator).to(dtype)
        for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    )
    spec = backend.kv_cache_spec(config)
    past = [torch.randn(sum(map(len, table)) + 1, *part.sizes, generator=generator).to(dtype) for part in spec.tensors]
    queries, lens = [new for _, new in step], [keys for keys, _ in step]
    here = AttentionBatch.build(query_lens=queries, seq_lens=lens, block_table=table, slot_mapping=slots)
    expected = reference_attention(config, here, query, key, value, past, scale=0.3, spec=spec)
    written = [part.clone() for part in past]
    write_kv_cache(config, here, key, value, written, spec=spec)

    device = platform.torch_device(index)
    there = AttentionBatch.build(
        query_lens=queries, seq_lens=lens, block_table=table, slot_mapping=slots, device=device
    )
    layer = backend.create_layer(config, scale=0.3, device=device)
    plan = backend.plan(config, there)
    cache = [part.to(device) for part in past]
    first = layer.forward(query.to(device), key.to(device), value.to(device), cache, plan, return_lse=True)
    plan.update(there)
    out = torch.full_like(query, 9.0, device=device)
    again = layer.forward(query.to(device), None, None, cache, plan, out=out)
    if again is not out or not torch.isfinite(out.cpu()).all():
        return float("nan")
    pairs = [
        (first[0][:count], expected[0][:count]),
        (first[1][:, :count], expected[1][:, :count]),
        (out[:count], expected[0][:count]),
        *zip(cache, written, strict=True),
    ]
    gaps = [(found.cpu().double() - right.double()).abs() for found, right in pairs]
    return max(float(gap.nan_to_num(0.0).max()) if gap.numel() else 0.0 for gap in gaps)


def main(name: str) -> None:
    """Every step in two dtypes, on both devices."""
    found: dict[str, float] = {}
    with platform.inference_mode():
        for dtype in ("float32", "bfloat16"):
            config = AttentionConfig(head_size=16, num_heads=6, num_kv_heads=2, dtype=dtype, block_size=8)
            selection = platform.select_backend(config, requested=name, depth="ready")
            backend = selection.load()
            for number, step in enumerate(STEPS):
                for index in range(platform.device_count()):
                    label = f"{dtype} step {number} device {index}"
                    found[label] = difference(backend, config, step, seed=number, index=index)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
