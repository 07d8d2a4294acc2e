"""Every installed attention backend on this machine's GPU, against torch's SDPA and against the memory's speed.

    python benchmarks/gpu_attention.py [--rounds 30] [--head-size 128] [--dtype bfloat16] [--backends NAME,NAME]
    python benchmarks/gpu_attention.py --platform cpu --smaller 64 --rounds 3    # shows that it works, on a CPU

Decode: 64 sequences, one token each, 32 query heads over 8 key/value heads, cache blocks in random order. What must
move is each key and value once; its share of what this device copies per second (measured in the same run) is "of
memory". Prefill: one sequence; torch's SDPA runs on as many keys, contiguous and not paged. Latent: 128 heads over
one latent of 512 + 64. All are timed one after the other in every round, and medians are compared:
what counts is the ratio.
`--smaller` divides sequences and lengths. Ends with status 0 after measuring, 2 where there is no GPU and no other
platform was named, 1 where no backend could run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.cuda import Event
from torch.nn.functional import scaled_dot_product_attention

import hardpoint
from hardpoint.attention import DTYPE_SIZE_BYTES, AttentionBatch, AttentionConfig
from hardpoint.errors import HardpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hardpoint.platforms import Platform

NO_DEVICE = 2


@dataclass(frozen=True)
class Case:
    name: str
    config: AttentionConfig
    num_seqs: int
    query_len: int
    context: int

    @property
    def bytes_moved(self) -> int:
        config = self.config
        content = config.head_size + (0 if config.kind == "mla_attention" else config.v_head_size)
        per_key = config.num_kv_heads * content * DTYPE_SIZE_BYTES[config.cache_dtype]
        return self.num_seqs * self.context * per_key

    @property
    def operations(self) -> int:
        config = self.config
        seen = self.num_seqs * (self.query_len * self.context - self.query_len * (self.query_len - 1) // 2)
        return 2 * seen * config.num_heads * (config.head_size + config.v_head_size)


def cases(options: argparse.Namespace) -> list[Case]:
    dense = AttentionConfig(
        head_size=options.head_size, num_heads=32, num_kv_heads=8, dtype=options.dtype, block_size=options.block_size
    )
    latent = AttentionConfig(
        kind="mla_attention", head_size=576, num_heads=128, kv_lora_rank=512, qk_rope_head_dim=64,
        dtype=options.dtype, block_size=64,
    )  # fmt: skip

    def less(number: int) -> int:
        return max(1, number // int(options.smaller))

    many, chunk = less(64), less(512)
    return [
        *(Case(f"decode, {context}", dense, many, 1, context) for context in map(less, (1024, 4096, 16384))),
        Case(f"decode, one of {less(65536)}", dense, 1, 1, less(65536)),
        *(Case(f"prefill, {length}", dense, 1, length, length) for length in map(less, (2048, 8192))),
        Case(f"prefill, {chunk} behind {less(8192)}", dense, 1, chunk, chunk + less(8192)),
        Case(f"latent decode, {less(4096)}", latent, many, 1, less(4096)),
    ]


def contenders(
    platform: Platform, case: Case, names: set[str]
) -> tuple[dict[str, Callable[[], torch.Tensor]], list[str]]:
    config, device = case.config, platform.device_string()
    dtype = getattr(torch, config.dtype)
    assert config.block_size is not None
    blocks = -(-case.context // config.block_size)
    table = torch.randperm(case.num_seqs * blocks, dtype=torch.int32).view(case.num_seqs, blocks)
    batch = AttentionBatch.build(
        query_lens=[case.query_len] * case.num_seqs,
        seq_lens=[case.context] * case.num_seqs,
        block_table=table,
        device=device,
    )
    query = torch.randn(case.num_seqs * case.query_len, config.num_heads, config.head_size, device=device).to(dtype)
    scale = config.head_size**-0.5
    runs: dict[str, Callable[[], torch.Tensor]] = {}
    valid, rejected = platform.get_valid_backends(platform.get_device_capability(), config, depth="ready")
    said = [candidate.describe() for candidate in rejected.values()]
    for candidate in valid:
        if names and candidate.name not in names:
            continue
        try:
            backend = platform.select_backend(config, candidate.name, depth="ready").load()
        except HardpointError as error:
            said.append(str(error))
            continue
        cache = backend.kv_cache_spec(config).allocate(case.num_seqs * blocks, device=device)
        for tensor in cache:
            tensor.copy_(torch.randn(tensor.shape, device=device))
        layer, plan = backend.create_layer(config, scale=scale, device=device), backend.plan(config, batch)

        def run(layer=layer, plan=plan, cache=cache) -> torch.Tensor:  # type: ignore[no-untyped-def]  # noqa: ANN001  # bound now
            result = layer.forward(query, None, None, cache, plan)
            assert isinstance(result, torch.Tensor)
            return result

        runs[candidate.name] = run
    if config.kind == "attention":
        shape = (case.num_seqs, config.num_kv_heads, case.context)
        key = torch.randn(*shape, config.head_size, device=device).to(dtype)
        value = torch.randn(*shape, config.v_head_size, device=device).to(dtype)
        rows = query.view(case.num_seqs, case.query_len, config.num_heads, config.head_size).transpose(1, 2)
        mask = None
        if 1 < case.query_len < case.context:
            mask = torch.ones(case.query_len, case.context, dtype=torch.bool, device=device)
            mask = mask.tril(case.context - case.query_len)

        def sdpa() -> torch.Tensor:
            causal = case.query_len == case.context
            return scaled_dot_product_attention(rows, key, value, mask, 0.0, causal, scale=scale, enable_gqa=True)

        runs["torch SDPA, not paged"] = sdpa
    elif case.query_len == 1:
        # All heads read one latent: they stand where query tokens would.
        latents = torch.randn(case.num_seqs, 1, case.context, config.head_size, device=device).to(dtype)
        heads = query.unsqueeze(1)

        def sdpa_latent() -> torch.Tensor:
            return scaled_dot_product_attention(heads, latents, latents[..., : config.v_head_size], scale=scale)

        runs["torch SDPA, not paged"] = sdpa_latent
    return runs, said


def event() -> Event:
    return Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own


def milliseconds(run: Callable[[], torch.Tensor], device_type: str) -> float:
    if device_type != "cuda":
        started = time.perf_counter()
        run()
        return (time.perf_counter() - started) * 1e3
    start, end = event(), event()
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def measure(runs: dict[str, Callable[[], torch.Tensor]], rounds: int, device_type: str) -> dict[str, float]:
    """Median milliseconds of each, one after the other in every round."""
    for run in runs.values():
        for _ in range(3):
            run()
    if device_type == "cuda":
        torch.cuda.synchronize()
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            taken[name].append(milliseconds(run, device_type))
    return {name: statistics.median(times) for name, times in taken.items()}


def memory_speed(options: argparse.Namespace, device_type: str) -> float:
    """Bytes per millisecond that a copy reads and writes."""
    source = torch.empty((1 << 30) // options.smaller, dtype=torch.uint8, device=device_type)
    target = torch.empty_like(source)
    (taken,) = measure({"copy": lambda: target.copy_(source)}, options.rounds, device_type).values()
    return 2 * source.numel() / taken


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--head-size", type=int, default=128)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--backends", default="", help="only these, by name")
    parser.add_argument("--platform", help="measure on this one, a CPU too")
    parser.add_argument("--smaller", type=int, default=1, help="divide sequences and lengths by this")
    options = parser.parse_args(arguments)
    if min(options.rounds, options.smaller) < 1:
        parser.error("--rounds and --smaller are at least 1")
    if options.platform is None and not torch.cuda.is_available():
        print("there is no GPU here that torch can use: nothing is measured")
        return NO_DEVICE
    try:
        platform = hardpoint.current_platform() if options.platform is None else hardpoint.platform(options.platform)
    except HardpointError as error:
        print(error)
        return NO_DEVICE
    if options.platform is None and platform.device_type != "cuda":
        print(f"the platform here is {platform.name}, on {platform.device_type}: nothing is measured")
        return NO_DEVICE
    device_type = platform.device_type
    platform.import_kernels()
    torch.manual_seed(0)
    speed = memory_speed(options, device_type)
    print(f"{platform.name}: {platform.get_device_name()}, copies {speed / 1e9:.2f} TB/s\n")
    print("| case | backend | ms | of memory | TFLOP/s | over SDPA |\n|---|---|---|---|---|---|")
    refusals: dict[str, None] = {}
    ran = False
    names = set(filter(None, options.backends.split(",")))
    for case in cases(options):
        runs, said = contenders(platform, case, names)
        refusals |= dict.fromkeys(said)
        ran = ran or any("SDPA" not in name for name in runs)
        ms = measure(runs, options.rounds, device_type)
        plain = ms.get("torch SDPA, not paged")
        for name, taken in ms.items():
            share = f"{case.bytes_moved / taken / speed:.0%}" if case.query_len == 1 else "-"
            ratio = "-" if plain is None else f"{plain / taken:.2f}"
            flops = case.operations / taken / 1e9
            print(f"| {case.name} | {name} | {taken:.3f} | {share} | {flops:.0f} | {ratio} |", flush=True)
    for text in refusals:
        print(f"not measured: {text}")
    return 0 if ran else 1


if __name__ == "__main__":
    sys.exit(main())
