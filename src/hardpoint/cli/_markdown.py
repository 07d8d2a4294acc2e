"""Blocks as Markdown, for a bug report: readable as it is, and as a page."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hardpoint.cli._document import Heading, Hint, Paragraph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint.cli._document import Block, Cell, Table

_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>|])")


def render(title: str, blocks: Sequence[Block]) -> str:
    """The page."""
    parts = [f"# {title}"]
    items: list[str] = []
    for block in blocks:
        if isinstance(block, Hint):
            remedy = f" → {escape(block.remedy)}" if block.remedy else ""
            items.append(f"- **{block.severity.upper()}** {escape(block.message)}{remedy}")
            continue
        if items:
            parts.append("\n".join(items))
            items = []
        parts.append(_block(block))
    if items:
        parts.append("\n".join(items))
    return "\n\n".join(part for part in parts if part) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"## {escape(block.text)}"
    if isinstance(block, Paragraph):
        return escape(block.text)
    return _table(block) if not isinstance(block, Hint) else ""


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    count = max(len(row) for row in table.rows)
    head = [*(escape(name) for name in table.columns), *[""] * (count - len(table.columns))]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * count}"]
    for row in table.rows:
        cells = [*(_cell(cell) for cell in row), *[""] * (count - len(row))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(cell: Cell) -> str:
    text = "<br>".join(escape(line) for line in cell.text.splitlines())
    return f"**{text}**" if cell.meaning == "strong" and text else text


def escape(text: str) -> str:
    """Text that means itself in Markdown, on one line."""
    line = " ".join("".join(char if char.isprintable() or char == "\n" else " " for char in text).split("\n"))
    return _SPECIAL.sub(r"\\\1", line)
