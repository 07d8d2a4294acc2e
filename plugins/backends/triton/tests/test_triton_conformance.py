"""The tests that every backend is held to, in Triton's interpreter."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from hardpoint import DeviceCapability
from hardpoint.attention import AttentionConfig
from hardpoint_triton.backend import TritonAttentionBackend, TritonMlaBackend
from hardpoint_triton.plugin import LATENT_SUPPORT, SUPPORT
from tests.attention.conformance import Conformance, case

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("interpreter")]

CPU = DeviceCapability(runtime="cpu", arch="x86-64-v3")


class _InInterpreter(Conformance):
    __test__ = False
    # The interpreter computes in float32 whatever is asked; `test_triton_forward` has the others.
    dtypes = ("float32",)
    # The kernels always have it; `test_triton_operator` asks for neither and both.
    without_lse = False

    def config(self, **options: Any) -> AttentionConfig:
        """The base with these options. Nothing is skipped: the kernels do all of it."""
        config = AttentionConfig(**{**self.base, **options})
        assert self.support.reasons(CPU, config) == ()
        assert self.backend.validate_configuration(CPU, config) == []
        return config


class TestTritonAttention(_InInterpreter):
    """All features."""

    __test__ = True
    backend = TritonAttentionBackend
    support = SUPPORT
    # One key head: programs are what an interpreter's time goes into.
    base: ClassVar[dict[str, Any]] = {"head_size": 16, "num_heads": 4, "num_kv_heads": 1, "block_size": 4}
    block_sizes = (3, 256)


class TestTritonMla(_InInterpreter):
    """All features that a latent has."""

    __test__ = True
    backend = TritonMlaBackend
    support = LATENT_SUPPORT
    base: ClassVar[dict[str, Any]] = {
        "kind": "mla_attention", "head_size": 24, "num_heads": 2, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
        "block_size": 4,
    }  # fmt: skip
    cases = {name: found for name, found in Conformance.cases.items() if "v_head_size" not in found.config} | {
        "no rotary part": case(head_size=16, qk_rope_head_dim=0),
        "odd parts": case(head_size=31, kv_lora_rank=20, qk_rope_head_dim=11),
    }
    block_sizes = (1, 64)
