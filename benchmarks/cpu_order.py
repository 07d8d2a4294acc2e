"""The order of the CPU's backends: flex_attention against torch_sdpa, steps of both kinds, interleaved in one run.

    python benchmarks/cpu_order.py [--threads 2] [--rounds 9] [--prepare]

32 query heads over 8 key/value heads of 128, blocks of 128 in random order. Decode: one token for each of eight
sequences. Prefill: one sequence, causal. Medians of interleaved rounds; what counts is the ratio, above one where
flex_attention is slower. flex_attention compiles once per family of shapes before anything is timed, and that time is
printed: half of what a fresh cache of torch's compiler costs is paid once per machine. --prepare compiles alone.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING

import torch

from hardpoint.attention import AttentionBatch, AttentionConfig
from hardpoint_flex_attention.backend import FlexAttentionBackend
from hardpoint_torch_sdpa.backend import TorchSdpaBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hardpoint.attention import AttentionBackend

HEADS, KV_HEADS, HEAD_SIZE, BLOCK = 32, 8, 128, 128
STEPS = {
    "decode, 8 sequences of 1k": ([1] * 8, [1024] * 8),
    "decode, 8 sequences of 4k": ([1] * 8, [4096] * 8),
    "prefill of 1k": ([1024], [1024]),
}


def config_of(dtype: str) -> AttentionConfig:
    return AttentionConfig(head_size=HEAD_SIZE, num_heads=HEADS, num_kv_heads=KV_HEADS, dtype=dtype, block_size=BLOCK)


def step(
    backend: type[AttentionBackend], config: AttentionConfig, query_lens: Sequence[int], seq_lens: Sequence[int]
) -> Callable[[], torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    counts = [-(-length // BLOCK) for length in seq_lens]
    order = torch.randperm(sum(counts), generator=generator).tolist()
    table = [[order.pop() for _ in range(count)] for count in counts]
    slots = [
        row[position // BLOCK] * BLOCK + position % BLOCK
        for row, queries, keys in zip(table, query_lens, seq_lens, strict=True)
        for position in range(keys - queries, keys)
    ]
    batch = AttentionBatch.build(query_lens=query_lens, seq_lens=seq_lens, block_table=table, slot_mapping=slots)
    spec = backend.kv_cache_spec(config)
    caches = spec.allocate(sum(counts), device="cpu")
    for cache in caches:
        cache.fill_(0.5)
    dtype = caches[0].dtype
    query, key, value = (
        torch.randn(sum(query_lens), heads, HEAD_SIZE, generator=generator).to(dtype)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    layer = backend.create_layer(config, scale=HEAD_SIZE**-0.5, device="cpu")
    plan = backend.plan(config, batch)

    def run() -> torch.Tensor:
        result = layer.forward(query, key, value, caches, plan)
        assert isinstance(result, torch.Tensor)
        return result

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--prepare", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for dtype in ("bfloat16", "float32"):
        config = config_of(dtype)
        started = time.perf_counter()
        FlexAttentionBackend.prepare(config, "cpu")
        print(f"{dtype}: prepare of flex_attention took {time.perf_counter() - started:.1f} s", flush=True)
        for name, (query_lens, seq_lens) in STEPS.items():
            ours = [step(item, config, query_lens, seq_lens) for item in (FlexAttentionBackend, TorchSdpaBackend)]
            results = [run() for run in ours]
            torch.testing.assert_close(*results, atol=2e-2, rtol=2e-2)
            if options.prepare:
                continue
            taken: tuple[list[float], list[float]] = ([], [])
            for _ in range(options.rounds):
                for run, times in zip(ours, taken, strict=True):
                    begin = time.perf_counter()
                    run()
                    times.append(time.perf_counter() - begin)
            flex, sdpa = (statistics.median(times) * 1e3 for times in taken)
            print(f"{dtype}, {name}: flex {flex:.1f} ms, torch_sdpa {sdpa:.1f} ms, ratio {flex / sdpa:.2f}", flush=True)


if __name__ == "__main__":
    main()
