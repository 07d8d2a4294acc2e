"""The look at a shared object before it is loaded."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardpoint import load_library
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


def test_a_vendors_library_is_loaded(file: Path) -> None:
    """A whole library is handed out as ctypes has it, with its functions."""
    whole = file.with_name("libwhole.so")
    whole.write_bytes(binary("working"))
    assert load_library(str(whole)).PyInit__ext is not None


@pytest.mark.parametrize(
    ("kept", "code", "said"),
    [
        (None, "missing_library", "no such library"),
        (40, "broken_import", "file too short"),
        (-4000, "broken_import", "file too short: it has"),
    ],
)
def test_a_library_that_cannot_be_loaded_is_an_environment_failure(
    file: Path, kept: int | None, code: str, said: str
) -> None:
    """A file that is missing, or cut short anywhere, is named with what is wrong; none ends the process."""
    broken = file.with_name("libbroken.so")
    broken.unlink(missing_ok=True)
    if kept is not None:
        broken.write_bytes(binary("working")[:kept])
    with pytest.raises(EnvironmentFailure, match=said) as caught:
        load_library(str(broken))
    assert str(broken) in str(caught.value)
    assert caught.value.code == code


def test_a_library_that_nobody_has_is_named() -> None:
    """A bare name is the loader's to look for, and its words are passed on."""
    with pytest.raises(EnvironmentFailure, match=r"libhardpoint-nowhere\.so\.1: cannot open shared") as caught:
        load_library("libhardpoint-nowhere.so.1")
    assert caught.value.code == "missing_library"
