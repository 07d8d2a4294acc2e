"""The light modules, as the loader and a static selection see them. Neither torch nor Triton is needed."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from hardpoint import DeviceCapability, InMemoryMachine
from hardpoint._requirements import requirement_reason
from hardpoint.attention import AttentionConfig
from hardpoint.hookspecs import API_VERSION
from hardpoint_triton.plugin import LATENT_SUPPORT, SUPPORT, dense, latent

ROCM_CACHES = (
    "auto, on gfx942 also float8_e4m3fnuz or float8_e5m2fnuz, on gfx950 and gfx120x also float8_e4m3fn or float8_e5m2"
)
INSTALLED = {"torch": "2.13.0", "triton": "3.9.0"}


def _config(**options: Any) -> AttentionConfig:
    return AttentionConfig(**{"head_size": 128, "num_heads": 32, "num_kv_heads": 8, "dtype": "bf16", **options})


def _latent(**options: Any) -> AttentionConfig:
    sizes = {"head_size": 576, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_heads": 128, "dtype": "bf16"}
    return AttentionConfig(**{"kind": "mla_attention", **sizes, **options})


def _cuda(text: str) -> DeviceCapability:
    return DeviceCapability.parse(text)


def _rocm(arch: str) -> DeviceCapability:
    return DeviceCapability(runtime="rocm", arch=arch)


def _reasons(
    capability: DeviceCapability | None, config: AttentionConfig, distributions: dict[str, str] | None = None
) -> list[str]:
    support = LATENT_SUPPORT if config.kind == "mla_attention" else SUPPORT
    machine = InMemoryMachine(distributions=INSTALLED if distributions is None else distributions)
    return [str(reason) for reason in support.reasons(capability, config, partial(_requirement, machine))]


def _requirement(machine: InMemoryMachine, text: str) -> Any:
    return requirement_reason(text, machine)


def test_the_light_module_imports_neither_torch_nor_triton() -> None:
    """Listing the backends, and asking their declared support, must not cost seconds."""
    program = """
import sys
from hardpoint import DeviceCapability
from hardpoint.attention import AttentionConfig
from hardpoint_triton.plugin import dense, latent
for plugin in (dense, latent):
    spec = plugin.hardpoint_backend()
    spec.support.reasons(DeviceCapability.parse("9.0"), AttentionConfig(head_size=64, num_heads=4, dtype="bf16"))
assert not {"torch", "numpy", "triton"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("plugin", [dense, latent], ids=["dense", "latent"])
def test_the_descriptors_name_what_the_core_needs(plugin: Any) -> None:
    """Any device for which Triton compiles; the two differ in kind, class and sizes."""
    spec = plugin.hardpoint_backend()
    assert (spec.api, spec.platforms, spec.torch_features) == (API_VERSION, ("torch-device",), ("triton",))
    assert spec.requires == ("torch>=2.5",)
    assert {setting.name for setting in spec.settings} == {"TRITON_INTERPRET", "TRITON_CACHE_DIR"}
    assert spec.kind == ("attention" if plugin is dense else "mla_attention")


@pytest.mark.parametrize("device", ["8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1"])
@pytest.mark.parametrize("config", [_config(), _config(dtype="fp16", head_size=80), _config(dtype="fp32"), _latent()])
def test_nvidia_devices_from_ampere_on_take_everything(device: str, config: AttentionConfig) -> None:
    """Dense and latent, in every dtype."""
    assert _reasons(_cuda(device), config) == []


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1151", "gfx1200", "gfx1201"])
@pytest.mark.parametrize("config", [_config(), _config(dtype="fp32"), _latent()])
def test_amd_devices_take_everything(arch: str, config: AttentionConfig) -> None:
    """CDNA from 2 on, RDNA from 3 on."""
    assert _reasons(_rocm(arch), config, {"torch": "2.13.0", "triton-rocm": "3.6.0"}) == []


@pytest.mark.parametrize(
    ("capability", "config", "reasons"),
    [
        (_cuda("7.5"), _config(), ["dtype=bfloat16; accepts float16 or float32"]),
        (_cuda("7.5"), _latent(dtype="fp16"), ["capability 7.5; needs >= 8.0"]),
        (_cuda("7.0"), _config(dtype="fp16"), ["capability 7.0; needs >= 7.5"]),
        (
            _cuda("8.6"),
            _config(kv_cache_dtype="fp8"),
            ["kv_cache_dtype=float8_e4m3fn; accepts auto or float8_e5m2"],
        ),
        (
            _cuda("9.0"),
            _config(head_size=512),
            ["head_size=512; accepts at most 256", "v_head_size=512; accepts at most 256"],
        ),
        (_cuda("9.0"), _config(dtype="float64"), ["dtype=float64; accepts float16 or bfloat16 or float32"]),
        (
            _cuda("9.0"),
            _latent(kv_lora_rank=1024, head_size=1088),
            ["kv_lora_rank=1024; accepts at most 512"],
        ),
        (_rocm("gfx90a"), _config(kv_cache_dtype="fp8"), [f"kv_cache_dtype=float8_e4m3fn; accepts {ROCM_CACHES}"]),
        (
            _rocm("gfx942"),
            _config(kv_cache_dtype="fp8"),
            [f"kv_cache_dtype=float8_e4m3fn; accepts {ROCM_CACHES}"],
        ),
        (
            _rocm("gfx906"),
            _config(),
            ["architecture gfx906; runs on gfx90a or gfx942 or gfx950 or gfx11* or gfx12*"],
        ),
        (None, _config(), ["capability unknown"]),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_with_the_reason(
    capability: DeviceCapability | None, config: AttentionConfig, reasons: list[str]
) -> None:
    """The value asked for and what would be accepted stand in the text; nothing is imported to find out."""
    everything = INSTALLED | {"triton-rocm": "3.6.0", "pytorch-triton-rocm": "3.6.0"}
    assert _reasons(capability, config, everything) == reasons


@pytest.mark.parametrize(
    ("capability", "distributions", "reasons"),
    [
        (_cuda("9.0"), {}, ["triton is not installed; needs >=3.4"]),
        (_cuda("9.0"), {"triton": "2.3.1"}, ["found triton 2.3.1, needs >=3.4"]),
        (_rocm("gfx942"), {}, ["triton-rocm is not installed; needs >=3.4"]),
        (_rocm("gfx942"), {"pytorch-triton-rocm": "3.5.1"}, []),
        (_rocm("gfx942"), {"triton": "3.9.0"}, []),
    ],
)
def test_triton_is_looked_for_under_the_name_that_torch_brings_it_under(
    capability: DeviceCapability, distributions: dict[str, str], reasons: list[str]
) -> None:
    """From metadata; a torch for ROCm brings it under another name than one for CUDA."""
    assert _reasons(capability, _config(), distributions) == reasons


def test_a_vendors_device_may_say_that_triton_compiles_for_it() -> None:
    """A device of an unknown runtime with the feature ``triton``, and not one without."""
    with_it = DeviceCapability(runtime="xyz", arch="x1", features=frozenset({"triton"}))
    assert _reasons(with_it, _config()) == []
    assert _reasons(DeviceCapability(runtime="xyz", arch="x1"), _config()) == ["the device lacks triton"]
