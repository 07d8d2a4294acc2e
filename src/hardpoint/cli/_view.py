"""Showing a command's data: as text, as Markdown or as JSON. All three are made of the same object."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

from hardpoint.cli._ask import AskError
from hardpoint.cli._question import NOT_AVAILABLE, WRONG_USE, WRONG_USES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hardpoint.cli._document import Block

    Json = Any  # what JSON can hold


VIEWS: Final = {"text": "doctor", "markdown": "doctor.markdown", "json": ""}
"""What the doctor's views are called in a snapshot."""


def show(
    view: str,
    title: str,
    make: Callable[[], Mapping[str, Json]],
    blocks: Callable[[Mapping[str, Json]], Iterable[Block]],
    *,
    recorded: Mapping[str, str] | None = None,
) -> int:
    """Make the data, show it, and return the exit code that is in it. An error of ours is shown in its place.

    `recorded` are views that were made where a snapshot was taken: they are shown as they are.
    """
    try:
        data = make()
        text = to_json(data) if view == "json" else _known(recorded, view) or _text_of(view, title, data, blocks)
    except AskError as error:
        return show_error(view, error)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        if recorded is None:
            raise
        # A file may come from anywhere, and from a version that wrote other things.
        what = f"this snapshot's report is not of a form that can be shown here ({type(error).__name__}: {error})"
        return show_error(view, AskError(f"{what}; try --recompute", "SnapshotError"))
    try:
        write(text)
    except OSError as error:
        write(f"hardpoint: the output cannot be written: {error}\n", sys.stderr)
        return NOT_AVAILABLE
    code: int = data["exit_code"]
    return code


def _known(recorded: Mapping[str, str] | None, view: str) -> str | None:
    return None if recorded is None else recorded.get(VIEWS[view])


def _text_of(
    view: str,
    title: str,
    data: Mapping[str, Json],
    blocks: Callable[[Mapping[str, Json]], Iterable[Block]],
) -> str:
    if view == "markdown":
        from hardpoint.cli import _markdown
        from hardpoint.cli._private import without_private

        return _markdown.render(title, list(blocks(without_private(data))))
    from hardpoint.cli import _text

    width, colour = _text.terminal_width(sys.stdout), _text.wants_colour(sys.stdout)
    encoding = None if sys.stdout is None else sys.stdout.encoding
    return _text.render(list(blocks(data)), width=width, colour=colour, encoding=encoding)


def show_error(view: str, error: AskError, code: int | None = None) -> int:
    """Tell what went wrong, and return the exit code, which follows from the error's kind unless it is given."""
    if code is None:
        code = WRONG_USE if error.kind in WRONG_USES else NOT_AVAILABLE
    if view == "json":
        described = {"kind": error.kind, "message": str(error)}
        write(to_json({"schema": "hardpoint.error", "version": 1, "exit_code": code, "error": described}))
    else:
        write(f"hardpoint: {error}\n", sys.stderr)
    return code


def to_json(data: Mapping[str, Json]) -> str:
    """The JSON text: ASCII, so that it means the same in every locale."""
    return json.dumps(data, indent=2) + "\n"


def write(text: str, stream: Any = None) -> None:  # noqa: ANN401  # a text stream
    """Write in whatever encoding the stream has; quietly where nobody reads any more."""
    from hardpoint.cli._output import write as write_text

    write_text(text, sys.stdout if stream is None else stream)
