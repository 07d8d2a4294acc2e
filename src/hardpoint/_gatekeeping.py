"""Who is let in: the user's allow-list and ban-list, and the trust in the place that a plugin comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint._names import normalise_distribution
from hardpoint._plugins import KINDS
from hardpoint._reasons import Reason, ReasonCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint._plugins import PluginEntry, Registry
    from hardpoint._settings import Settings


def labels_of(entry: PluginEntry) -> set[str]:
    """What HARDPOINT_PLUGINS and HARDPOINT_DISABLED_PLUGINS may call it."""
    return {f"{entry.kind}/{entry.name}", normalise_distribution(entry.provenance.distribution or "")} - {""}


def gatekeeping(entry: PluginEntry, registry: Registry, settings: Settings) -> Reason | None:
    """Why a plugin is not even loaded: disabled, not among the allowed, or untrusted. None: go on."""
    distribution = normalise_distribution(entry.provenance.distribution or "")
    labels = labels_of(entry)
    if labels & set(settings.disabled_plugins):
        return Reason(
            code=ReasonCode.BLOCKED,
            message=f"{entry.provenance} is disabled by HARDPOINT_DISABLED_PLUGINS",
            remedy="take it out of HARDPOINT_DISABLED_PLUGINS",
        )
    allowed = settings.plugins
    if allowed and not labels & set(allowed) and _mentions_kind(entry.kind, registry, allowed):
        return Reason(
            code=ReasonCode.BLOCKED,
            message=f"{entry.provenance} is not among HARDPOINT_PLUGINS",
            remedy=f"add {entry.kind}/{entry.name} to HARDPOINT_PLUGINS",
        )
    if entry.record is not None and not entry.record.trusted and distribution not in allowed:
        return Reason(
            code=ReasonCode.UNTRUSTED,
            message=f"{entry.provenance} is not trusted: {entry.record.untrusted_reason}",
            remedy=f"install it, or set HARDPOINT_PLUGINS={entry.provenance.distribution}",
        )
    return None


def _mentions_kind(kind: str, registry: Registry, allowed: Sequence[str]) -> bool:
    """Whether the allow-list speaks of this kind: a distribution does of the kinds that it brings.

    One that nobody knows may have meant any: then nothing of either kind slips in beside it.
    """
    for item in allowed:
        if "/" in item:
            if item.startswith(f"{kind}/"):
                return True
            continue
        brought = {
            other
            for other in KINDS
            for entry in registry.entries(other)
            if normalise_distribution(entry.provenance.distribution or "") == item
        }
        if not brought or kind in brought:
            return True
    return False
