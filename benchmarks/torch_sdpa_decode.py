"""Decode through a paged cache: torch_sdpa and torch_mla against gathering by hand, both sides in one run.

    python benchmarks/torch_sdpa_decode.py [--threads 2] [--rounds 15]

One token for each of eight sequences, 32 query heads over 8 key/value heads of 128, cache blocks in random order.
"naive" gathers the whole batch, repeats the heads and calls scaled_dot_product_attention; "each" gathers sequence by
sequence and lets torch group the heads. The latent form has 16 heads over one latent of 512 + 64. Medians of
interleaved rounds; what counts is the ratio. The last lines say what the project aims at, twice the speed of "naive" at
each context in the dense form, and whether that was met. Writes nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

from hardpoint.attention import AttentionBatch, AttentionConfig
from hardpoint_torch_sdpa.backend import TorchSdpaBackend
from hardpoint_torch_sdpa.mla_backend import TorchMlaBackend

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH, HEADS, KV_HEADS, HEAD_SIZE = 8, 32, 8, 128
SCALE = HEAD_SIZE**-0.5
AIM = 2.0


def contenders(dtype: str, context: int, block_size: int) -> dict[str, Callable[[], torch.Tensor]]:
    config = AttentionConfig(
        head_size=HEAD_SIZE, num_heads=HEADS, num_kv_heads=KV_HEADS, dtype=dtype, block_size=block_size
    )
    blocks = context // block_size
    table = torch.randperm(BATCH * blocks).view(BATCH, blocks)
    caches = TorchSdpaBackend.kv_cache_spec(config).allocate(BATCH * blocks, device="cpu")
    for cache in caches:
        cache.normal_()
    last = context - 1
    slots = table[:, last // block_size] * block_size + last % block_size
    batch = AttentionBatch.build(
        query_lens=[1] * BATCH, seq_lens=[context] * BATCH, block_table=table, slot_mapping=slots
    )
    query = torch.randn(BATCH, HEADS, HEAD_SIZE).to(caches[0].dtype)
    key = torch.randn(BATCH, KV_HEADS, HEAD_SIZE).to(caches[0].dtype)
    value = torch.randn(BATCH, KV_HEADS, HEAD_SIZE).to(caches[0].dtype)
    layer = TorchSdpaBackend.create_layer(config, scale=SCALE, device="cpu")
    plan = TorchSdpaBackend.plan(config, batch)

    def write() -> None:
        for cache, new in zip(caches, (key, value), strict=True):
            cache[slots // block_size, :, slots % block_size] = new

    def naive() -> torch.Tensor:
        write()
        keys, values = (
            cache[table]
            .transpose(1, 2)
            .reshape(BATCH, KV_HEADS, context, HEAD_SIZE)
            .repeat_interleave(HEADS // KV_HEADS, dim=1)
            for cache in caches
        )
        return scaled_dot_product_attention(query.unsqueeze(2), keys, values, scale=SCALE).squeeze(2)

    def each() -> torch.Tensor:
        write()
        results = []
        for number in range(BATCH):
            keys, values = (
                cache[table[number]].transpose(0, 1).reshape(1, KV_HEADS, context, HEAD_SIZE) for cache in caches
            )
            one = query[number, None, :, None]
            results.append(scaled_dot_product_attention(one, keys, values, scale=SCALE, enable_gqa=True).squeeze(2))
        return torch.cat(results)

    def ours() -> torch.Tensor:
        result = layer.forward(query, key, value, caches, plan)
        assert isinstance(result, torch.Tensor)
        return result

    def planned() -> torch.Tensor:
        result = layer.forward(query, key, value, caches, TorchSdpaBackend.plan(config, batch))
        assert isinstance(result, torch.Tensor)
        return result

    return {"naive": naive, "each": each, "ours": ours, "ours, with a new plan": planned}


def latent_contenders(dtype: str, context: int, block_size: int) -> dict[str, Callable[[], torch.Tensor]]:
    config = AttentionConfig(
        kind="mla_attention", head_size=576, num_heads=16, kv_lora_rank=512, qk_rope_head_dim=64,
        dtype=dtype, block_size=block_size,
    )  # fmt: skip
    blocks = context // block_size
    table = torch.randperm(BATCH * blocks).view(BATCH, blocks)
    (cache,) = TorchMlaBackend.kv_cache_spec(config).allocate(BATCH * blocks, device="cpu")
    cache.normal_()
    last = context - 1
    slots = table[:, last // block_size] * block_size + last % block_size
    batch = AttentionBatch.build(
        query_lens=[1] * BATCH, seq_lens=[context] * BATCH, block_table=table, slot_mapping=slots
    )
    query = torch.randn(BATCH, config.num_heads, config.head_size).to(cache.dtype)
    new = torch.randn(BATCH, config.head_size).to(cache.dtype)
    layer = TorchMlaBackend.create_layer(config, scale=config.head_size**-0.5, device="cpu")
    plan = TorchMlaBackend.plan(config, batch)

    def attend(rows: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
        values = latents[..., : config.v_head_size]
        return scaled_dot_product_attention(rows, latents, values, scale=config.head_size**-0.5)

    def naive() -> torch.Tensor:
        cache[slots // block_size, slots % block_size] = new
        latents = cache[table].reshape(BATCH, 1, context, config.head_size).expand(-1, config.num_heads, -1, -1)
        return attend(query.unsqueeze(2), latents).squeeze(2)

    def each() -> torch.Tensor:
        cache[slots // block_size, slots % block_size] = new
        found = [
            attend(query[number, None, None], cache[table[number]].view(1, 1, context, -1)) for number in range(BATCH)
        ]
        return torch.cat(found).squeeze(1)

    def ours() -> torch.Tensor:
        result = layer.forward(query, new, None, (cache,), plan)
        assert isinstance(result, torch.Tensor)
        return result

    def planned() -> torch.Tensor:
        result = layer.forward(query, new, None, (cache,), TorchMlaBackend.plan(config, batch))
        assert isinstance(result, torch.Tensor)
        return result

    return {"naive": naive, "each": each, "ours": ours, "ours, with a new plan": planned}


def measure(functions: dict[str, Callable[[], torch.Tensor]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each, one after the other in every round."""
    wanted = functions["naive"]()
    for function in functions.values():
        torch.testing.assert_close(function(), wanted, atol=2e-2, rtol=2e-2)
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) * 1e3 for name, times in taken.items()}


def row(name: str, context: int, block_size: int, ms: dict[str, float]) -> float:
    """Print it. How many times as fast as naive ours is."""
    cells = " | ".join(f"{value:.1f}" for value in ms.values())
    ratio = ms["naive"] / ms["ours"]
    print(f"| {name} | {context} | {block_size} | {cells} | {ratio:.2f} | {ms['each'] / ms['ours']:.2f} |", flush=True)
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print("| dtype | context | block | naive ms | each ms | ours ms | with a new plan | over naive | over each |")
    print("|---|---|---|---|---|---|---|---|---|")
    worst: dict[int, float] = {}
    for dtype in ("bfloat16", "float32"):
        for context in (1024, 4096):
            for block_size in (16, 128):
                ms = measure(contenders(dtype, context, block_size), options.rounds)
                ratio = row(dtype, context, block_size, ms)
                worst[context] = min(worst.get(context, ratio), ratio)
    for dtype in ("bfloat16", "float32"):
        for context in (1024, 4096):
            row(f"{dtype}, latent", context, 64, measure(latent_contenders(dtype, context, 64), options.rounds))
    for context, ratio in worst.items():
        print(f"context {context}: at least {ratio:.2f} times naive ({'met' if ratio >= AIM else 'MISSED'}: {AIM})")


if __name__ == "__main__":
    main()
