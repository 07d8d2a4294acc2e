"""What is declared is what runs, and what cannot be done is refused with its value, by device."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hardpoint import DeviceCapability
from hardpoint.attention import AttentionConfig, AttentionType
from hardpoint.hookspecs import API_VERSION
from hardpoint_flex_attention.plugin import SUPPORT, plugin

CPU = DeviceCapability(runtime="cpu", arch="x86-64-v3", features=frozenset({"avx2"}))
OLD_CPU = DeviceCapability(runtime="cpu", arch="x86-64-v2")
ARM = DeviceCapability(runtime="cpu", arch="armv8-a", features=frozenset({"asimd"}))


def _cuda(major: int, minor: int) -> DeviceCapability:
    return DeviceCapability(runtime="cuda", arch=f"sm_{major}{minor}", major=major, minor=minor)


def _reasons(capability: DeviceCapability, **options: Any) -> list[str]:
    defaults: dict[str, Any] = {"head_size": 64, "num_heads": 8, "dtype": "bfloat16", "block_size": 16}
    return [str(reason) for reason in SUPPORT.reasons(capability, AttentionConfig(**defaults | options))]


@pytest.mark.parametrize(
    ("capability", "options", "reasons"),
    [
        (CPU, {}, []),
        (CPU, {"head_size": 5, "block_size": 7}, []),
        (CPU, {"dtype": "float64"}, ["dtype=float64; accepts float32 or bfloat16 or float16"]),
        (CPU, {"kv_cache_dtype": "fp8"}, ["kv_cache_dtype=float8_e4m3fn; accepts auto"]),
        (CPU, {"batch_invariant": True}, ["batch_invariant=True; accepts False"]),
        (OLD_CPU, {}, ["the device lacks avx2"]),
        (ARM, {}, ["the device lacks avx2"]),
        (_cuda(8, 0), {}, []),
        (_cuda(8, 0), {"block_size": 24}, ["block_size=24; accepts a multiple of 16 (or none)"]),
        (_cuda(8, 0), {"head_size": 8}, ["head_size=8; accepts at least 16"]),
        (_cuda(7, 5), {"dtype": "float16"}, []),
        (_cuda(6, 1), {"dtype": "float16"}, ["capability 6.1; needs >= 8.0"]),
        (DeviceCapability(runtime="rocm", arch="gfx942"), {}, []),
        (DeviceCapability(runtime="neuron", arch="trn2"), {}, ["runtime neuron; runs on cpu"]),
    ],
    ids=str,
)
def test_what_each_device_takes(capability: DeviceCapability, options: dict[str, Any], reasons: list[str]) -> None:
    """All reasons, each with the value and what would be accepted."""
    assert _reasons(capability, **options)[: max(1, len(reasons))] == reasons


@pytest.mark.parametrize("options", [{"alibi": True}, {"soft_cap": 30.0}, {"kv_sharing": True}])
def test_alibi_soft_cap_and_shared_caches_are_fields_that_are_taken(options: dict[str, Any]) -> None:
    """Elsewhere a selection did not know of them, and a constructor refused."""
    for capability in (CPU, _cuda(9, 0)):
        assert _reasons(capability, **options) == []


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.parametrize(
    "options", [{"kv_sharing": True}, pytest.param({"alibi": True, "soft_cap": 3.0}, marks=pytest.mark.long)]
)
def test_and_they_construct_and_run(base: dict[str, Any], options: dict[str, Any]) -> None:
    """What is accepted is built, and right on a mixed batch."""
    from hardpoint_flex_attention.backend import FlexAttentionBackend
    from tests.attention.conformance import MIXED, Step

    Step.random(FlexAttentionBackend, AttentionConfig(**base, **options), **MIXED).check()


@st.composite
def _configs(draw: st.DrawFn) -> AttentionConfig:
    """Over few families: a compilation takes seconds."""
    follows_type: dict[str, Any] = draw(st.sampled_from([{}, {"causal": True}, {"causal": False}]))
    return AttentionConfig(
        head_size=16,
        num_heads=4,
        num_kv_heads=2,
        dtype=draw(st.sampled_from(["float32", "float32", "float64"])),
        kv_cache_dtype=draw(st.sampled_from(["auto", "auto", "fp8", "bfloat16"])),
        block_size=draw(st.sampled_from([None, 16])),
        attention_type=draw(st.sampled_from(list(AttentionType))),
        sliding_window=draw(st.sampled_from([None, None, 1, 4, 100])),
        sinks=draw(st.booleans()),
        kv_sharing=draw(st.booleans()),
        batch_invariant=draw(st.sampled_from([False, False, True])),
        **follows_type,
    )


@pytest.mark.torch
@pytest.mark.compiler
@settings(deadline=None, max_examples=60)
@given(config=_configs(), data=st.data())
def test_what_is_accepted_constructs_and_runs(config: AttentionConfig, data: st.DataObject) -> None:
    """Whatever is accepted is prepared, built, and right on a random batch."""
    from hardpoint_flex_attention.backend import FlexAttentionBackend
    from tests.attention.conformance import Step

    assume(not SUPPORT.reasons(CPU, config) and not FlexAttentionBackend.validate_configuration(CPU, config))
    FlexAttentionBackend.prepare(config, "cpu")
    lens = data.draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 40)), min_size=1, max_size=5), label="lens")
    query_lens, past = [query for query, _ in lens], [before for _, before in lens]
    kv_lens = None
    if config.attention_type == AttentionType.ENCODER_DECODER:
        kv_lens = seq_lens = past
    else:
        cached = config.block_size is not None
        seq_lens = [query + (before if cached else 0) for query, before in zip(query_lens, past, strict=True)]
    Step.random(
        FlexAttentionBackend,
        config,
        query_lens,
        seq_lens,
        kv_lens=kv_lens,
        skip_slots=data.draw(st.booleans(), label="skip slots"),
        padding=data.draw(st.integers(0, 2), label="padding"),
        poison=data.draw(st.sampled_from([float("nan"), 0.0]), label="poison"),
        seed=data.draw(st.integers(0, 1000), label="seed"),
    ).check()


def test_the_light_module_imports_no_torch() -> None:
    """Listing the backend, and asking its declared support, costs no torch."""
    program = """
import sys
from hardpoint_flex_attention.plugin import plugin
plugin.hardpoint_backend()
assert not {"torch", "numpy"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_descriptor_names_what_the_core_needs() -> None:
    """Any device for which torch compiles, from the torch on that was read."""
    spec = plugin.hardpoint_backend()
    assert (spec.api, spec.kind, spec.platforms) == (API_VERSION, "attention", ("torch-device",))
    assert spec.torch_features == ("aten", "compile")
    assert spec.requires == ("torch>=2.13",)
    assert spec.target == "hardpoint_flex_attention.backend:FlexAttentionBackend"
