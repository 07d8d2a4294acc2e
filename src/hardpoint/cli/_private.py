"""What a page that is passed on must not hold: names, paths and secrets of this computer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hardpoint._private import private_facts
from hardpoint._redaction import Redactor

if TYPE_CHECKING:
    from collections.abc import Mapping

    Json = Any  # what JSON can hold


def without_private(data: Mapping[str, Json]) -> dict[str, Json]:
    """A redacted copy, by the same function that a snapshot goes through."""
    redacted: dict[str, Json] = Redactor(private_facts()).data(dict(data))
    return redacted
