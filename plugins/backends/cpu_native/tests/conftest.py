"""One step with random numbers, run through the backend and compared with the float64 reference."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch

from hardpoint.attention import (
    AttentionBatch,
    AttentionConfig,
    KVCacheSpec,
    reference_attention,
    write_kv_cache,
)
from hardpoint_cpu_native._layer import CpuNativeLayer
from hardpoint_cpu_native._plan import CpuNativePlan
from hardpoint_cpu_native.backend import CpuNativeBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hardpoint.attention import AttentionLayer, AttentionPlan
    from hardpoint_cpu_native._kernels import Kernels

# Absolute, for results of order one, and for the lse (which keeps more digits than the result).
TOLERANCES = {"float32": (2e-5, 5e-5), "float16": (4e-3, 5e-3), "bfloat16": (3e-2, 2e-2)}


@dataclass(kw_only=True)
class Step:
    """A step's inputs."""

    config: AttentionConfig
    batch: AttentionBatch
    query: torch.Tensor
    key: torch.Tensor | None
    value: torch.Tensor | None
    cache: tuple[torch.Tensor, ...] | None
    spec: KVCacheSpec | None
    arguments: dict[str, Any]
    kernels: Kernels

    @classmethod
    def random(
        cls,
        kernels: Kernels,
        config: AttentionConfig,
        query_lens: Sequence[int],
        seq_lens: Sequence[int],
        *,
        kv_lens: Sequence[int] | None = None,
        cached: bool | None = None,
        stride_order: int = 0,
        new_keys: bool = True,
        skip_slots: bool = False,
        padding: int = 0,
        causal: bool = True,
        seed: int = 0,
    ) -> Step:
        """Random tensors; every cache slot and padding row that must not matter holds NaN."""
        generator = torch.Generator().manual_seed(seed)
        dtype = getattr(torch, config.dtype)
        cached = config.block_size is not None if cached is None else cached

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        new_lens = (query_lens if kv_lens is None else kv_lens) if new_keys else [0] * len(seq_lens)
        count, num_new = sum(query_lens), sum(new_lens)
        table = slots = cache = spec = None
        if cached:
            assert config.block_size is not None
            size = config.block_size
            needed = [-(-length // size) for length in seq_lens]
            order = torch.randperm(sum(needed) + 3, generator=generator).tolist()
            table = [[order.pop() for _ in range(blocks)] for blocks in needed]
            slot_of = [
                [row[i // size] * size + i % size for i in range(n)] for row, n in zip(table, seq_lens, strict=True)
            ]
            slots = [s for row, n, new in zip(slot_of, seq_lens, new_lens, strict=True) for s in row[n - new :]]
            spec = CpuNativeBackend.kv_cache_spec(config)
            orders = [tensor.stride_orders[stride_order] for tensor in spec.tensors]
            cache = spec.allocate(sum(needed) + 3, device="cpu", stride_orders=orders)
            # Another layer has written everything where the cache is shared.
            unwritten = [0] * len(seq_lens) if config.kv_sharing else new_lens
            left = [s for row, n, new in zip(slot_of, seq_lens, unwritten, strict=True) for s in row[: n - new]]
            if skip_slots and slots:
                kept = torch.rand(len(slots), generator=generator) < 0.5
                left += [s for s, keep in zip(slots, kept.tolist(), strict=True) if not keep]
                slots = [s if keep else -1 for s, keep in zip(slots, kept.tolist(), strict=True)]
            for tensor, content in zip(cache, (config.head_size, config.v_head_size), strict=True):
                tensor.fill_(torch.nan)
                where = torch.tensor(left, dtype=torch.int64)
                rows = normal(len(left), config.num_kv_heads, content)
                past = tensor.to(torch.float64)
                past.transpose(1, 2)[where // size, where % size] = rows
                tensor.copy_(past)
        query = normal(count + padding, config.num_heads, config.head_size)
        query[count:] = torch.nan
        key = value = None
        if new_keys:
            extra = padding if kv_lens is None else 0
            key = normal(num_new + extra, config.num_kv_heads, config.head_size).to(dtype)
            value = normal(num_new + extra, config.num_kv_heads, config.v_head_size).to(dtype)
            key[num_new:] = torch.nan
            value[num_new:] = torch.nan
            if slots is not None:
                slots += [-1] * extra
        batch = AttentionBatch.build(
            query_lens=query_lens,
            seq_lens=seq_lens,
            kv_lens=None if kv_lens is None else new_lens,
            block_table=table,
            slot_mapping=slots,
            causal=causal,
        )
        arguments: dict[str, Any] = {"scale": config.head_size**-0.5}
        if config.sinks:
            arguments["sinks"] = normal(config.num_heads).float()
        if config.alibi:
            arguments["alibi_slopes"] = torch.exp2(-torch.arange(1, config.num_heads + 1) * 8 / config.num_heads)
        return cls(
            config=config,
            batch=batch,
            query=query.to(dtype),
            key=key,
            value=value,
            cache=cache,
            spec=spec,
            arguments=arguments,
            kernels=kernels,
        )

    def reference(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Result and lse in float64. Call it before the layer writes into the cache."""
        return reference_attention(
            self.config,
            self.batch,
            self.query,
            self.key,
            self.value,
            self.cache,
            spec=self.spec,
            **self.arguments,
        )

    def layer(self) -> AttentionLayer:
        """A layer for the step."""
        per_head: dict[str, Any] = {"sinks": None, "alibi_slopes": None}
        return CpuNativeLayer(self.config, kernels=self.kernels, **per_head | self.arguments)

    def plan(self) -> AttentionPlan:
        """A plan for the step."""
        return CpuNativePlan(self.config, self.batch, kernels=self.kernels)

    def forward(self, *, out: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Result and lse of the backend."""
        result = self.layer().forward(
            self.query, self.key, self.value, self.cache, self.plan(), out=out, return_lse=True
        )
        assert isinstance(result, tuple)
        return result

    def check(self) -> None:
        """Result, lse and what was written are the reference's; without lse the result is the same."""
        count = self.batch.num_actual_tokens
        wanted, wanted_lse = self.reference()
        written = None
        if self.cache is not None:
            written = tuple(tensor.clone() for tensor in self.cache)
            write_kv_cache(self.config, self.batch, self.key, self.value, written, spec=self.spec)
        out, lse = self.forward()
        assert out.dtype == self.query.dtype
        assert lse.dtype == torch.float32
        assert out.shape == wanted.shape
        assert lse.shape == wanted_lse.shape
        tolerance, lse_tolerance = TOLERANCES[self.config.dtype]
        torch.testing.assert_close(out[:count].double(), wanted[:count], atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(
            lse[:, :count].double(), wanted_lse[:, :count], atol=lse_tolerance, rtol=lse_tolerance
        )
        assert out.isfinite().all()
        for ours, theirs in zip(self.cache or (), written or (), strict=True):
            assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))
        plain = self.layer().forward(self.query, self.key, self.value, self.cache, self.plan())
        assert isinstance(plain, torch.Tensor)
        torch.testing.assert_close(plain[:count].double(), wanted[:count], atol=tolerance, rtol=tolerance)


# What the build of each module needs, as /proc/cpuinfo spells it; the CPU platform decides by the same names.
_AVX2 = {"avx2", "fma", "f16c"}
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
NEEDED = {
    "_avx2": _AVX2,
    "_avx512": _AVX512,
    "_avx512_bf16": _AVX512 | {"avx512_bf16"},
    "_amx": _AVX512 | {"avx512_bf16", "amx_tile", "amx_bf16"},
    "_neon": {"asimd", "bf16"},
}


def features() -> set[str]:
    """The flags of this machine's first CPU."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith(("flags", "Features")):
            return set(line.partition(":")[2].split())
    return set()


@pytest.fixture(scope="session", params=NEEDED)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """Each module that this machine can run."""
    if missing := NEEDED[request.param] - features():
        pytest.skip(f"hardpoint_cpu_native.{request.param} needs {', '.join(sorted(missing))}")
    return cast("Kernels", importlib.import_module(f"hardpoint_cpu_native.{request.param}"))


@pytest.fixture
def random_step(kernels: Kernels) -> Callable[..., Step]:
    """Makes a `Step`: test files cannot import one another."""
    return partial(Step.random, kernels)
