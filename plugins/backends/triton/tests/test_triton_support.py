"""What is declared is what runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hardpoint import DeviceCapability
from hardpoint.attention import DTYPE_SIZE_BYTES, AttentionConfig, AttentionType
from hardpoint.errors import ConfigError
from hardpoint_triton.backend import TritonAttentionBackend, TritonMlaBackend
from hardpoint_triton.plugin import LATENT_SUPPORT, SUPPORT
from tests.attention.conformance import Step

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("interpreter")]

CPU = DeviceCapability(runtime="cpu", arch="x86-64-v3")
_SUPPRESSED = [HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much, HealthCheck.too_slow]


@st.composite
def _configs(draw: st.DrawFn) -> AttentionConfig:
    kv_heads = draw(st.integers(1, 2))
    follows_type: dict[str, Any] = draw(st.sampled_from([{}, {"causal": True}, {"causal": False}]))
    if draw(st.booleans()):
        head_size = draw(st.sampled_from([1, 7, 16, 40, 80, 264]))
        sizes: dict[str, Any] = {"head_size": head_size, "v_head_size": draw(st.sampled_from([head_size, 3, 24]))}
    else:
        rank, rope = draw(st.sampled_from([(16, 8), (20, 0), (33, 7), (520, 8)]))
        sizes = {"kind": "mla_attention", "head_size": rank + rope, "kv_lora_rank": rank, "qk_rope_head_dim": rope}
        kv_heads = 1
    return AttentionConfig(
        **sizes,
        num_heads=kv_heads * draw(st.sampled_from([1, 2, 5, 18])),
        num_kv_heads=kv_heads,
        dtype=draw(st.sampled_from(["float32", "bfloat16", "float16", "float64"])),
        kv_cache_dtype=draw(st.sampled_from(["auto", "auto", *DTYPE_SIZE_BYTES])),
        block_size=draw(st.sampled_from([None, 1, 2, 5, 16])),
        attention_type=draw(st.sampled_from(list(AttentionType))),
        sliding_window=draw(st.sampled_from([None, None, 1, 4, 100])),
        sinks=draw(st.booleans()),
        alibi=draw(st.booleans()),
        soft_cap=draw(st.sampled_from([None, None, 2.0])),
        kv_sharing=draw(st.booleans()),
        batch_invariant=draw(st.booleans()),
        **follows_type,
    )


@settings(deadline=None, max_examples=25, suppress_health_check=_SUPPRESSED)
@given(config=_configs(), data=st.data())
def test_what_is_accepted_constructs_and_runs(config: AttentionConfig, data: st.DataObject) -> None:
    """Whatever the declared support and the validation accept is prepared, built, and right on a random batch."""
    latent = config.kind == "mla_attention"
    support, backend = (LATENT_SUPPORT, TritonMlaBackend) if latent else (SUPPORT, TritonAttentionBackend)
    assume(not support.reasons(CPU, config) and not backend.validate_configuration(CPU, config))
    backend.prepare(config, "cpu")
    cached = config.block_size is not None
    lens = data.draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 20)), min_size=1, max_size=4), label="lens")
    query_lens, past = [query for query, _ in lens], [before for _, before in lens]
    kv_lens = None
    if config.attention_type == AttentionType.ENCODER_DECODER:
        kv_lens = seq_lens = past
    else:
        seq_lens = [query + (before if cached else 0) for query, before in zip(query_lens, past, strict=True)]
    Step.random(
        backend,
        config,
        query_lens,
        seq_lens,
        kv_lens=kv_lens,
        stride_order=data.draw(st.integers(0, 2), label="stride order"),
        skip_slots=data.draw(st.booleans(), label="skip slots"),
        padding=data.draw(st.integers(0, 2), label="padding"),
        seed=data.draw(st.integers(0, 1000), label="seed"),
    ).check(plain=False)


def test_the_dense_cache_has_two_tensors_of_the_storage_dtype() -> None:
    """Sizes follow the heads, the block and each side's head size."""
    config = AttentionConfig(
        head_size=192, v_head_size=128, num_heads=8, num_kv_heads=2, dtype="bf16", kv_cache_dtype="fp8", block_size=16
    )
    key, value = TritonAttentionBackend.kv_cache_spec(config).tensors
    assert (key.role, key.sizes, key.dtype) == ("key", (2, 16, 192), "float8_e4m3fn")
    assert (value.role, value.sizes, value.dtype) == ("value", (2, 16, 128), "float8_e4m3fn")
    assert key.stride_orders[0] == ("block", "head", "token", "content")


def test_the_latent_cache_has_one() -> None:
    """A token's latent and its rotary part lie side by side."""
    config = AttentionConfig(
        kind="mla_attention", head_size=24, num_heads=4, kv_lora_rank=16, qk_rope_head_dim=8, dtype="bf16", block_size=4
    )
    (latent,) = TritonMlaBackend.kv_cache_spec(config).tensors
    assert (latent.role, latent.axes, latent.sizes) == ("latent", ("block", "token", "content"), (4, 24))


@pytest.mark.parametrize("backend", [TritonAttentionBackend, TritonMlaBackend])
def test_a_cache_without_a_block_size_is_an_error(backend: type[TritonAttentionBackend | TritonMlaBackend]) -> None:
    """The spec cannot be made up."""
    config = AttentionConfig(head_size=64, num_heads=4, dtype="bfloat16")
    with pytest.raises(ConfigError, match="a cache needs block_size"):
        backend.kv_cache_spec(config)


def test_a_slot_outside_the_cache_is_an_error(dense_step: Callable[..., Any]) -> None:
    """Nothing is written to a wrong place in silence."""
    step = dense_step(AttentionConfig(head_size=16, num_heads=2, dtype="float32", block_size=4), [1, 4], [1, 4])
    step.batch.slot_mapping[0] = 10_000
    with pytest.raises(IndexError, match="slot 10000 is out of bounds for a cache of 20"):
        step.forward()
