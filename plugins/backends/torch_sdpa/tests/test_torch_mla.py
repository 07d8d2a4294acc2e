"""The latent form in plain torch: the tests of every backend, storage dtypes, and what is its own."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hardpoint.attention import DTYPE_SIZE_BYTES, AttentionConfig, AttentionType
from hardpoint.errors import ConfigError
from hardpoint.hookspecs import API_VERSION
from hardpoint_torch_sdpa.mla_backend import TorchMlaBackend
from hardpoint_torch_sdpa.mla_plugin import SUPPORT, plugin
from tests.attention.conformance import CACHELESS, FEATURES, LENS, MIXED, Conformance, Step

pytestmark = pytest.mark.torch


def _config(**options: Any) -> AttentionConfig:
    defaults: dict[str, Any] = {
        "kind": "mla_attention",
        "kv_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "num_heads": 4,
        "dtype": "float32",
        "block_size": 4,
    }
    given_ = defaults | options
    return AttentionConfig(head_size=given_["kv_lora_rank"] + given_["qk_rope_head_dim"], **given_)


class TestTorchMla(Conformance):
    """All features in all dtypes that compute; the latent form has one size of values."""

    backend = TorchMlaBackend
    support = SUPPORT
    dtypes = ("float32", "float64", "bfloat16", "float16")
    base: ClassVar[dict[str, Any]] = {
        "kind": "mla_attention",
        "head_size": 32,
        "kv_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "num_heads": 4,
        "block_size": 4,
    }
    cases: ClassVar = {name: case for name, case in FEATURES.items() if "v_head_size" not in case.config}


@pytest.mark.parametrize("cache", ["float64", "float32", "bfloat16", "fp8", "fp8_e5m2", "float8_e4m3fnuz", "int8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_storage_dtype_agrees_with_the_reference(dtype: str, cache: str) -> None:
    """Key and value are both what the storage holds, times the one scale of the latent."""
    config = _config(dtype=dtype, kv_cache_dtype=cache, sinks=True)
    Step.random(TorchMlaBackend, config, **MIXED, padding=2).check()


@pytest.mark.parametrize(("rank", "rope"), [(512, 64), (256, 64), (512, 0), (7, 1)])
@pytest.mark.parametrize("num_heads", [1, 16, 20])
def test_the_sizes_of_real_models_and_odd_ones(rank: int, rope: int, num_heads: int) -> None:
    """From one head to many over one latent, with and without a rotary part."""
    config = _config(kv_lora_rank=rank, qk_rope_head_dim=rope, num_heads=num_heads, dtype="bfloat16", block_size=16)
    Step.random(TorchMlaBackend, config, [1, 1, 9, 0], [40, 33, 30, 0], skip_slots=True, padding=1).check()


def test_batch_invariance_is_bit_for_bit() -> None:
    """A sequence has the same bits alone and among others."""
    config = _config(batch_invariant=True, soft_cap=3.0, num_heads=6, block_size=None)
    together = Step.random(TorchMlaBackend, config, LENS, LENS)
    out, _ = together.forward()
    first = Step.random(TorchMlaBackend, config, LENS[:1], LENS[:1])
    first.query, first.key = together.query[:3], together.key[:3] if together.key is not None else None
    assert torch.equal(first.forward()[0], out[:3])


def test_prefill_partials_merge_with_the_latents_decode() -> None:
    """Two halves of the keys, attended apart and merged through lse, are the whole."""
    from hardpoint.attention import merge_attention

    config = _config(block_size=None, attention_type="encoder_only")
    whole = Step.random(TorchMlaBackend, config, [6], [6])
    assert whole.key is not None
    wanted, _ = whole.forward()
    parts: list[torch.Tensor] = []
    for rows in (slice(0, 2), slice(2, 6)):
        step = Step.random(TorchMlaBackend, config, [6], [rows.stop - rows.start], kv_lens=[rows.stop - rows.start])
        step.query, step.key = whole.query, whole.key[rows]
        parts += step.forward()
    torch.testing.assert_close(merge_attention(*parts)[0], wanted, atol=2e-5, rtol=2e-5)


@st.composite
def _configs(draw: st.DrawFn) -> AttentionConfig:
    follows_type: dict[str, Any] = draw(st.sampled_from([{}, {"causal": True}, {"causal": False}]))
    return _config(
        kv_lora_rank=draw(st.sampled_from([1, 7, 24, 64])),
        qk_rope_head_dim=draw(st.sampled_from([0, 1, 8])),
        num_heads=draw(st.sampled_from([1, 2, 5, 16])),
        dtype=draw(st.sampled_from(["float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "int8"])),
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


@settings(deadline=None, max_examples=80)
@given(config=_configs(), data=st.data())
def test_what_is_accepted_constructs_and_runs(config: AttentionConfig, data: st.DataObject) -> None:
    """Whatever the declared support and the validation accept is prepared, built, and right on a random batch."""
    assume(not SUPPORT.reasons(None, config) and not TorchMlaBackend.validate_configuration(None, config))
    TorchMlaBackend.prepare(config, "cpu")
    cached = config.block_size is not None
    lens = data.draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 20)), min_size=1, max_size=5), label="lens")
    query_lens, past = [query for query, _ in lens], [before for _, before in lens]
    kv_lens = None
    if config.attention_type == AttentionType.ENCODER_DECODER:
        kv_lens = seq_lens = past
    else:
        seq_lens = [query + (before if cached else 0) for query, before in zip(query_lens, past, strict=True)]
    Step.random(
        TorchMlaBackend,
        config,
        query_lens,
        seq_lens,
        kv_lens=kv_lens,
        skip_slots=data.draw(st.booleans(), label="skip slots"),
        padding=data.draw(st.integers(0, 2), label="padding"),
        seed=data.draw(st.integers(0, 1000), label="seed"),
    ).check()


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({}, {"value_scale": 0.5}, "value_scale=0.5: the latent is stored with key_scale"),
        ({}, {"key_scale": 0.5}, "key_scale=0.5: a cache of float32 has no scale"),
        ({"kv_cache_dtype": "fp8"}, {"key_scale": -1.0}, "key_scale=-1.0: must be positive"),
        ({"sinks": True}, {}, "sinks missing"),
    ],
)
def test_a_layer_is_refused_for_arguments_that_do_not_fit(
    options: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    """The message names the argument."""
    with pytest.raises(ConfigError, match=message):
        TorchMlaBackend.create_layer(_config(**options), scale=1.0, device="cpu", **arguments)


def test_the_dense_form_is_refused() -> None:
    """By the kind, which the core compares, and by the class."""
    config = AttentionConfig(head_size=32, num_heads=4, dtype="float32")
    with pytest.raises(ConfigError, match="torch_mla is for the latent form"):
        TorchMlaBackend.create_layer(config, scale=1.0, device="cpu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value": torch.zeros(5, 1, 24)}, "the latent form has no value"),
        ({"key": torch.zeros(5, 24)}, r"key of shape \(5, 24\) .*: expected \(at least 5, 32\)"),
        ({"key": torch.zeros(5, 1, 32)}, r"key of shape \(5, 1, 32\)"),
        ({"cache": (torch.zeros(4, 4, 32),) * 2}, "a cache of 2 tensors: expected latent"),
        ({"cache": (torch.zeros(4, 1, 4, 32),)}, r"latent cache of shape \(4, 1, 4, 32\) .*expected \(blocks, 4, 32\)"),
        ({"cache": (torch.zeros(4, 8, 32),)}, r"latent cache of shape \(4, 8, 32\) .*expected \(blocks, 4, 32\)"),
        ({"key": None, "cache": None}, "neither new keys nor a cache to read"),
    ],
)
def test_a_forward_is_refused_for_tensors_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    """The message names the tensor, its shape and what was expected."""
    step = Step.random(TorchMlaBackend, _config(), [1, 4], [1, 4])
    for name, tensor in changes.items():
        setattr(step, name, tensor)
    with pytest.raises(ConfigError, match=message):
        step.forward()


def test_a_cache_without_a_block_size_is_an_error() -> None:
    """The spec cannot be made up."""
    with pytest.raises(ConfigError, match="a cache needs block_size"):
        TorchMlaBackend.kv_cache_spec(_config(block_size=None))


def test_an_encoder_of_latents_runs_without_a_cache() -> None:
    """Neighbours of equal length are one call, with the keys as values."""
    Step.random(TorchMlaBackend, _config(block_size=None, attention_type="encoder"), **CACHELESS).check()


def test_the_descriptor_is_light_and_of_the_latent_kind() -> None:
    """Listing it, and asking its declared support, imports no torch."""
    spec = plugin.hardpoint_backend()
    assert (spec.api, spec.kind, spec.platforms) == (API_VERSION, "mla_attention", ("torch-device",))
    assert (spec.target, spec.support) == ("hardpoint_torch_sdpa.mla_backend:TorchMlaBackend", SUPPORT)
    program = """
import sys
from hardpoint_torch_sdpa.mla_plugin import plugin
plugin.hardpoint_backend()
assert not {"torch", "numpy"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
