"""Kernels run in Triton's interpreter here, and are compiled for devices that are not there."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.attention.conformance import Step

if find_spec("triton") is None or find_spec("torch") is None:
    # Only the light modules can be tested.
    collect_ignore_glob = ["test_triton_[!p]*.py"]
else:
    # Before the variable is set: imported under it, Triton's own library could not be compiled any more.
    import triton  # noqa: F401


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton interprets in this test, and checks no whole number for overflow, which takes it a third of its time."""
    from triton.runtime.interpreter import interpreter_builder

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(interpreter_builder, "options", replace(interpreter_builder.options, sanitize_overflow=False))


@pytest.fixture
def dense_step(interpreter: None) -> Callable[..., Step]:
    """Makes a `Step` of triton_attn."""
    from hardpoint_triton.backend import TritonAttentionBackend
    from tests.attention.conformance import Step

    return partial(Step.random, TritonAttentionBackend)


@pytest.fixture
def latent_step(interpreter: None) -> Callable[..., Step]:
    """Makes a `Step` of triton_mla."""
    from hardpoint_triton.backend import TritonMlaBackend
    from tests.attention.conformance import Step

    return partial(Step.random, TritonMlaBackend)
