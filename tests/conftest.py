"""Fixtures of the core's tests."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

import hardpoint
from tests.plugins import Site

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An empty folder on ``sys.path`` for plugins of the test's own; all others are left out of decisions."""
    folder = tmp_path / "site"
    folder.mkdir()
    hardpoint.reset()
    yield Site(folder, monkeypatch)
    hardpoint.reset()


@pytest.fixture
def young_objects() -> Iterator[None]:
    """The garbage collector looks only at what the test makes: torch's and pytest's objects take it a second."""
    gc.freeze()
    yield
    gc.unfreeze()
