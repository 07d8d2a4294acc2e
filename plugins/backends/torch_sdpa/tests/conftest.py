"""One step with random numbers, run through the backend and compared with the float64 reference."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from hardpoint_torch_sdpa.backend import TorchSdpaBackend
from tests.attention.conformance import Step

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def random_step() -> Callable[..., Step]:
    """Makes a `Step` of the backend."""
    return partial(Step.random, TorchSdpaBackend)
