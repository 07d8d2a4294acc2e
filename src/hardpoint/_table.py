"""Candidates as a table of plain text: what a selection explains itself with, and what an error says at the end.

Lines are as long as their reasons: an error's text goes into logs, which wrap nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint._reasons import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hardpoint._reasons import Candidate

_WITH_PHASE = frozenset((Outcome.FAILED, Outcome.BUG))
_WORDS = {Outcome.CONTRACT: "breaks contract", Outcome.BUG: "BUG"}


def candidate_table(candidates: Iterable[Candidate], what: str) -> list[str]:
    """A head, and for each candidate its name, its outcome, and each reason with its remedy on lines of their own.

    `what` is the head of the first column. Without candidates there are no lines.
    """
    rows = [(item.name, _outcome(item), _why(item)) for item in candidates]
    if not rows:
        return []
    first = max(len(what), *(len(name) for name, _, _ in rows))
    second = max(len("outcome"), *(len(outcome) for _, outcome, _ in rows))
    lines = [f"  {what:{first}}  {'outcome':{second}}  why"]
    for name, outcome, why in rows:
        told = why or [""]
        lines.append(f"  {name:{first}}  {outcome:{second}}  {told[0]}".rstrip())
        lines += [f"  {'':{first}}  {'':{second}}  {text}" for text in told[1:]]
    return lines


def outcome_words(outcome: Outcome) -> str:
    """``not installed``."""
    return _WORDS.get(outcome, outcome.replace("_", " "))


def _outcome(candidate: Candidate) -> str:
    words = outcome_words(candidate.outcome)
    return f"{words} at {candidate.phase}" if candidate.outcome in _WITH_PHASE and candidate.phase else words


def _why(candidate: Candidate) -> list[str]:
    """A text per reason and remedy. One of several lines stays as it is, so that it can be searched for."""
    told = []
    for reason in candidate.reasons:
        told.append(reason.message or str(reason.code))
        if reason.remedy:
            told.append(f"-> {reason.remedy}")
    if candidate.rank_reason:
        told.append(f"[{candidate.rank_reason}]")
    return told
