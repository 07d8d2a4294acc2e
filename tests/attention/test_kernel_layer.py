"""What every layer around a kernel library has in common, with a library of the test's own: the reference itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hardpoint.attention import AttentionBackend, AttentionConfig, CacheTensorSpec, KVCacheSpec, reference_attention
from hardpoint.attention._kernel_layer import KernelLayer, KernelPlan
from hardpoint.attention._kernel_lse import log_denominator
from hardpoint.attention._kernel_smallest import run_smallest
from hardpoint.errors import ConfigError
from tests.kernel_steps import KernelStep, check_smallest

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from hardpoint.attention import AttentionBatch
else:
    torch = pytest.importorskip("torch")

AXES = ("block", "token", "head", "content")


class Layer(KernelLayer):
    """A library that gives nonsense for rows that see nothing, and an lse from the second multiplication."""

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: Sequence[torch.Tensor] | None,
        plan: KernelPlan,
        *,
        return_lse: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        options: dict[str, Any] = {"scale": self.scale, "sinks": self.sinks, "alibi_slopes": self.slopes}
        if self.is_quantised:
            options |= {"key_scale": self.key_scale, "value_scale": self.value_scale}
        new = (None, None) if kv_cache is not None else (key, value)
        out, _ = reference_attention(self.config, plan.batch, query, *new, kv_cache, spec=self.spec, **options)
        for rows in plan.blank:
            out[rows] = 1e9
        return out.to(query.dtype), log_denominator(self, plan, query, key, kv_cache) if return_lse else None


class Backend(AttentionBackend):
    @classmethod
    def kv_cache_spec(cls, config: AttentionConfig) -> KVCacheSpec:
        assert config.block_size is not None
        tensors = [
            CacheTensorSpec(
                role=role,
                axes=AXES,
                sizes=(config.block_size, config.num_kv_heads, size),
                dtype=config.cache_dtype,
                stride_orders=(AXES, ("block", "head", "token", "content")),
            )
            for role, size in (("key", config.head_size), ("value", config.v_head_size))
        ]
        return KVCacheSpec(tensors=tuple(tensors))

    @classmethod
    def create_layer(cls, config: AttentionConfig, **arguments: Any) -> Layer:
        spec = None if config.block_size is None else cls.kv_cache_spec(config)
        names = ("sinks", "alibi_slopes", "key_scale", "value_scale")
        return Layer(config, spec, **{**dict.fromkeys(names), **arguments})

    @classmethod
    def plan(cls, config: AttentionConfig, batch: AttentionBatch) -> KernelPlan:
        return KernelPlan(config, batch)

    @classmethod
    def prepare(cls, config: AttentionConfig, device: torch.device | str) -> None:
        run_smallest(cls, config, device)


def config(**changes: Any) -> AttentionConfig:
    """A small decoder."""
    return AttentionConfig(
        **{"head_size": 8, "num_heads": 4, "num_kv_heads": 2, "dtype": "float32", "block_size": 4, **changes}
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sinks": True, "sliding_window": 3},
        {"alibi": True, "soft_cap": 2.0},
        {"causal": False, "sliding_window": 2, "v_head_size": 4},
        {"kv_cache_dtype": "fp8"},
        {"kv_cache_dtype": "int8", "alibi": True},
        {"kv_sharing": True},
        {"block_size": None, "attention_type": "encoder_only"},
        {"attention_type": "encoder_decoder"},
    ],
)
def test_results_lse_and_new_rows_are_the_references(changes: dict[str, Any]) -> None:
    """With padding, slots of -1, empty sequences, garbage in the table; the lse from the second multiplication."""
    asked = config(**changes)
    check_smallest(Backend, asked, stride_order=1)
    lengths = ([1, 3, 0, 6], [9, 3, 2, 8]) if asked.block_size else ([1, 3, 0, 6], [1, 3, 0, 6])
    crossed = lengths[1] if asked.attention_type == "encoder_decoder" else None
    KernelStep.random(Backend, asked, *lengths, kv_lens=crossed, padding=2, skip_slots=True).check()


@pytest.mark.parametrize("changes", [{}, {"sinks": True}, {"causal": False, "sliding_window": 2}])
def test_rows_that_see_nothing(changes: dict[str, Any]) -> None:
    """Zero, with the sink or minus infinity as lse, whatever the library gives for them."""
    KernelStep.random(Backend, config(**changes), [5, 2, 1], [2, 0, 4], new_keys=False).check()


def test_the_second_multiplication_goes_through_long_queries_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scratch memory is bounded by rows."""
    import hardpoint.attention._kernel_lse

    monkeypatch.setattr(hardpoint.attention._kernel_lse, "_ROWS", 3)
    KernelStep.random(Backend, config(alibi=True, sliding_window=4), [8, 1], [11, 5]).check()


def test_under_torch_compile_it_is_one_operator() -> None:
    """A whole graph with no break, which gives and refuses what eager code does, for the next step's plan too."""
    step = KernelStep.random(Backend, config(), [2, 1], [5, 3])
    layer = step.layer()

    def forward(query: torch.Tensor, plan: KernelPlan) -> Any:
        return layer.forward(query * 1.0, step.key, step.value, step.cache, plan, return_lse=True)

    compiled = torch.compile(forward, fullgraph=True, backend="eager")
    for query in (step.query, step.query * 2):
        plan = Backend.plan(step.config, step.batch)
        for found, wanted in zip(compiled(query, plan), forward(query, plan), strict=True):
            torch.testing.assert_close(found, wanted)
    other = Backend.plan(config(soft_cap=1.0), step.batch)
    with pytest.raises(ConfigError, match="the plan was made for another config"):
        compiled(step.query, other)


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({}, {"sinks": torch.zeros(4)}, "sinks given: the config says sinks=False"),
        ({"alibi": True}, {}, "alibi_slopes missing: the config says alibi=True"),
        ({"sinks": True}, {"sinks": torch.zeros(3)}, r"sinks of shape \(3,\)"),
        ({"sinks": True}, {"sinks": torch.zeros(4, dtype=torch.int64)}, "expected .* floating point"),
        ({}, {"key_scale": 0.5}, "a cache of float32 has no scale"),
        ({"kv_cache_dtype": "fp8"}, {"value_scale": 0.0}, "must be positive"),
    ],
)
def test_arguments_of_a_layer(changes: dict[str, Any], arguments: dict[str, Any], message: str) -> None:
    """What the config does not ask for, or lacks, is an error with its name."""
    with pytest.raises(ConfigError, match=message):
        Backend.create_layer(config(**changes), scale=1.0, device="cpu", **arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {"query": s.query.double()}, "query of shape .* and torch.float64"),
        (lambda s: {"query": s.query[:1]}, "query of shape"),
        (lambda s: {"key": s.key[:, :1]}, "key of shape"),
        (lambda s: {"value": None}, "a key without a value"),
        (lambda s: {"key": None}, "a value without a key"),
        (lambda s: {"key": None, "value": None, "kv_cache": None}, "neither new keys nor a cache to read"),
        (lambda s: {"kv_cache": None}, "new keys of 5, and no cache for the rest"),
        (lambda s: {"kv_cache": s.cache[:1]}, "a cache of 1 tensors"),
        (lambda s: {"kv_cache": (s.cache[0].half(), s.cache[1])}, "key cache of shape .* and torch.float16"),
        (lambda s: {"kv_cache": (s.cache[0], s.cache[1][:, :2])}, "value cache of shape"),
        (
            lambda s: {"kv_cache": (s.cache[0].transpose(1, 3).contiguous().transpose(1, 3), s.cache[1])},
            "its memory order is none of",
        ),
        (lambda s: {"out": s.query.new_empty(1, 4, 8)}, "out of shape"),
        (lambda s: {"plan": Backend.plan(config(soft_cap=1.0), s.batch)}, "the plan was made for another config"),
    ],
)
def test_tensors_that_do_not_fit(change: Any, message: str) -> None:
    """Each is an error with its name, before anything is written."""
    step = KernelStep.random(Backend, config(), [2, 1], [5, 3])
    given = {"query": step.query, "key": step.key, "value": step.value, "kv_cache": step.cache, "plan": step.plan()}
    with pytest.raises(ConfigError, match=message):
        step.layer().forward(**{**given, **change(step)})


def test_batches_that_do_not_fit() -> None:
    """A table that is too narrow or missing, too few slots, a foreign plan, a cache that the config does not have."""
    step = KernelStep.random(Backend, config(), [2, 1], [5, 3])
    from dataclasses import replace

    assert step.batch.block_table is not None
    for changes, message in (
        ({"block_table": step.batch.block_table[:, :1]}, "5 keys need 2 blocks of 4, its block_table has 1"),
        ({"block_table": None}, "a cache needs batch.block_table"),
        ({"slot_mapping": None}, "3 new keys, slot_mapping has none"),
    ):
        plan = Backend.plan(step.config, replace(step.batch, **changes))
        with pytest.raises(ConfigError, match=message):
            step.layer().forward(step.query, step.key, step.value, step.cache, plan)
    with pytest.raises(TypeError, match="the plan is a str: expected a KernelPlan"):
        step.layer().forward(step.query, step.key, step.value, step.cache, "plan")  # type: ignore[arg-type]  # a mistake
    without = Backend.create_layer(config(block_size=None), scale=1.0, device="cpu")
    plan = Backend.plan(config(block_size=None), step.batch)
    with pytest.raises(ConfigError, match="a cache for a layer without block_size"):
        without.forward(step.query, step.key, step.value, step.cache, plan)


def test_the_latent_form_has_no_value() -> None:
    """It is part of the latent."""
    latent = AttentionConfig(
        kind="mla_attention", head_size=12, num_heads=2, dtype="float32", kv_lora_rank=8, qk_rope_head_dim=4
    )
    step = KernelStep.random(Backend, latent, [2], [2])
    with pytest.raises(ConfigError, match="the latent form has no value"):
        step.layer().forward(step.query, step.key, step.key, None, step.plan())


class LibraryError(Exception):
    """A compiler's own, as Triton's and CUTLASS's are."""


def test_what_a_library_lacks_is_met_in_prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own classes, its NotImplementedError and torch's failures are the environment's; other types are bugs."""

    def failing(error: BaseException, name: str) -> None:
        code = compile("def attend(*arguments, **more): raise error", "<library>", "exec")
        space: dict[str, Any] = {"error": error, "__name__": name}
        exec(code, space)  # a function of a module that is not Hardpoint's
        monkeypatch.setattr(Layer, "attend", space["attend"])

    errors = [RuntimeError("x"), AssertionError("x"), ValueError("x"), LibraryError("x"), NotImplementedError("x")]
    for error in errors:
        failing(error, "library.kernels")
        with pytest.raises(OSError, match=rf"does not run on cpu .*{type(error).__name__}: x") as caught:
            Backend.prepare(config(), "cpu")
        assert caught.value.__cause__ is error
    for bug in (TypeError("x"), KeyError("x"), AttributeError("x"), RecursionError("x"), PermissionError("x")):
        failing(bug, "library.kernels")
        with pytest.raises(type(bug)) as found:
            Backend.prepare(config(), "cpu")
        assert found.value is bug
    failing(NotImplementedError("x"), "hardpoint_some.backend")
    with pytest.raises(NotImplementedError):
        Backend.prepare(config(), "cpu")


@pytest.mark.parametrize("block_size", [1, 4, None])
def test_prepare_runs_steps_of_both_kinds(monkeypatch: pytest.MonkeyPatch, block_size: int | None) -> None:
    """Libraries decode with kernels of their own: a step of one query per sequence is run where there is a cache."""
    seen = []
    attend = Layer.attend

    def recording(self: Layer, *arguments: Any, **more: Any) -> Any:
        seen.append(arguments[4].batch.max_query_len)
        return attend(self, *arguments, **more)

    monkeypatch.setattr(Layer, "attend", recording)
    Backend.prepare(config(block_size=block_size), "cpu")
    assert seen == ([2] if block_size is None else [2, 1])
