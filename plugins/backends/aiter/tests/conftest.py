"""AITER, faked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kernel_library import Library, check_calls, libraries

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    """The library, on the path for one test."""
    pytest.importorskip("torch")
    site = tmp_path / "site"
    site.mkdir()
    with libraries(site, (HERE / "signatures" / "aiter.json", HERE / "fake_aiter.py")) as (found,):
        yield found
        check_calls(found)
