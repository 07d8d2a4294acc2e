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
        """A paragraph and a line for every candidate."""
        who = {"argument": "asked for by argument", "automatic": "chosen automatically"}.get(
            self.source, f"asked for by {self.source}"
        )
        if self.backend is None:
            head = f"{self.kind} on {self.platform}: no selectable backend: {self.note}"
        else:
            fallback = ", as a fallback" if self.is_fallback else ""
            head = f"{self.kind} on {self.platform}: {self.backend}, {who}{fallback} (depth {self.depth})"
        lines = [head, f"  for {self.config.describe()}"]
        for item in self.candidates:
            why = f" [{item.rank_reason}]" if item.rank_reason else ""
            remedies = "; ".join(dict.fromkeys(reason.remedy for reason in item.reasons if reason.remedy))
            lines.append(f"  {item.describe()}{why}" + (f" -> {remedies}" if remedies else ""))
        return "\n".join(lines)

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
