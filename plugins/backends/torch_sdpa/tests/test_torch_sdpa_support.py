"""What is declared is what runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hardpoint.attention import DTYPE_SIZE_BYTES, AttentionConfig, AttentionType
from hardpoint.errors import ConfigError
from hardpoint_torch_sdpa.backend import TorchSdpaBackend
from hardpoint_torch_sdpa.plugin import SUPPORT

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch


@st.composite
def _configs(draw: st.DrawFn) -> AttentionConfig:
    kv_heads = draw(st.integers(1, 3))
    follows_type: dict[str, Any] = draw(st.sampled_from([{}, {"causal": True}, {"causal": False}]))
    head_size = draw(st.sampled_from([1, 7, 16, 32, 40]))
    return AttentionConfig(
        head_size=head_size,
        v_head_size=draw(st.sampled_from([head_size, 3, 24])),
        num_heads=kv_heads * draw(st.sampled_from([1, 2, 5])),
        num_kv_heads=kv_heads,
        dtype=draw(st.sampled_from(["float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "int8"])),
        kv_cache_dtype=draw(st.sampled_from(["auto", "auto", *DTYPE_SIZE_BYTES])),
        block_size=draw(st.sampled_from([None, 1, 2, 5, 16])),
        attention_type=draw(st.sampled_from(list(AttentionType))),
        sliding_window=draw(st.sampled_from([None, None, 1, 4, 100])),
        sinks=draw(st.booleans()),
        alibi=draw(st.booleans()),
        soft_cap=draw(st.sampled_from([None, None, None, 20.0])),
        kv_sharing=draw(st.booleans()),
        batch_invariant=draw(st.booleans()),
        **follows_type,
    )


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=_configs(), data=st.data())
def test_what_is_accepted_constructs_and_runs(
    random_step: Callable[..., Any], config: AttentionConfig, data: st.DataObject
) -> None:
    """Whatever the declared support and the validation accept is prepared, built, and right on a random batch."""
    accepted = not SUPPORT.reasons(None, config) and not TorchSdpaBackend.validate_configuration(None, config)
    assume(accepted)
    TorchSdpaBackend.prepare(config, "cpu")
    cached = config.block_size is not None
    lens = data.draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 20)), min_size=1, max_size=5), label="lens")
    query_lens, past = [query for query, _ in lens], [before for _, before in lens]
    kv_lens = None
    if config.attention_type == AttentionType.ENCODER_DECODER:
        kv_lens = seq_lens = past
    else:
        seq_lens = [query + (before if cached else 0) for query, before in zip(query_lens, past, strict=True)]
    random_step(
        config,
        query_lens,
        seq_lens,
        kv_lens=kv_lens,
        stride_order=data.draw(st.integers(0, 2), label="stride order"),
        skip_slots=data.draw(st.booleans(), label="skip slots"),
        padding=data.draw(st.integers(0, 2), label="padding"),
        seed=data.draw(st.integers(0, 1000), label="seed"),
    ).check()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"soft_cap": 30.0}, "soft_cap=30.0; accepts none"),
        ({"dtype": "fp8"}, "dtype=float8_e4m3fn; accepts float16 or bfloat16 or float32 or float64"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(options: dict[str, Any], message: str) -> None:
    """The value asked for and what would be accepted stand in the text."""
    config = AttentionConfig(**{"head_size": 64, "num_heads": 4, "dtype": "bfloat16", **options})
    assert [reason.message for reason in SUPPORT.reasons(None, config)] == [message]


def test_the_latent_form_is_refused_on_each_of_its_fields() -> None:
    """`kind` is the descriptor's business; the latent sizes are not declared."""
    config = AttentionConfig(
        kind="mla_attention", head_size=576, num_heads=16, dtype="bfloat16", kv_lora_rank=512, qk_rope_head_dim=64
    )
    assert {reason.code for reason in SUPPORT.reasons(None, config)} >= {"kv_lora_rank", "qk_rope_head_dim"}


def test_the_cache_spec_has_two_tensors_of_the_storage_dtype() -> None:
    """Sizes follow the heads, the block and each side's head size."""
    config = AttentionConfig(
        head_size=192, v_head_size=128, num_heads=8, num_kv_heads=2, dtype="bf16", kv_cache_dtype="fp8", block_size=16
    )
    key, value = TorchSdpaBackend.kv_cache_spec(config).tensors
    assert (key.role, key.sizes, key.dtype) == ("key", (2, 16, 192), "float8_e4m3fn")
    assert (value.role, value.sizes, value.dtype) == ("value", (2, 16, 128), "float8_e4m3fn")
    assert key.stride_orders[0] == ("block", "head", "token", "content")


def test_a_cache_without_a_block_size_is_an_error() -> None:
    """The spec cannot be made up."""
    config = AttentionConfig(head_size=64, num_heads=4, dtype="bfloat16")
    with pytest.raises(ConfigError, match="a cache needs block_size"):
        TorchSdpaBackend.kv_cache_spec(config)


def test_prepare_converts_what_torch_says_of_a_missing_device() -> None:
    """A device that this torch was not built for is an environment failure, whatever torch raises."""
    if torch.xpu.is_available():
        pytest.skip("there is such a device")
    config = AttentionConfig(head_size=16, num_heads=2, dtype="float32", block_size=4)
    with pytest.raises(OSError, match=r"has no float32 on xpu") as caught:
        TorchSdpaBackend.prepare(config, "xpu")
    assert caught.value.code == "no_device"  # type: ignore[attr-defined]  # EnvironmentFailure
