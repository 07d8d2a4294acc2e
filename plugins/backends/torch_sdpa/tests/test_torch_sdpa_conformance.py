"""The tests that every backend is held to."""

from __future__ import annotations

import pytest

from hardpoint_torch_sdpa.backend import TorchSdpaBackend
from hardpoint_torch_sdpa.plugin import SUPPORT
from tests.attention.conformance import Conformance

pytestmark = pytest.mark.torch


class TestTorchSdpa(Conformance):
    """All features in all dtypes that compute."""

    backend = TorchSdpaBackend
    support = SUPPORT
    dtypes = ("float32", "float64", "bfloat16", "float16")
