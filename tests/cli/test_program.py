"""The program's own entry, and what is left of it when it is used in odd ways, in this process."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

import hardpoint
from hardpoint.cli import main
from hardpoint.cli._doctor import doctor_blocks, doctor_envelope
from hardpoint.cli._document import Cell, Heading, Hint, Paragraph, Table
from hardpoint.cli._markdown import render as render_markdown
from hardpoint.cli._question import LIVE, Progress
from hardpoint.cli._text import render

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command
    from tests.plugins import Site

BLOCKS = (
    Hint("warning", "a|b is *lost*", "pip install <x>"),
    Heading("Head `of` all"),
    Paragraph("text\x1b[31m with\ta bell\a", "dim", 2),
    Table(((Cell("one", "strong"), Cell("two\nthree")), (Cell("four"),)), ("a", "b")),
    Table(()),
    Hint("bug", "last", None),
)


def test_blocks_as_text() -> None:
    """In any width; what a plugin says moves no cursor and sets no colour."""
    text = render(BLOCKS, width=40, colour=False)
    assert "\x1b" not in text
    assert "\a" not in text
    assert "-> pip install <x>" in text
    assert max(map(len, text.splitlines())) <= 40
    assert "\x1b[" in render(BLOCKS, width=40, colour=True)
    assert render([Heading("first"), Heading("second")], width=40, colour=False) == "first\n\nsecond\n"


def test_blocks_as_markdown() -> None:
    """What is special there means itself; lines of a cell stay lines."""
    text = render_markdown("Title", BLOCKS)
    assert text.splitlines()[0] == "# Title"
    assert r"- **WARNING** a\|b is \*lost\* → pip install \<x\>" in text
    assert r"## Head \`of\` all" in text
    assert "| **one** | two<br>three |" in text
    assert text.endswith("- **BUG** last\n")


def test_main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends the process with the command's code, and says what is missing."""
    monkeypatch.setattr(sys, "argv", ["hardpoint", "--version"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"hardpoint {hardpoint.__version__}\n"
    monkeypatch.setattr(sys, "argv", ["hardpoint", "doctor", "--platform", "x", "--json", "--markdown"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2


@pytest.mark.parametrize(("name", "is_ours"), [("rich", True), ("rich.console", True), ("vendor_rt", False)])
def test_main_without_a_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, is_ours: bool
) -> None:
    """What the extra brings is named; anything else is an error as it is."""

    def run(arguments: Any) -> int:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("hardpoint.cli._commands.run", run)
    monkeypatch.setattr(sys, "argv", ["hardpoint", "doctor"])
    with pytest.raises(SystemExit if is_ours else ModuleNotFoundError):
        main()
    assert ("pip install 'hardpoint[cli]'" in capsys.readouterr().err) is is_ours


def test_help_and_completion(hardpoint_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of commands, a shell's script, and a shell that nobody knows."""
    shown = hardpoint_command("--help")
    assert "Exit codes: 0 fine" in shown.out
    assert "doctor" in shown.out
    assert "_HARDPOINT_COMPLETE" in hardpoint_command("completion", "fish").out
    monkeypatch.setenv("SHELL", "/bin/csh")
    assert hardpoint_command("completion").code == 2
    assert hardpoint_command("nonsense-of-all-sorts").code == 2


def test_a_snapshot_on_standard_output(site: Site, hardpoint_command: Command, tmp_path: Path) -> None:
    """The file's text; a folder that is not there is told; a snapshot is none of a snapshot."""
    site.platform("chip")
    data = json.loads(hardpoint_command("snapshot", "-o", "-").out)
    assert data["kind"] == "hardpoint snapshot"
    assert data["views"]["doctor"]
    assert hardpoint_command("snapshot", "-o", str(tmp_path / "no" / "file")).code == 2
    file = tmp_path / "machine.json"
    file.write_text(json.dumps(data))
    assert hardpoint_command("snapshot", "-o", "-", "--snapshot", str(file)).code == 2
    assert hardpoint_command("matrix", "--snapshot", str(file)).code == 2
    assert hardpoint_command("matrix", "--snapshot", str(file), "--recompute").code == 0
    site.monkeypatch.setenv("HARDPOINT_STRICT", "perhaps")
    shown = hardpoint_command("snapshot", "-o", "-")
    assert (shown.code, shown.out) == (2, "")


def test_the_report_of_a_process_is_shown_too(site: Site) -> None:
    """What `hardpoint.report()` gives is the same data: also before anything was resolved."""
    site.platform("chip")
    for _ in range(2):
        report = hardpoint.report().as_dict()
        text = render(list(doctor_blocks(doctor_envelope(LIVE, report, [], []))), width=80, colour=False)
        assert "Plugins: " in text
        assert ("Platform: not resolved" in text) is (report["resolution"] is None)
        hardpoint.current_platform().import_kernels()


def test_a_model_s_notes_are_shown(site: Site, hardpoint_command: Command, tmp_path: Path) -> None:
    """In select and in the matrix."""
    site.platform("chip")
    site.backend("plain")
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "llama4", "text_config": {"model_type": "llama4_text"}}))
    for command in ("select", "matrix"):
        shown = hardpoint_command(command, "--model", str(file))
        assert "attend within chunks of 8192 tokens" in " ".join(shown.out.split())
        assert shown.code == 0


class _Terminal:
    """A terminal that keeps what is written to it."""

    encoding = "ascii"

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        return


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, in the terminal's encoding, cleared at the end; nothing where the terminal is dumb."""
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    progress = Progress()
    progress("platform/gerät: detect")
    progress.clear()
    assert terminal.text == "\r\x1b[Kplatform/ger?t: detect\r\x1b[K"
    monkeypatch.setenv("TERM", "dumb")
    Progress()("anything")
    assert terminal.text.count("detect") == 1
