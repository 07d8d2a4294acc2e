"""Showing a command's data: as text, as Markdown or as JSON. All three are made of the same object."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from hardpoint.cli._ask import AskError
from hardpoint.cli._question import NOT_AVAILABLE, WRONG_USE, WRONG_USES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hardpoint.cli._document import Block

    Json = Any  # what JSON can hold


def show(
    view: str,
    title: str,
    make: Callable[[], Mapping[str, Json]],
    blocks: Callable[[Mapping[str, Json]], Iterable[Block]],
) -> int:
    """Make the data, show it, and return the exit code that is in it. An error of ours is shown in its place."""
    try:
        data = make()
    except AskError as error:
        return show_error(view, error)
    if view == "json":
        write(to_json(data))
    elif view == "markdown":
        from hardpoint.cli import _markdown
        from hardpoint.cli._private import without_private

        write(_markdown.render(title, list(blocks(without_private(data)))))
    else:
        from hardpoint.cli import _text

        width, colour = _text.terminal_width(sys.stdout), _text.wants_colour(sys.stdout)
        write(_text.render(list(blocks(data)), width=width, colour=colour))
    code: int = data["exit_code"]
    return code


def show_error(view: str, error: AskError) -> int:
    """Tell what went wrong, and return the exit code."""
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
