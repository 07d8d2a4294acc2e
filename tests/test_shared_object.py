"""The look at a shared object before it is loaded."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardpoint._shared_object import check_not_truncated
from hardpoint.errors import EnvironmentFailure
from tests.native import binary

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.compiler, pytest.mark.skipif(sys.platform != "linux", reason="about ELF files")]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file to be written anew by each example."""
    return tmp_path_factory.mktemp("shared") / "ext.so"


def test_a_whole_file_passes(file: Path) -> None:
    """A module as the compiler made it is let through."""
    file.write_bytes(binary("working"))
    check_not_truncated(str(file))


def test_a_cut_file_is_refused_with_its_numbers(file: Path) -> None:
    """The text has the path, how long the file is, and how long it should be."""
    content = binary("working")
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(EnvironmentFailure, match="file too short: it has") as caught:
        check_not_truncated(str(file))
    assert str(file) in str(caught.value)
    assert f"it has {len(content) // 2} bytes and its segments end at" in str(caught.value)
    assert caught.value.remedy is not None


@settings(deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_no_crash(file: Path, data: st.DataObject) -> None:
    """Whatever a header says, the answer is silence or an environment failure."""
    content = bytearray(binary("working"))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(4, 600))] = data.draw(st.sampled_from([0, 1, 2, 127, 128, 255]))
    file.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with suppress(EnvironmentFailure):
        check_not_truncated(str(file))
