"""Where a peer's selection says yes and its constructor no: the ten places, and what becomes of them here.

Each asks the declared support alone, that is before anything is imported. What a backend here does take instead of
refusing, its own suite runs.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import pytest

from hardpoint import DeviceCapability
from hardpoint.attention import AttentionConfig
from hardpoint.hookspecs import BackendSpec

CPU = DeviceCapability(runtime="cpu", arch="x86_64", features=frozenset({"avx2", "avx512f", "amx_bf16", "amx_tile"}))
MI300 = DeviceCapability(runtime="rocm", arch="gfx942", major=9, minor=4)
LATENT = {"kind": "mla_attention", "head_size": 576, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_heads": 16}
MLA_BACKENDS: dict[str, str | DeviceCapability] = {
    "flash_attn_mla": "9.0",
    "flashinfer_mla": "9.0",
    "triton_mla": "9.0",
    "aiter_mla": MI300,
    "torch_mla": CPU,
    "cpu_native_mla": CPU,
}


def spec_of(name: str) -> BackendSpec:
    """A backend's descriptor, where its plugin is installed."""
    for entry in entry_points(group="hardpoint.backends"):
        if entry.name == name:
            found = entry.load().hardpoint_backend()
            assert isinstance(found, BackendSpec)
            return found
    pytest.skip(f"the plugin of {name} is not installed")


def refused(name: str, device: str | DeviceCapability, **changes: Any) -> set[str]:
    """The fields against which a backend's declared support speaks, on a device with every package."""
    capability = DeviceCapability.parse(device) if isinstance(device, str) else device
    base: dict[str, Any] = {"head_size": 64, "num_heads": 4, "dtype": "bfloat16", "block_size": 256}
    config = AttentionConfig(**{**base, **changes})
    return {str(reason.code) for reason in spec_of(name).support.reasons(capability, config)}


def test_hole_1_fp8_cache_in_triton_below_8_9() -> None:
    """An 8-bit cache that the device cannot convert is a reason of the declared support, with that field."""
    assert "kv_cache_dtype" in refused("triton_attn", "8.0", kv_cache_dtype="fp8")
    assert refused("triton_attn", "8.9", kv_cache_dtype="fp8") == set()


def test_hole_2_bfloat16_cache_in_triton_below_8_0() -> None:
    """Asked for as the layer's dtype, and as the cache's alone."""
    assert refused("triton_attn", "7.5", dtype="bfloat16")
    assert refused("triton_attn", "7.5", dtype="float16", kv_cache_dtype="bfloat16") == {"kv_cache_dtype"}


def test_hole_3_the_same_two_in_the_latent_form() -> None:
    """The latent form of the same kernels has the same limits."""
    assert "kv_cache_dtype" in refused("triton_mla", "8.0", **LATENT, kv_cache_dtype="fp8")
    assert refused("triton_mla", "7.5", **LATENT)


@pytest.mark.parametrize(
    ("name", "device"),
    [("flash_attn", "9.0"), ("flashinfer", "9.0"), ("aiter_fa", MI300), ("aiter_unified", MI300)],
)
def test_hole_4_quantised_cache_of_an_encoder(name: str, device: str | DeviceCapability) -> None:
    """There is no cache in an encoder to be quantised: refused, by one field at least."""
    caches = "float8_e4m3fn" if isinstance(device, str) else "float8_e4m3fnuz"
    found = refused(name, device, attention_type="encoder_only", kv_cache_dtype=caches, block_size=None)
    assert found & {"kv_cache_dtype", "attention_type"}


@pytest.mark.parametrize("field", [{"alibi": True}, {"soft_cap": 30.0}, {"kv_sharing": True}])
def test_hole_5_alibi_soft_cap_and_sharing_are_asked_of_flex(field: dict[str, Any]) -> None:
    """The three are fields of the request, so that a backend which does not mention one refuses by its name."""
    (name,) = field
    support = spec_of("flex_attention").support
    mentioned = all(getattr(variant, name) is not None for variant in support.variants)
    assert (refused("flex_attention", "9.0", **field) == set()) == mentioned
    assert refused("torch_sdpa", CPU, soft_cap=30.0) == {"soft_cap"}
    assert refused("flashinfer", "9.0", alibi=True) == {"alibi"}


@pytest.mark.parametrize("name", MLA_BACKENDS)
@pytest.mark.parametrize("field", [{"soft_cap": 30.0}, {"alibi": True}, {"sliding_window": 64}])
def test_hole_6_soft_cap_alibi_and_windows_of_the_latent_form(name: str, field: dict[str, Any]) -> None:
    """A latent backend refuses the field by its name, or declares it in every variant."""
    (asked,) = field
    found = refused(name, MLA_BACKENDS[name], **LATENT, **field)
    mentioned = all(getattr(variant, asked) is not None for variant in spec_of(name).support.variants)
    assert found == (set() if mentioned else {asked})


def test_hole_7_sinks_in_flashinfer() -> None:
    """They would be left out silently by all its kernels but TRT-LLM's: refused on every device.

    Layers with different windows are planned separately here, which its own suite runs.
    """
    for version in ("8.0", "9.0", "10.0", "12.0"):
        assert refused("flashinfer", version, sinks=True) == {"sinks"}


def test_hole_8_fp8_cache_with_odd_head_sizes_on_a_cpu() -> None:
    """Both that a CPU may get take 8-bit caches at every head size that they take at all."""
    for head_size in (80, 112):
        for name in ("torch_sdpa", "cpu_native"):
            assert refused(name, CPU, head_size=head_size, kv_cache_dtype="fp8") == set()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_hole_9_amx_for_other_dtypes(dtype: str) -> None:
    """A CPU's latent backend is asked for its dtype like any other: taken if declared in the variant, or refused."""
    for name in ("torch_mla", "cpu_native_mla"):
        support = spec_of(name).support
        declared = all(variant.dtype is not None and variant.dtype.accepts(dtype) for variant in support.variants)
        assert ("dtype" not in refused(name, CPU, **LATENT, dtype=dtype)) == declared


@pytest.mark.parametrize("cache", ["float16", "bfloat16"])
def test_hole_10_the_cache_dtype_of_the_latent_form_on_a_cpu(cache: str) -> None:
    """What the platform would allow is not asked: the backend's own declaration decides, for this field too."""
    for name in ("torch_mla", "cpu_native_mla"):
        support = spec_of(name).support
        declared = all(
            variant.kv_cache_dtype is not None and variant.kv_cache_dtype.accepts(cache) for variant in support.variants
        )
        found = refused(name, CPU, **LATENT, dtype="float32", kv_cache_dtype=cache)
        assert ("kv_cache_dtype" not in found) == declared


@pytest.mark.parametrize(
    ("name", "device", "changes", "fields"),
    [
        ("aiter_fa", MI300, {"head_size": 256}, {"head_size"}),
        ("aiter_unified", MI300, {"block_size": 256}, {"block_size"}),
        ("aiter_unified", MI300, {"block_size": 64, "sinks": True, "alibi": True}, {"alibi"}),
        ("aiter_mla", MI300, {**LATENT, "dtype": "float16"}, {"dtype"}),
        ("flash_attn", MI300, {"soft_cap": 30.0}, {"soft_cap"}),
        ("flash_attn", "8.0", {"alibi": True, "causal": False}, {"alibi"}),
        ("flash_attn", "9.0", {"sinks": True, "head_size": 72}, {"sinks"}),
        ("flash_attn", "9.0", {"batch_invariant": True}, {"batch_invariant"}),
        ("flash_attn", "9.0", {"batch_invariant": True, "head_size": 256, "sliding_window": 64}, {"batch_invariant"}),
        ("flash_attn_mla", "10.0", {**LATENT, "num_heads": 24}, {"num_heads"}),
        ("flashinfer", "9.0", {"causal": False, "sliding_window": 64}, {"causal"}),
        ("flashinfer_mla", "10.0", {**LATENT, "kv_cache_dtype": "fp8"}, {"kv_cache_dtype"}),
    ],
)
def test_further_holes_of_the_packages(
    name: str, device: str | DeviceCapability, changes: dict[str, Any], fields: set[str]
) -> None:
    """The same kind, in the packages themselves: what their functions let in, and no kernel of theirs computes."""
    assert refused(name, device, **changes) == fields
