"""What the example engine shows: text that can be read with several prompts at once, and progress."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from examples.tiny_engine.console import Progress, Transcript
from examples.tiny_engine.interface import Event

if TYPE_CHECKING:
    import pytest


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_text_of_a_single_prompt_flows() -> None:
    """Every piece is written as it comes, and the end is a line's end."""
    stream = io.StringIO()
    transcript = Transcript(1, stream)
    transcript.show(Event(prompt=0, text="Hel"))
    assert stream.getvalue() == "Hel"
    transcript.show(Event(prompt=0, text="lo\nyou", finish_reason="stop"))
    assert stream.getvalue() == "Hello\nyou\n"


def test_several_prompts_take_turns_by_the_line() -> None:
    """A line is written when it is whole, with its prompt's number; the rest comes with the end."""
    stream = io.StringIO()
    transcript = Transcript(2, stream)
    for event in (
        Event(prompt=0, text="one"),
        Event(prompt=1, text="two\nth"),
        Event(prompt=0, text=" line\n"),
        Event(prompt=1, text="ree", finish_reason="length"),
        Event(prompt=0, text="", finish_reason="stop"),
    ):
        transcript.show(event)
    assert stream.getvalue() == "[2] two\n[1] one line\n[2] three\n"


def test_a_long_line_is_broken_between_words() -> None:
    """Waiting for the end of a paragraph would be no streaming."""
    stream = io.StringIO()
    transcript = Transcript(2, stream)
    for _ in range(40):
        transcript.show(Event(prompt=0, text=" word"))
    lines = stream.getvalue().splitlines()
    assert lines
    assert all(len(line) <= 100 and line.endswith(" word") for line in lines)


def test_progress_outside_a_terminal_is_a_line_per_stage() -> None:
    """A log file gets each stage once, without control characters."""
    stream = io.StringIO()
    progress = Progress(stream)
    for done in (0.0, 0.5, 1.0):
        progress("loading", done)
    progress("ready", 0.0)
    progress.clear()
    assert stream.getvalue() == "loading …\nready …\n"


def test_progress_on_a_terminal_is_one_line_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is rewritten with the part that is done, and cleared before anything else is written."""
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    progress = Progress(stream)
    progress("loading", 0.5)
    progress.clear()
    assert stream.getvalue() == "\r\x1b[Kloading …  50%\r\x1b[K"
