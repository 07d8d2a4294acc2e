"""What a user sees: text on standard output, everything else on standard error."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from examples.tiny_engine.interface import Event

_WIDTH = 92


class Progress:
    """One line that is rewritten on a terminal; elsewhere a plain line per stage."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._rewrites = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._last: str | None = None

    def __call__(self, what: str, done: float) -> None:
        """Show that `what` is being done, and that the part `done` of it is behind us."""
        if self._rewrites:
            self._stream.write(f"\r\x1b[K{what} … {done:4.0%}" if done else f"\r\x1b[K{what} …")
        elif what != self._last:
            self._stream.write(f"{what} …\n")
        self._last = what
        self._stream.flush()

    def clear(self) -> None:
        """Take the line away, so that something else can be written."""
        if self._rewrites:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


class Transcript:
    """Writes answers as they come. A single one flows; several take turns line by line, each line with its number."""

    def __init__(self, num_prompts: int, stream: TextIO = sys.stdout) -> None:
        self._stream = stream
        self._flows = num_prompts == 1
        self._lines = [""] * num_prompts

    def show(self, event: Event) -> None:
        """Take up an event's text."""
        if self._flows:
            self._stream.write(event.text + ("\n" if event.finish_reason is not None else ""))
        else:
            *whole, rest = (self._lines[event.prompt] + event.text).split("\n")
            if len(rest) > _WIDTH and " " in rest.rstrip():
                head, _, rest = rest.rpartition(" ")
                whole.append(head)
            if event.finish_reason is not None and rest:
                whole.append(rest)
            self._lines[event.prompt] = rest
            self._stream.writelines(f"[{event.prompt + 1}] {line}\n" for line in whole)
        self._stream.flush()
