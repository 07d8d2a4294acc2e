"""Writing text to a stream that may be of any encoding, and may be closed at its other end."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import TextIO

_PLAIN: Final = str.maketrans(
    {"→": "->", "…": "...", "×": "x", "–": "-", "—": "-", "−": "-", "≥": ">=", "≤": "<=", "’": "'", "“": '"', "”": '"'}
)


def encodable(text: str, encoding: str | None) -> str:
    """The text as far as an encoding has it; what it lacks in plainer signs, or as escapes."""
    name = encoding or "ascii"
    try:
        text.encode(name)
    except LookupError:
        name = "ascii"
    except UnicodeEncodeError:
        pass
    else:
        return text
    return text.translate(_PLAIN).encode(name, "backslashreplace").decode(name)


def write(text: str, stream: TextIO | None) -> None:
    """Write it all. A reader that has gone (``| head``), or a stream that was closed from the start, is no error.

    Errors: `OSError`, such as a full disk; the interpreter will not meet it again at its end.
    """
    if stream is None:
        return
    try:
        stream.write(encodable(text, stream.encoding))
        stream.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if not isinstance(error, BrokenPipeError):
            raise
