"""The tests that every backend is held to, on each module that this machine can run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from hardpoint_cpu_native.backend import CpuNativeBackend
from hardpoint_cpu_native.mla_backend import CpuNativeMlaBackend
from hardpoint_cpu_native.plugin import LATENT_SUPPORT, SUPPORT
from tests.attention.conformance import FEATURES, Case, Conformance

if TYPE_CHECKING:
    from hardpoint_cpu_native._kernels import Kernels

pytestmark = pytest.mark.torch

DTYPES = ("float32", "bfloat16")
# What runs through the most code, for the modules between the narrowest and the widest.
SOME = (
    "all and a soft cap",
    "not causal, window",
    "encoder",
    "cross attention",
    "a longer prefill behind a longer context",
)


class OnEachModule(Conformance):
    """Binds the backend to one module after the other."""

    @pytest.fixture(autouse=True)
    def _bind(self, kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(CpuNativeBackend, "kernels", classmethod(lambda _: kernels))


class TestCpuNative(OnEachModule):
    """All features in all dtypes; heads are multiples of 16."""

    backend = CpuNativeBackend
    support = SUPPORT
    dtypes = DTYPES
    base: ClassVar[dict[str, Any]] = {"head_size": 32, "num_heads": 4, "num_kv_heads": 2, "block_size": 4}
    cases: ClassVar[dict[str, Case]] = {
        name: case for name, case in FEATURES.items() if case.config.get("v_head_size") != 8
    }


class TestEachModule(Conformance):
    """The same sources with other flags: some features on every one of them."""

    backend = CpuNativeBackend
    support = SUPPORT
    dtypes = DTYPES
    base = TestCpuNative.base
    cases: ClassVar[dict[str, Case]] = {name: FEATURES[name] for name in SOME}
    block_sizes = (16,)

    @pytest.fixture(autouse=True)
    def _bind(self, each_kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(CpuNativeBackend, "kernels", classmethod(lambda _: each_kernels))


class TestCpuNativeMla(OnEachModule):
    """Some features: the kernels are the same, and its own are in test_cpu_native_storage.py."""

    backend = CpuNativeMlaBackend
    support = LATENT_SUPPORT
    dtypes = DTYPES
    base: ClassVar[dict[str, Any]] = {
        "kind": "mla_attention",
        "head_size": 48,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "num_heads": 20,
        "block_size": 4,
    }
    cases: ClassVar[dict[str, Case]] = {
        name: FEATURES[name] for name in (*SOME, "shared cache", "decoder without a cache")
    }
    block_sizes = (3, 16)
