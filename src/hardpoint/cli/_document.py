"""What a command shows, as blocks: made of the command's data once, and shown as text or as Markdown."""

from __future__ import annotations

from typing import NamedTuple


class Cell(NamedTuple):
    """Text with a meaning for its colour: ``good``, ``bad``, ``warn``, ``dim``, ``strong``, ``remedy`` or nothing."""

    text: str
    meaning: str = ""


class Hint(NamedTuple):
    """Something wrong or to be improved, and what to do about it."""

    severity: str
    message: str
    remedy: str | None


class Heading(NamedTuple):
    """What the following blocks are about."""

    text: str


class Paragraph(NamedTuple):
    """Running text, indented by so many columns where there are columns."""

    text: str
    meaning: str = ""
    indent: int = 0


class Table(NamedTuple):
    """Rows of cells. Each cell is a line or several. Without `columns` it has no head."""

    rows: tuple[tuple[Cell, ...], ...]
    columns: tuple[str, ...] = ()


Block = Heading | Paragraph | Table | Hint

MEANING_OF_OUTCOME = {
    "chosen": "good",
    "valid": "good",
    "loaded": "good",
    "imported": "good",
    "failed": "bad",
    "contract": "bad",
    "bug": "bad",
    "broken": "bad",
    "incomplete": "bad",
    "unusable": "warn",
    "untrusted": "warn",
    "rejected": "warn",
}


def outcome_cell(outcome: str) -> Cell:
    """An outcome in words, with its meaning."""
    words = {"contract": "breaks contract", "not_tried": "not tried", "not_installed": "not installed"}
    return Cell(words.get(outcome, outcome.replace("_", " ")), MEANING_OF_OUTCOME.get(outcome, "dim"))
