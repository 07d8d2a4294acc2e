"""What is declared is what runs; what is refused says why."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hardpoint import DeviceCapability
from hardpoint.attention import AttentionConfig
from hardpoint.hookspecs import API_VERSION
from hardpoint_flashinfer._support import DENSE, LATENT
from hardpoint_flashinfer.plugin import dense, latent
from tests.kernel_configs import dense_configs, latent_configs
from tests.kernel_steps import check_smallest

if TYPE_CHECKING:
    from tests.kernel_library import Library

SIZES = {"kind": "mla_attention", "head_size": 576, "kv_lora_rank": 512, "qk_rope_head_dim": 64}


def config(**changes: Any) -> AttentionConfig:
    """A plain decoder."""
    return AttentionConfig(**{"head_size": 128, "num_heads": 8, "dtype": "bfloat16", "block_size": 16, **changes})


def test_the_light_module_imports_no_torch() -> None:
    """Listing the backends, and asking their declared support, imports no heavy module."""
    program = """
import sys
from hardpoint import DeviceCapability
from hardpoint.attention import AttentionConfig
from hardpoint_flashinfer.plugin import dense, latent
config = AttentionConfig(head_size=64, num_heads=4, dtype="bf16", block_size=16)
assert dense.hardpoint_backend().support.reasons(DeviceCapability.parse("9.0"), config) == ()
latent.hardpoint_backend()
assert not {"torch", "numpy", "flashinfer"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_descriptors() -> None:
    """Each backend is a plugin object of its own, for CUDA, with the library required by its version."""
    for plugin, kind, target in (
        (dense, "attention", "hardpoint_flashinfer.backend:FlashInferBackend"),
        (latent, "mla_attention", "hardpoint_flashinfer.mla:FlashInferMlaBackend"),
    ):
        spec = plugin.hardpoint_backend()
        assert (spec.api, spec.kind, spec.platforms, spec.target) == (API_VERSION, kind, ("cuda",), target)
        assert spec.requires == ("torch>=2.5", "flashinfer-python>=0.7.1")
        assert spec.kernel_architectures == ("sm_8*", "sm_9*", "sm_10*", "sm_11*", "sm_12*")


@pytest.mark.parametrize(
    ("version", "changes", "messages"),
    [
        ((7, 5), {}, ["capability 7.5; runs on 8.x or 9.x or 10.x or 11.x or 12.x"]),
        ((11, 0), {}, []),
        ((9, 0), {"head_size": 96}, ["head_size=96; accepts 64 or 128 or 256 or 512"]),
        ((9, 0), {"sinks": True}, ["sinks=True; accepts False"]),
        ((9, 0), {"alibi": True}, ["alibi=True; accepts False"]),
        ((9, 0), {"block_size": None}, ["block_size=None; accepts any positive number"]),
        ((9, 0), {"attention_type": "encoder_only"}, ["attention_type=encoder_only; accepts decoder"]),
        ((9, 0), {"causal": False, "sliding_window": 8}, ["causal=False; accepts the attention type's own"]),
        (
            (8, 0),
            {"dtype": "float32", "kv_cache_dtype": "int8"},
            [
                "dtype=float32; accepts float16 or bfloat16",
                "kv_cache_dtype=int8; accepts auto or float8_e4m3fn or float8_e5m2",
            ],
        ),
        ((9, 0), {**SIZES, "num_heads": 5}, ["num_heads=5; accepts 1 or 2 or 4 or 8 or 16 or 32 or 64 or 128"]),
        ((9, 0), {**SIZES, "soft_cap": 20.0}, ["soft_cap=20.0; accepts none"]),
        ((9, 0), {**SIZES, "sliding_window": 20}, ["sliding_window=20; accepts none"]),
        ((8, 0), {**SIZES, "kv_cache_dtype": "fp8"}, ["kv_cache_dtype=float8_e4m3fn; accepts auto"]),
        ((9, 0), {**SIZES, "head_size": 512, "qk_rope_head_dim": 0}, None),
    ],
)
def test_all_reasons_at_once(version: tuple[int, int], changes: dict[str, Any], messages: list[str] | None) -> None:
    """Each with the value asked for and what would be accepted."""
    asked = config(**changes)
    support = LATENT if asked.kind == "mla_attention" else DENSE
    found = [reason.message for reason in support.reasons(DeviceCapability.parse(version), asked)]
    if messages is None:
        assert found == ["head_size=512; accepts 320 or 576", "qk_rope_head_dim=0; accepts 64"]
    else:
        assert found == messages


@pytest.mark.torch
@settings(
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(data=st.data())
def test_what_is_accepted_constructs_and_runs(flashinfer: Library, data: st.DataObject) -> None:
    """Whatever declared support and validation accept is prepared, built, and right on the smallest batch."""
    from hardpoint_flashinfer.backend import FlashInferBackend
    from hardpoint_flashinfer.mla import FlashInferMlaBackend

    capability = DeviceCapability.parse(data.draw(st.sampled_from(["8.0", "8.9", "9.0", "10.3", "12.0"])))
    for support, backend, configs in (
        (DENSE, FlashInferBackend, dense_configs(head_sizes=(64, 128))),
        (LATENT, FlashInferMlaBackend, latent_configs(num_heads=(2, 8))),
    ):
        asked = data.draw(configs)
        if support.reasons(capability, asked):
            continue
        assert backend.validate_configuration(capability, asked) == []
        check_smallest(backend, asked, stride_order=data.draw(st.integers(0, 1)))


@pytest.mark.torch
def test_a_package_without_its_classes_is_another_one(flashinfer: Library) -> None:
    """The module that is imported is not the one that the metadata speaks of."""
    from hardpoint_flashinfer.backend import FlashInferBackend
    from hardpoint_flashinfer.mla import FlashInferMlaBackend

    for backend, module, name in (
        (FlashInferBackend, "flashinfer", "BatchPrefillWithPagedKVCacheWrapper"),
        (FlashInferMlaBackend, "flashinfer/mla", "MLAPlanMetadata.csr"),
    ):
        (flashinfer.site / module / "__init__.py").write_text("")
        with pytest.raises(OSError, match=f"has no {name}: the package is another than its metadata says"):
            backend.validate_configuration(DeviceCapability.parse("9.0"), config())
