"""What every attention backend that runs here is held to: random steps against the float64 reference.

`Step` is one step with everything that must not matter poisoned; `Conformance` is a class of tests that a backend's own
test file subclasses, naming its backend, its declared support and what it is asked. The tolerances stand here, once.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch

from hardpoint.attention import (
    DTYPE_SIZE_BYTES,
    AttentionBatch,
    AttentionConfig,
    reference_attention,
    write_kv_cache,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hardpoint import DeviceCapability
    from hardpoint.attention import (
        AttentionBackend,
        AttentionLayer,
        AttentionPlan,
        AttentionSupport,
        CacheTensorSpec,
        KVCacheSpec,
    )

# Absolute, for results of order one, and for the lse (which keeps more digits than the result).
TOLERANCES = {"float64": (1e-9, 1e-5), "float32": (2e-5, 5e-5), "float16": (4e-3, 5e-3), "bfloat16": (3e-2, 2e-2)}

# Decodes of several lengths, prefills, chunked prefills, empty sequences, one that has keys and no query.
MIXED: dict[str, Any] = {"query_lens": [1, 5, 0, 7, 1, 1, 3, 0], "seq_lens": [9, 5, 0, 19, 12, 1, 3, 4]}


@contextmanager
def one_thread() -> Iterator[None]:
    """The reference's many small operations: torch's threads, waiting for one another, take several times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(kw_only=True)
class Step:
    """A step's inputs, and the backend that is to compute it."""

    backend: type[AttentionBackend]
    config: AttentionConfig
    batch: AttentionBatch
    query: torch.Tensor
    key: torch.Tensor | None
    value: torch.Tensor | None
    cache: tuple[torch.Tensor, ...] | None
    spec: KVCacheSpec | None
    arguments: dict[str, Any]
    device: str = "cpu"

    @classmethod
    @one_thread()
    def random(
        cls,
        backend: type[AttentionBackend],
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
        poison: float = torch.nan,
        seed: int = 0,
        device: str = "cpu",
    ) -> Step:
        """Random tensors; every cache slot and padding row that must not matter holds `poison`.

        `kv_lens` are the new keys where they are not the queries' (cross attention); `skip_slots` gives half the new
        keys a slot of -1; blocks lie in random order; `stride_order` counts the declared ones.
        """
        generator = torch.Generator().manual_seed(seed)
        dtype = getattr(torch, config.dtype)
        cached = config.block_size is not None if cached is None else cached
        latent = config.kind == "mla_attention"

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
            spec = backend.kv_cache_spec(config)
            orders = [tensor.stride_orders[stride_order % len(tensor.stride_orders)] for tensor in spec.tensors]
            cache = spec.allocate(sum(needed) + 3, device=device, stride_orders=orders)
            # Another layer has written everything where the cache is shared.
            unwritten = [0] * len(seq_lens) if config.kv_sharing else new_lens
            left = [s for row, n, new in zip(slot_of, seq_lens, unwritten, strict=True) for s in row[: n - new]]
            if skip_slots and slots:
                kept = torch.rand(len(slots), generator=generator) < 0.5
                left += [s for s, keep in zip(slots, kept.tolist(), strict=True) if not keep]
                slots = [s if keep else -1 for s, keep in zip(slots, kept.tolist(), strict=True)]
            where = torch.tensor(left, dtype=torch.int64)
            for tensor, tensor_spec in zip(cache, spec.tensors, strict=True):
                heads, content = _heads_and_content(tensor_spec)
                rows = normal(len(left), heads, content) * (20 if tensor.dtype == torch.int8 else 1)
                past = tensor.detach().cpu().double()
                if tensor.dtype.is_floating_point:
                    past.fill_(poison)
                _by_token(past, tensor_spec)[where // size, where % size] = rows
                tensor.copy_(past)
        query = normal(count + padding, config.num_heads, config.head_size)
        query[count:] = poison
        key = value = None
        if new_keys:
            extra = padding if kv_lens is None else 0
            heads_of = () if latent else (config.num_kv_heads,)
            key = normal(num_new + extra, *heads_of, config.head_size)
            key[num_new:] = poison
            if not latent:
                value = normal(num_new + extra, config.num_kv_heads, config.v_head_size)
                value[num_new:] = poison
            if slots is not None:
                slots += [-1] * extra
        batch = AttentionBatch.build(
            query_lens=query_lens,
            seq_lens=seq_lens,
            kv_lens=None if kv_lens is None else new_lens,
            block_table=table,
            slot_mapping=slots,
            causal=causal,
            device=device,
        )
        arguments: dict[str, Any] = {"scale": config.head_size**-0.5}
        if config.sinks:
            arguments["sinks"] = normal(config.num_heads).float().to(device)
        if config.alibi:
            slopes = torch.exp2(-torch.arange(1, config.num_heads + 1) * 8 / config.num_heads)
            arguments["alibi_slopes"] = slopes.to(device)
        if DTYPE_SIZE_BYTES[config.cache_dtype] == 1:
            arguments |= {"key_scale": 0.05} if latent else {"key_scale": 0.05, "value_scale": 0.03}
        return cls(
            backend=backend,
            config=config,
            batch=batch,
            query=query.to(device, dtype),
            key=None if key is None else key.to(device, dtype),
            value=None if value is None else value.to(device, dtype),
            cache=cache,
            spec=spec,
            arguments=arguments,
            device=device,
        )

    def reference(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Result and lse in float64. Call it before the layer writes into the cache."""
        with one_thread():
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
        return self.backend.create_layer(self.config, device=self.device, **self.arguments)

    def plan(self) -> AttentionPlan:
        """A plan for the step."""
        return self.backend.plan(self.config, self.batch)

    def forward(self, *, out: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Result and lse of the backend."""
        result = self.layer().forward(
            self.query, self.key, self.value, self.cache, self.plan(), out=out, return_lse=True
        )
        assert isinstance(result, tuple)
        return result

    def check(self, *, lse: bool = True, plain: bool = True) -> None:
        """Result, lse and what was written are the reference's; without lse the result is the same.

        One of the two may be left out, for backends that take seconds to be run at all.
        """
        count = self.batch.num_actual_tokens
        wanted, wanted_lse = self.reference()
        written = None
        if self.cache is not None:
            written = tuple(tensor.clone() for tensor in self.cache)
            scales = {name: self.arguments[name] for name in ("key_scale", "value_scale") if name in self.arguments}
            with one_thread():
                write_kv_cache(self.config, self.batch, self.key, self.value, written, spec=self.spec, **scales)
        tolerance, lse_tolerance = TOLERANCES[self.config.dtype]
        results = []
        if plain:
            found = self.layer().forward(self.query, self.key, self.value, self.cache, self.plan())
            assert isinstance(found, torch.Tensor)
            results.append(found)
        if lse:
            out, found_lse = self.forward()
            assert found_lse.dtype == torch.float32
            assert found_lse.shape == wanted_lse.shape
            torch.testing.assert_close(
                found_lse[:, :count].cpu().double(), wanted_lse[:, :count], atol=lse_tolerance, rtol=lse_tolerance
            )
            results.append(out)
        for out in results:
            assert out.dtype == self.query.dtype
            assert out.shape == wanted.shape
            assert out.isfinite().all()
            torch.testing.assert_close(out[:count].cpu().double(), wanted[:count], atol=tolerance, rtol=tolerance)
        for ours, theirs in zip(self.cache or (), written or (), strict=True):
            assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


def _heads_and_content(spec: CacheTensorSpec) -> tuple[int, int]:
    size_of = dict(zip(spec.axes[1:], spec.sizes, strict=True))
    return size_of.get("head", 1), size_of["content"]


def _by_token(tensor: torch.Tensor, spec: CacheTensorSpec) -> torch.Tensor:
    """The tensor seen as ``(block, token, head, content)``."""
    order = [axis for axis in ("block", "token", "head", "content") if axis in spec.axes]
    seen = tensor.permute([spec.axes.index(axis) for axis in order])
    return seen if "head" in spec.axes else seen.unsqueeze(2)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One step that a backend is held to: what the config asks beyond `Conformance.base`, and how the step is made."""

    config: Mapping[str, Any]
    step: Mapping[str, Any]


def case(step: Mapping[str, Any] = MIXED, **config: Any) -> Case:
    """A case; by default of the mixed batch, with half the slots -1 and with padding."""
    if step is MIXED:
        step = {**MIXED, "skip_slots": True, "padding": 3}
    return Case(config=config, step=step)


LENS = [3, 5, 5, 5, 0, 1, 1, 4]
CACHELESS: dict[str, Any] = {"query_lens": LENS, "seq_lens": LENS, "padding": 2}
CROSS: dict[str, Any] = {"query_lens": [3, 5, 1, 2, 1], "seq_lens": [7, 2, 6, 0, 11], "kv_lens": [7, 2, 6, 0, 11]}
LATER: dict[str, Any] = {"query_lens": [1, 1, 2], "seq_lens": [7, 2, 6], "kv_lens": [0, 0, 0], "new_keys": False}

# Every feature of the request on a batch that mixes all kinds of sequences. Ask a backend all of it, or what it is for.
FEATURES: dict[str, Case] = {
    "plain": case(),
    "window": case(sliding_window=5),
    "window of one": case(sliding_window=1),
    "sinks": case(sinks=True),
    "alibi": case(alibi=True),
    "soft cap": case(soft_cap=2.0),
    "all at once": case(sliding_window=3, alibi=True, sinks=True),
    "all and a soft cap": case(sliding_window=3, alibi=True, sinks=True, soft_cap=1.5),
    "not causal": case(causal=False),
    "not causal, window": case(causal=False, sliding_window=3),
    "a step that is not causal": case({**MIXED, "causal": False}),
    "smaller value head": case(v_head_size=8),
    "shared cache": case(kv_sharing=True),
    "cross attention": case(CROSS, attention_type="encoder_decoder"),
    "cross attention without a cache": case(CROSS, attention_type="encoder_decoder", block_size=None),
    "cross attention, later": case(LATER, attention_type="encoder_decoder"),
    "encoder": case(CACHELESS, attention_type="encoder", block_size=None),
    "encoder only, window": case(CACHELESS, attention_type="encoder_only", sliding_window=3, block_size=None),
    "decoder without a cache": case(CACHELESS, block_size=None),
    "no sequences": case({"query_lens": [], "seq_lens": []}),
    "only empty sequences": case({"query_lens": [0, 0], "seq_lens": [0, 0], "padding": 2}),
    "a longer prefill behind a longer context": case({"query_lens": [70, 1], "seq_lens": [150, 131], "padding": 1}),
}


class Conformance:
    """Tests of one backend. Subclass it in the backend's own test file as ``class TestSomething(Conformance)``.

    What the declared support refuses is skipped with its reasons; a backend whose compilations are dear overrides
    `cases` with fewer, and `dtypes`.
    """

    backend: ClassVar[type[AttentionBackend]]
    support: ClassVar[AttentionSupport]
    capability: ClassVar[DeviceCapability | None] = None
    base: ClassVar[dict[str, Any]] = {"head_size": 16, "num_heads": 4, "num_kv_heads": 2, "block_size": 4}
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "bfloat16")
    cases: ClassVar[Mapping[str, Case]] = FEATURES
    block_sizes: ClassVar[tuple[int, ...]] = (1, 3, 16, 256)
    without_lse: ClassVar[bool] = True
    """Whether each step is also run without its lse, which is another call to most."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test per case, dtype, block size and declared stride order."""
        if "dtype" in metafunc.fixturenames:
            metafunc.parametrize("dtype", self.dtypes)
        if "case_name" in metafunc.fixturenames:
            metafunc.parametrize("case_name", list(self.cases))
        if "block_size" in metafunc.fixturenames:
            metafunc.parametrize("block_size", self.block_sizes)
        if "stride_order" in metafunc.fixturenames:
            spec = self.backend.kv_cache_spec(AttentionConfig(**{**self.base, "dtype": self.dtypes[0]}))
            metafunc.parametrize("stride_order", range(max(len(tensor.stride_orders) for tensor in spec.tensors)))

    def config(self, **options: Any) -> AttentionConfig:
        """The base with these options; skips the test where the backend refuses that."""
        config = AttentionConfig(**{**self.base, **options})
        reasons = [
            *self.support.reasons(self.capability, config),
            *self.backend.validate_configuration(self.capability, config),
        ]
        if reasons:
            pytest.skip("; ".join(map(str, reasons)))
        return config

    def test_agrees_with_the_reference(self, case_name: str, dtype: str) -> None:
        """Padding rows, unused slots and rows beyond the new keys hold NaN, half the slots are -1, nothing shows."""
        found = self.cases[case_name]
        Step.random(self.backend, self.config(dtype=dtype, **found.config), **found.step).check(plain=self.without_lse)

    def test_every_block_size_and_stride_order_gives_the_same(self, block_size: int, stride_order: int) -> None:
        """Blocks lie in random order and are read in each of the declared memory orders."""
        config = self.config(dtype=self.dtypes[0], block_size=block_size)
        Step.random(self.backend, config, [1, 1, 6, 1], [17, 40, 35, 38], stride_order=stride_order).check(
            plain=self.without_lse
        )

    def test_inputs_need_not_be_dense(self) -> None:
        """A query that is a slice of something, with a strided last axis, and an `out` with gaps between its rows."""
        step = Step.random(self.backend, self.config(dtype=self.dtypes[0]), **MIXED)
        wanted, _ = step.reference()
        for name in ("query", "key", "value"):
            tensor = getattr(step, name)
            if tensor is not None:
                wide = torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1]), torch.nan, dtype=tensor.dtype)
                wide[..., ::2] = tensor
                setattr(step, name, wide[..., ::2])
        size = step.config.v_head_size
        out = torch.full((len(wanted), 2 * step.config.num_heads, size), torch.nan, dtype=step.query.dtype)[:, ::2]
        found, _ = step.forward(out=out)
        assert found is out
        tolerance, _ = TOLERANCES[self.dtypes[0]]
        torch.testing.assert_close(out.double(), wanted, atol=tolerance, rtol=tolerance)

    def test_a_plan_can_be_updated_in_place(self) -> None:
        """After `update` it is the next step's plan."""
        config = self.config(dtype=self.dtypes[0])
        first = Step.random(self.backend, config, [1, 4], [5, 4])
        second = Step.random(self.backend, config, **MIXED)
        plan = first.plan()
        plan.update(second.batch)
        wanted, _ = second.reference()
        out = second.layer().forward(second.query, second.key, second.value, second.cache, plan)
        tolerance, _ = TOLERANCES[self.dtypes[0]]
        assert isinstance(out, torch.Tensor)
        torch.testing.assert_close(out.double(), wanted, atol=tolerance, rtol=tolerance)
