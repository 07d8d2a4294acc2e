"""A selection: the chosen backend with all its candidates, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hardpoint._reasons import Candidate, Outcome, Provenance

if TYPE_CHECKING:
    from hardpoint._evaluation import Depth
    from hardpoint.attention import AttentionBackend, AttentionConfig

NOTHING_VALID: Final = "none of the candidates is valid"
"""The note of an inspection's selection without a winner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The chosen backend with all its candidates, as data. `backend` is None where the platform has no selectable one.

    `source` says who asked: ``argument``, the variable's name or ``automatic``. `layout` is the cache layout that the
    backend prefers (from depth ``loaded`` on, with a block size). `is_fallback`: a better candidate, or an earlier one
    of the request, was lost. Pickles; compares by decision, not by the time it took.
    """

    kind: str
    config: AttentionConfig
    platform: str
    backend: str | None
    depth: Depth
    candidates: tuple[Candidate, ...]
    devices: tuple[int, ...] = (0,)
    requested: tuple[str, ...] = ()
    source: str = "automatic"
    is_fallback: bool = False
    layout: str | None = None
    provenance: Provenance | None = None
    note: str | None = None
    live: bool = field(default=True, repr=False)

    @property
    def chosen(self) -> Candidate | None:
        """The winner's own record."""
        return next((item for item in self.candidates if item.outcome is Outcome.CHOSEN), None)

    def load(self) -> type[AttentionBackend]:
        """The backend's class. Imported if it was not yet. Errors: `BackendUnavailableError`, `ContractError`."""
        from hardpoint._selection_load import load_selected

        return load_selected(self)

    def explain(self) -> str:
        """A paragraph in full sentences, and a table of every candidate with every reason."""
        import textwrap

        from hardpoint._table import candidate_table

        paragraph = textwrap.fill(self._told(), 100, break_long_words=False, break_on_hyphens=False)
        return "\n".join([paragraph, *candidate_table(self.candidates, "backend")])

    def _told(self) -> str:
        who = {"argument": "asked for by argument", "automatic": "chosen automatically"}.get(
            self.source, f"asked for by {self.source}"
        )
        asked = f"It was asked for with {self.config.describe()}."
        if self.backend is None:
            return f"{self.kind} on {self.platform}: no selectable backend: {self.note}. {asked}"
        fallback = ", as a fallback" if self.is_fallback else ""
        told = [f"{self.kind} on {self.platform}: {self.backend}, {who}{fallback} (depth {self.depth}).", asked]
        names = [item.name for item in self.candidates]
        before = self.candidates[: names.index(self.backend)] if self.backend in names else ()
        if before:
            listed = "; ".join(_briefly(item) for item in before)
            told.append(f"{'What stands' if len(before) > 1 else 'The one'} before it cannot be taken: {listed}.")
        elif len(self.candidates) > 1:
            told.append(f"It stands first of {len(self.candidates)} candidates.")
        if any(item.outcome is Outcome.NOT_TRIED for item in self.candidates):
            # Otherwise than the command line, which tries all and so may call the same candidate rejected.
            told.append("What is not tried would have come later; `hardpoint select` tries every candidate.")
        return " ".join(told)

    def as_dict(self) -> dict[str, Any]:  # Any: JSON
        return {
            "kind": self.kind,
            "config": self.config.as_dict(),
            "platform": self.platform,
            "backend": self.backend,
            "depth": str(self.depth),
            "devices": list(self.devices),
            "requested": list(self.requested),
            "source": self.source,
            "is_fallback": self.is_fallback,
            "layout": self.layout,
            "provenance": None if self.provenance is None else self.provenance.as_dict(),
            "note": self.note,
            "candidates": [item.as_dict() for item in self.candidates],
        }


def _briefly(candidate: Candidate) -> str:
    """``flash_attn, not installed (pip install flash-attn)``."""
    from hardpoint._table import outcome_words

    remedy = next((reason.remedy for reason in candidate.reasons if reason.remedy), None)
    if remedy is None and candidate.reasons:
        remedy = candidate.reasons[0].message.partition("\n")[0]
    words = outcome_words(candidate.outcome)
    return f"{candidate.name}, {words} ({remedy})" if remedy else f"{candidate.name}, {words}"
