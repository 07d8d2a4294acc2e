"""What a selection has accepted elsewhere and a constructor then refused: here the declared support says it.

A field of the request that such a selection did not have (ALiBi, soft cap, shared caches) is asked of both backends.
"""

from __future__ import annotations

from typing import Any

import pytest

from hardpoint.attention import AttentionConfig
from hardpoint_torch_sdpa.backend import TorchSdpaBackend
from hardpoint_torch_sdpa.mla_backend import TorchMlaBackend
from hardpoint_torch_sdpa.mla_plugin import SUPPORT as MLA_SUPPORT
from hardpoint_torch_sdpa.plugin import SUPPORT
from tests.attention.conformance import CACHELESS, MIXED, Step

pytestmark = pytest.mark.torch

LATENT: dict[str, Any] = {
    "kind": "mla_attention",
    "head_size": 32,
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "num_heads": 4,
    "dtype": "bfloat16",
    "block_size": 16,
}


@pytest.mark.parametrize("cache", ["fp8", "fp8_e5m2", "bfloat16"])
def test_eight_and_sixteen_bit_caches_are_taken_and_run_whatever_the_device(cache: str) -> None:
    """They are stored and widened by torch, so no capability is asked for, and none turns out to be needed."""
    config = AttentionConfig(head_size=16, num_heads=2, dtype="float32", kv_cache_dtype=cache, block_size=16)
    assert SUPPORT.reasons(None, config) == ()
    Step.random(TorchSdpaBackend, config, **MIXED).check()


@pytest.mark.parametrize("cache", ["fp8", "int8"])
def test_an_encoder_with_a_quantised_cache_dtype_runs(cache: str) -> None:
    """It has no cache, so the storage dtype has nothing to refuse in the forward."""
    config = AttentionConfig(head_size=16, num_heads=2, dtype="float32", kv_cache_dtype=cache, attention_type="encoder")
    assert SUPPORT.reasons(None, config) == ()
    Step.random(TorchSdpaBackend, config, **CACHELESS).check()


@pytest.mark.parametrize("head_size", [80, 112])
def test_a_quantised_cache_of_head_sizes_that_are_multiples_of_sixteen_only(head_size: int) -> None:
    """No vector width limits the head size."""
    config = AttentionConfig(head_size=head_size, num_heads=2, dtype="float32", kv_cache_dtype="fp8", block_size=32)
    assert SUPPORT.reasons(None, config) == ()
    Step.random(TorchSdpaBackend, config, [1, 3], [40, 3]).check()


def test_dense_attention_refuses_the_soft_cap_before_anything_is_imported() -> None:
    """It is a field of the request, and the reason carries its value."""
    config = AttentionConfig(head_size=16, num_heads=2, dtype="float32", soft_cap=30.0)
    assert [str(reason) for reason in SUPPORT.reasons(None, config)] == ["soft_cap=30.0; accepts none"]


@pytest.mark.parametrize("options", [{"alibi": True}, {"kv_sharing": True}, {"sliding_window": 5}, {"sinks": True}])
def test_dense_attention_takes_and_runs_the_fields_that_others_lack(options: dict[str, Any]) -> None:
    """ALiBi, a shared cache, layers with windows of their own."""
    config = AttentionConfig(head_size=16, num_heads=2, dtype="float32", block_size=16, **options)
    assert SUPPORT.reasons(None, config) == ()
    Step.random(TorchSdpaBackend, config, **MIXED).check()


@pytest.mark.parametrize(
    "options", [{"alibi": True}, {"soft_cap": 3.0}, {"sliding_window": 5}, {"kv_sharing": True}, {"sinks": True}]
)
def test_the_latent_form_takes_and_runs_them_too(options: dict[str, Any]) -> None:
    """Nothing is left for the constructor to refuse."""
    config = AttentionConfig(**LATENT, **options)
    assert MLA_SUPPORT.reasons(None, config) == ()
    Step.random(TorchMlaBackend, config, **MIXED).check()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_latent_form_is_not_of_one_dtype(dtype: str) -> None:
    """A layer of another dtype than bfloat16 is asked about as such, and runs."""
    config = AttentionConfig(**{**LATENT, "dtype": dtype})
    assert MLA_SUPPORT.reasons(None, config) == ()
    Step.random(TorchMlaBackend, config, **MIXED).check()


@pytest.mark.parametrize("cache", ["bfloat16", "float16"])
def test_the_latent_forms_storage_dtype_is_declared_by_the_class_that_stores_it(cache: str) -> None:
    """Platform and backend cannot differ in it: the declared support is the only list."""
    config = AttentionConfig(**{**LATENT, "dtype": "float32", "kv_cache_dtype": cache})
    assert MLA_SUPPORT.reasons(None, config) == ()
    Step.random(TorchMlaBackend, config, **MIXED).check()


def test_an_eight_bit_layer_is_refused_by_both() -> None:
    """The cache may be of eight bits, the computation may not."""
    for support, options in ((SUPPORT, {"head_size": 16, "num_heads": 2}), (MLA_SUPPORT, LATENT)):
        (reason,) = support.reasons(None, AttentionConfig(**{**options, "dtype": "fp8"}))
        assert str(reason).startswith("dtype=float8_e4m3fn; accepts float16 or bfloat16")
