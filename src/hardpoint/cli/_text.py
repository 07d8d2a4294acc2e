"""Blocks as text for a terminal or a pipe, laid out by rich in the width that there is."""

from __future__ import annotations

import io
import os
import shutil
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from hardpoint.cli._document import Cell, Heading, Hint, Paragraph
from hardpoint.cli._output import encodable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from hardpoint.cli._document import Block, Table

_STYLES: Final = {
    "good": "green",
    "bad": "bold red",
    "warn": "yellow",
    "dim": "dim",
    "strong": "bold",
    "remedy": "cyan",
}
_SEVERITIES: Final = {"bug": "bold white on red", "error": "bold red", "warning": "bold yellow", "advice": "bold blue"}
_DEFAULT_WIDTH: Final = 80
_NARROWEST: Final = 40
_INDENT: Final = 2
_GAP: Final = 2
_READABLE: Final = 24
"""Characters of a line that a column of sentences must have."""


def render(blocks: Sequence[Block], *, width: int, colour: bool, encoding: str | None = "utf-8") -> str:
    """The text. Lines are at most `width` wide where the words allow it.

    What `encoding` lacks is replaced before lines are laid out, for what stands in its place may be longer.
    """
    target = io.StringIO()
    console = Console(
        file=target,
        width=width,
        color_system="standard" if colour else None,
        force_terminal=colour,
        no_color=not colour,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
    before: Block | None = None
    for block in blocks:
        is_apart = isinstance(block, Heading) or (isinstance(before, Hint) and not isinstance(block, Hint))
        if is_apart and before is not None:
            console.print()
        _print(console, _encodable(block, encoding))
        before = block
    # rich fills cells up to their column's width.
    return "\n".join(line.rstrip() for line in target.getvalue().splitlines()) + "\n"


def _encodable(block: Block, encoding: str | None) -> Block:
    if isinstance(block, Heading):
        return Heading(encodable(block.text, encoding))
    if isinstance(block, Paragraph):
        return block._replace(text=encodable(block.text, encoding))
    if isinstance(block, Hint):
        remedy = None if block.remedy is None else encodable(block.remedy, encoding)
        return block._replace(message=encodable(block.message, encoding), remedy=remedy)
    rows = tuple(tuple(cell._replace(text=encodable(cell.text, encoding)) for cell in row) for row in block.rows)
    return block._replace(rows=rows, columns=tuple(encodable(name, encoding) for name in block.columns))


def _print(console: Console, block: Block) -> None:
    if isinstance(block, Heading):
        console.print(Text(block.text, style="bold"))
    elif isinstance(block, Paragraph):
        console.print(Padding(Text(_clean(block.text), style=_STYLES.get(block.meaning, "")), (0, 0, 0, block.indent)))
    elif isinstance(block, Hint):
        grid = Grid.grid(padding=(0, 1))
        grid.add_column(width=8, no_wrap=True)
        grid.add_column(overflow="fold", ratio=1)
        grid.add_row(Text(block.severity.upper(), style=_SEVERITIES[block.severity]), Text(_clean(block.message)))
        if block.remedy:
            grid.add_row("", Text(f"-> {_clean(block.remedy)}", style=_STYLES["remedy"]))
        console.print(grid)
    else:
        _print_table(console, block)


def _print_table(console: Console, table: Table) -> None:
    """The last column takes what the others leave. Where that is hardly anything, its texts go below their rows."""
    room = console.width - _INDENT
    needed = _needed_widths(table)
    if not needed:
        return
    *before, last = needed
    left = room - sum(before) - _GAP * len(before)
    if last <= left or left >= _READABLE or not before:
        console.print(Padding(_grid(table.columns, table.rows, [*before, max(left, 1)]), (0, 0, 0, _INDENT)))
        return
    widths = _fit(before, room - _GAP * (len(before) - 1))
    if table.columns:
        console.print(Padding(_grid(table.columns[:-1], (), widths), (0, 0, 0, _INDENT)))
    for row in table.rows:
        console.print(Padding(_grid((), [row[: len(before)]], widths), (0, 0, 0, _INDENT)))
        if len(row) > len(before) and row[-1].text:
            console.print(Padding(_cell(row[-1]), (0, 0, 0, 3 * _INDENT)))


def _needed_widths(table: Table) -> list[int]:
    """The longest line of each column."""
    count = max([len(table.columns), *(len(row) for row in table.rows)])
    heads = [*table.columns, *("" for _ in range(count - len(table.columns)))]
    lines = [[row[place].text for row in table.rows if place < len(row)] for place in range(count)]
    return [
        max([len(head), 1, *(len(line) for text in texts for line in text.splitlines())])
        for head, texts in zip(heads, lines, strict=True)
    ]


def _fit(widths: Sequence[int], room: int) -> list[int]:
    """Of columns that are too wide together, the widest give way."""
    fitted = list(widths)
    while sum(fitted) > room and max(fitted) > 1:
        fitted[fitted.index(max(fitted))] -= 1
    return fitted


def _grid(columns: Sequence[str], rows: Sequence[Sequence[Cell]], widths: Sequence[int]) -> Grid:
    grid = Grid(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, show_header=bool(columns), header_style="bold")
    for place, width in enumerate(widths):
        grid.add_column(columns[place] if place < len(columns) else "", overflow="fold", width=width)
    for row in rows:
        grid.add_row(*(_cell(cell) for cell in row))
    return grid


def _cell(cell: Cell) -> Text:
    text = Text(style=_STYLES.get(cell.meaning, ""))
    for number, line in enumerate(_clean(cell.text).splitlines()):
        text.append("\n" if number else "")
        text.append(line, style=_STYLES["remedy"] if line.startswith("-> ") else None)
    return text


def _clean(text: str) -> str:
    """Without control characters: what a plugin says may not move the cursor or change colours."""
    return "".join(char if char == "\n" or char.isprintable() else " " for char in text)


def terminal_width(stream: TextIO | None) -> int:
    """The width to write in: the terminal's, ``COLUMNS``, or 80 in a pipe."""
    if (stream is not None and stream.isatty()) or os.environ.get("COLUMNS"):
        return max(_NARROWEST, min(shutil.get_terminal_size((_DEFAULT_WIDTH, 24)).columns, 120))
    return _DEFAULT_WIDTH


def wants_colour(stream: TextIO | None) -> bool:
    """Whether to colour: on a terminal that can, unless ``NO_COLOR`` says no."""
    if stream is None or not stream.isatty():
        return False
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") not in ("", "dumb")
