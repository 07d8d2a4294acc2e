"""One step with random numbers, run through any backend and compared with the float64 reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from hardpoint.attention import (
    DTYPE_SIZE_BYTES,
    AttentionBackend,
    AttentionBatch,
    AttentionConfig,
    KVCacheSpec,
    reference_attention,
    write_kv_cache,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from hardpoint.attention import AttentionLayer, AttentionPlan
else:
    torch = pytest.importorskip("torch")

# Absolute and relative, for results of order one, and for the lse.
TOLERANCES = {"float32": (2e-5, 5e-5), "float16": (4e-3, 5e-3), "bfloat16": (3e-2, 2e-2)}


@dataclass(kw_only=True)
class KernelStep:
    """A step's inputs. Padding rows, and cache slots that belong to nobody, hold NaN; a sequence's own are finite."""

    backend: type[AttentionBackend]
    config: AttentionConfig
    batch: AttentionBatch
    query: torch.Tensor
    key: torch.Tensor | None
    value: torch.Tensor | None
    cache: tuple[torch.Tensor, ...] | None
    spec: KVCacheSpec | None
    arguments: dict[str, Any]

    @classmethod
    def random(
        cls,
        backend: type[AttentionBackend],
        config: AttentionConfig,
        query_lens: Sequence[int],
        seq_lens: Sequence[int],
        *,
        kv_lens: Sequence[int] | None = None,
        stride_order: int = 0,
        new_keys: bool = True,
        skip_slots: bool = False,
        padding: int = 0,
        causal: bool = True,
        garbage: int = 10_000,
        seed: int = 0,
    ) -> KernelStep:
        """`garbage` fills the block table beyond a sequence's own blocks, and before its window."""
        generator = torch.Generator().manual_seed(seed)
        dtype = getattr(torch, config.dtype)
        heads = () if config.kind == "mla_attention" else (config.num_kv_heads,)
        sizes = (config.head_size,) if not heads else (config.head_size, config.v_head_size)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        new_lens = list(query_lens if kv_lens is None else kv_lens) if new_keys else [0] * len(seq_lens)
        count, num_new = sum(query_lens), sum(new_lens)
        table = slots = cache = spec = None
        if (size := config.block_size) is not None:
            needed = [-(-length // size) for length in seq_lens]
            order = torch.randperm(sum(needed) + 3, generator=generator).tolist()
            rows = [[order.pop() for _ in range(blocks)] for blocks in needed]
            slot_of = [
                [row[i // size] * size + i % size for i in range(n)] for row, n in zip(rows, seq_lens, strict=True)
            ]
            slots = [s for row, n, new in zip(slot_of, seq_lens, new_lens, strict=True) for s in row[n - new :]]
            spec = backend.kv_cache_spec(config)
            orders = [tensor.stride_orders[stride_order % len(tensor.stride_orders)] for tensor in spec.tensors]
            cache = spec.allocate(sum(needed) + 3, device="cpu", stride_orders=orders)
            if skip_slots and slots:
                kept = torch.rand(len(slots), generator=generator) < 0.5
                slots = [s if keep else -1 for s, keep in zip(slots, kept.tolist(), strict=True)]
            own = [block for row in rows for block in row]
            for tensor in cache:
                filled = normal(*tensor.shape)
                nobody = torch.ones(len(tensor), dtype=torch.bool)
                nobody[own] = False
                if tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1:
                    filled[nobody] = torch.nan
                tensor.copy_(filled)
            width = max(needed, default=0) + 2
            table = []
            for row, length, queries in zip(rows, seq_lens, query_lens, strict=True):
                window = config.sliding_window
                unseen = 0 if window is None else max(0, length - queries - window + 1) // size
                table.append([garbage] * unseen + row[unseen:] + [garbage] * (width - len(row)))
        query = normal(count + padding, config.num_heads, config.head_size)
        query[count:] = torch.nan
        key = value = None
        if new_keys:
            extra = padding if kv_lens is None else 0
            made = [normal(num_new + extra, *heads, content).to(dtype) for content in sizes]
            for tensor in made:
                tensor[num_new:] = torch.nan
            key, value = made[0], made[1] if heads else None
            if slots is not None:
                slots += [-1] * extra
        batch = AttentionBatch.build(
            query_lens=query_lens,
            seq_lens=seq_lens,
            kv_lens=None if kv_lens is None and new_keys else new_lens,
            block_table=table,
            slot_mapping=slots,
            causal=causal,
        )
        arguments: dict[str, Any] = {"scale": config.head_size**-0.5}
        if config.sinks:
            arguments["sinks"] = normal(config.num_heads).float()
        if config.alibi:
            arguments["alibi_slopes"] = torch.exp2(-torch.arange(1, config.num_heads + 1) * 8 / config.num_heads)
        if DTYPE_SIZE_BYTES[config.cache_dtype] == 1:
            arguments |= {"key_scale": 0.5} | ({"value_scale": 0.25} if heads else {})
        return cls(
            backend=backend,
            config=config,
            batch=batch,
            query=query.to(dtype),
            key=key,
            value=value,
            cache=cache,
            spec=spec,
            arguments=arguments,
        )

    def layer(self) -> AttentionLayer:
        """A layer for the step."""
        return self.backend.create_layer(self.config, device="cpu", **self.arguments)

    def plan(self) -> AttentionPlan:
        """A plan for the step."""
        return self.backend.plan(self.config, self.batch)

    def reference(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Result and lse in float64. Call it before the layer writes into the cache."""
        return reference_attention(
            self.config, self.batch, self.query, self.key, self.value, self.cache, spec=self.spec, **self.arguments
        )

    def check(self, layer: AttentionLayer | None = None, plan: AttentionPlan | None = None) -> None:
        """Result, lse and what was written are the reference's; without lse the result is the same."""
        count = self.batch.num_actual_tokens
        wanted, wanted_lse = self.reference()
        written = None
        if self.cache is not None:
            written = tuple(tensor.clone() for tensor in self.cache)
            scales = {name: self.arguments[name] for name in ("key_scale", "value_scale") if name in self.arguments}
            write_kv_cache(self.config, self.batch, self.key, self.value, written, spec=self.spec, **scales)
        layer, plan = layer or self.layer(), plan or self.plan()
        result = layer.forward(self.query, self.key, self.value, self.cache, plan, return_lse=True)
        assert isinstance(result, tuple)
        out, lse = result
        assert (out.dtype, lse.dtype, out.shape, lse.shape) == (
            self.query.dtype,
            torch.float32,
            wanted.shape,
            wanted_lse.shape,
        )
        tolerance, lse_tolerance = TOLERANCES[self.config.dtype]
        torch.testing.assert_close(out[:count].double(), wanted[:count], atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(
            lse[:, :count].double(), wanted_lse[:, :count], atol=lse_tolerance, rtol=lse_tolerance
        )
        assert out.isfinite().all()
        for ours, theirs in zip(self.cache or (), written or (), strict=True):
            assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))
        given = torch.full_like(out, 7.0)
        plain = layer.forward(self.query, self.key, self.value, self.cache, plan, out=given)
        assert plain is given
        torch.testing.assert_close(given[:count].double(), wanted[:count], atol=tolerance, rtol=tolerance)


def check_smallest(backend: type[AttentionBackend], config: AttentionConfig, *, stride_order: int = 0) -> None:
    """What was accepted is prepared, built, and right on the smallest batch of its kind."""
    backend.prepare(config, "cpu")
    lengths = ([1, 2], [3, 2]) if config.block_size is not None else ([1, 2], [1, 2])
    crossed = lengths[1] if config.attention_type == "encoder_decoder" else None
    KernelStep.random(backend, config, *lengths, kv_lens=crossed, stride_order=stride_order, padding=1).check()
