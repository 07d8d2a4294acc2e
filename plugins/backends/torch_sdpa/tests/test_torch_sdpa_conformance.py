"""The tests that every backend is held to."""

from __future__ import annotations

from typing import Any

import pytest

from hardpoint.attention import AttentionConfig
from hardpoint_torch_sdpa.backend import TorchSdpaBackend
from hardpoint_torch_sdpa.plugin import SUPPORT
from tests.attention.conformance import Conformance, Step

pytestmark = pytest.mark.torch


class TestTorchSdpa(Conformance):
    """All features in all dtypes that compute."""

    backend = TorchSdpaBackend
    support = SUPPORT
    dtypes = ("float32", "float64", "bfloat16", "float16")


@pytest.mark.parametrize("head_size", [64, 72, 80])
@pytest.mark.parametrize("options", [{}, {"sliding_window": 40}], ids=["global", "windowed"])
def test_a_vision_tower_is_an_encoder(head_size: int, options: dict[str, Any]) -> None:
    """Images of different sizes, packed, through the code that decoders run: no cache, and nobody's neighbour seen."""
    config = AttentionConfig(
        head_size=head_size, num_heads=4, dtype="bfloat16", attention_type="encoder_only", **options
    )
    assert SUPPORT.reasons(None, config) == ()
    images = [256, 64, 64, 1, 100]
    Step.random(TorchSdpaBackend, config, images, images, padding=3).check()
