"""FlashInfer, faked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kernel_library import Library, check_calls, libraries

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent


@pytest.fixture
def flashinfer(tmp_path: Path) -> Iterator[Library]:
    """The library, on the path for one test."""
    pytest.importorskip("torch")
    from hardpoint_flashinfer import _workspace

    site = tmp_path / "site"
    site.mkdir()
    with libraries(site, (HERE / "signatures" / "flashinfer.json", HERE / "fake_flashinfer.py")) as (library,):
        yield library
        check_calls(library)
    _workspace.forget()
