"""A command line that runs here, with its child process a real one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


class Shown(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """The output as data."""
        data: dict[str, Any] = json.loads(self.out)
        return data

    def says(self, text: str, within: int = 9) -> bool:
        """Whether the first lines say it, wherever the layout has broken them."""
        head = "".join("".join(self.out.splitlines()[:within]).split())
        return "".join(text.split()) in head


class Command(Protocol):
    """Runs ``hardpoint`` with these arguments."""

    def __call__(self, *arguments: str) -> Shown: ...


@pytest.fixture
def hardpoint_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Shown]:
    """The command line, in 80 columns."""
    pytest.importorskip("click")
    pytest.importorskip("rich")
    from hardpoint.cli._commands import run

    for name in ("COLUMNS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str) -> Shown:
        capsys.readouterr()
        code = run(arguments)
        printed = capsys.readouterr()
        return Shown(code, printed.out, printed.err)

    return call
