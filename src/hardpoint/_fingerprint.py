"""The fingerprint: what was decided, in a form that processes and ranks can compare.

It depends on decisions only: not on hash seeds, iteration order, times, paths or what else was considered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hardpoint._selection import Selection

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One layer kind's decision: kind and config as text, the backend with its version, and the cache layout.

    `reasons` (why others were not taken) travel with it for messages and do not count.
    """

    kind: str
    config: str
    backend: str | None
    version: str | None
    layout: str | None
    reasons: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[str, str, str, str, str]:
        """What counts."""
        return (self.kind, self.config, self.backend or "", self.version or "", self.layout or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """A process's decisions. Picklable; equal and of equal `digest` exactly where the decisions are."""

    hardpoint_version: str
    platform: str
    platform_version: str | None
    decisions: tuple[Decision, ...]
    schema: int = SCHEMA

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits."""
        import hashlib

        parts = [str(self.schema), self.hardpoint_version, self.platform, self.platform_version or ""]
        parts += ["\x1f".join(decision.identity) for decision in self.decisions]
        return hashlib.sha256("\x1e".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fingerprint) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[object, ...]:
        decisions = tuple(decision.identity for decision in self.decisions)
        return self.schema, self.hardpoint_version, self.platform, self.platform_version, decisions

    def as_dict(self) -> dict[str, Any]:  # Any: JSON
        return {
            "schema": self.schema,
            "digest": self.digest,
            "hardpoint_version": self.hardpoint_version,
            "platform": self.platform,
            "platform_version": self.platform_version,
            "decisions": [
                {"kind": d.kind, "config": d.config, "backend": d.backend, "version": d.version, "layout": d.layout}
                for d in self.decisions
            ],
        }

    def __str__(self) -> str:
        return self.digest


def decisions_of(selections: Iterable[Selection]) -> tuple[Decision, ...]:
    """The decisions of selections, sorted; of several for one config the last one counts."""
    found: dict[tuple[str, str], Decision] = {}
    for selection in selections:
        decision = Decision(
            kind=selection.kind,
            config=selection.config.describe(),
            backend=selection.backend,
            version=None if selection.provenance is None else selection.provenance.version,
            layout=selection.layout,
            reasons=tuple(
                candidate.describe() for candidate in selection.candidates if candidate.name != selection.backend
            ),
        )
        found[decision.kind, decision.config] = decision
    return tuple(found[key] for key in sorted(found))
