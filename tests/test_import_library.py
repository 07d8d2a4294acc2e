"""Somebody else's library, imported: whatever its start-up meets is the environment's failure, in its own words."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from hardpoint._importing import import_library
from hardpoint.errors import ConfigError, EnvironmentFailure

if TYPE_CHECKING:
    from pathlib import Path

_numbers = itertools.count()


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """A module's name that no other test has, and its file."""
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"library_of_tests_{next(_numbers)}"
    return name, tmp_path / f"{name}.py"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise RuntimeError('no driver')", "RuntimeError: no driver"),
        ("import os; os.of_another_release", "AttributeError: module 'os' has no attribute 'of_another_release'"),
        ("{}['LIBRARY_ROOT']", "KeyError: 'LIBRARY_ROOT'"),
        ("raise FutureWarning('deprecated')", "FutureWarning: deprecated"),
        ("def cut_off(", "SyntaxError: "),
        ("class E(Exception):\n    def __str__(self): raise E\nraise E", "E: (its text cannot be made: "),
    ],
)
def test_one_that_cannot_start(library: tuple[str, Path], body: str, words: str) -> None:
    """Its type and text are the message, with the remedy that the caller knows."""
    name, file = library
    file.write_text(body)
    with pytest.raises(EnvironmentFailure) as failure:
        import_library(name, remedy="install it again")
    assert failure.value.message.startswith(f"{name} does not load: {words}")
    assert (failure.value.code, failure.value.remedy) == ("broken_import", "install it again")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("import library_that_nobody_has", ModuleNotFoundError),
        ("raise OSError('libx.so: cannot open shared object file')", OSError),
        ("from hardpoint.errors import ConfigError\nraise ConfigError('x')", ConfigError),
        ("raise RecursionError", RecursionError),
        ("raise MemoryError", MemoryError),
        ("raise SystemExit(3)", SystemExit),
        ("raise KeyboardInterrupt", KeyboardInterrupt),
    ],
)
def test_what_passes_as_it_is(library: tuple[str, Path], body: str, kind: type[BaseException]) -> None:
    """What the failure rule knows already, and what is nobody's library's business."""
    name, file = library
    file.write_text(body)
    with pytest.raises(kind) as failure:
        import_library(name)
    assert type(failure.value) is kind


def test_one_that_starts(library: tuple[str, Path]) -> None:
    """It is the module."""
    name, file = library
    file.write_text("answer = 42")
    assert import_library(name).answer == 42
