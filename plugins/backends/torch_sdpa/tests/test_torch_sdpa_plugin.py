"""The light module, as the loader sees it. No torch is needed."""

from __future__ import annotations

import subprocess
import sys

from hardpoint.hookspecs import API_VERSION
from hardpoint_torch_sdpa.plugin import SUPPORT, plugin


def test_the_light_module_imports_no_torch() -> None:
    """Listing the backend, and asking its declared support, must not cost two seconds."""
    program = """
import sys
from hardpoint.attention import AttentionConfig
from hardpoint_torch_sdpa.plugin import plugin
spec = plugin.hardpoint_backend()
assert spec.support.reasons(None, AttentionConfig(head_size=64, num_heads=4, dtype="bf16")) == ()
assert not {"torch", "numpy"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_descriptor_names_what_the_core_needs() -> None:
    """Any device with torch's operators, from the torch on that groups heads in SDPA."""
    spec = plugin.hardpoint_backend()
    assert (spec.api, spec.kind, spec.platforms) == (API_VERSION, "attention", ("torch-device",))
    assert spec.torch_features == ("aten", "sdpa")
    assert spec.requires == ("torch>=2.5",)
    assert spec.target == "hardpoint_torch_sdpa.backend:TorchSdpaBackend"
    assert spec.support is SUPPORT
