"""The report: everything that was decided in this process and why, as data; text and JSON are views of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hardpoint._fingerprint import Fingerprint, decisions_of
from hardpoint._plugins import LoadedPlugin
from hardpoint._process import current_platform, process
from hardpoint._settings import read_settings
from hardpoint._version import own_version
from hardpoint.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hardpoint._plugins import PluginEntry, Registry
    from hardpoint._selection import Selection
    from hardpoint.platforms import Platform

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a process decided. `as_dict` is JSON with a schema version, `to_text` is for people.

    It holds text and numbers only; making one resolves nothing that was not resolved before.
    """

    data: Mapping[str, Any]  # Any: JSON

    def as_dict(self) -> dict[str, Any]:  # Any: JSON
        return dict(self.data)

    def to_json(self, *, indent: int | None = 2) -> str:
        """The JSON text, keys in a fixed order."""
        import json

        return json.dumps(self.data, indent=indent, ensure_ascii=False)

    def to_text(self) -> str:
        """The whole report as plain text, 80 columns where the facts allow it."""
        from hardpoint._report_text import as_text

        return as_text(self.data)

    def __str__(self) -> str:
        return self.to_text()


def report() -> Report:
    """The report of this process as it is now. Safe at any time: it runs no plugin and resolves nothing."""
    state = process()
    platform = state.overrides[-1] if state.overrides else state.current.platform if state.current else None
    machine = state.machine
    try:
        settings: object = read_settings(machine).as_dict()
    except SettingsError as error:
        settings = {"error": str(error)}
    discovery = state.registry.discovery
    return Report(
        data={
            "schema": SCHEMA_VERSION,
            "hardpoint": own_version(),
            "machine": {
                "system": machine.system,
                "architecture": machine.architecture,
                "kernel": machine.kernel_release,
                "python": machine.python_version,
                "cpu_count": machine.cpu_count(),
                "total_memory_bytes": machine.total_memory_bytes(),
            },
            "settings": settings,
            "discovery": {
                "method": discovery.method,
                "faults": [
                    {"path": fault.path, "code": str(fault.code), "message": fault.message}
                    for fault in discovery.faults
                ],
            },
            "plugins": [
                _plugin(state.registry, entry)
                for kind in ("platform", "backend")
                for entry in state.registry.entries(kind)
            ],
            "resolution": None if state.current is None else state.current.as_dict(),
            "override": state.overrides[-1].name if state.overrides else None,
            "platform": None if platform is None else dict(platform.describe()),
            "kernels": _kernels(platform),
            "selections": [] if platform is None else [item.as_dict() for item in _selections(platform)],
            "fingerprint": None if platform is None else _fingerprint(platform).as_dict(),
        }
    )


def _plugin(registry: Registry, entry: PluginEntry) -> dict[str, Any]:
    outcome = registry.outcome_of(entry)
    data: dict[str, Any] = {"name": entry.name, **entry.provenance.as_dict(), "outcome": "not_tried", "reasons": []}
    if isinstance(outcome, LoadedPlugin):
        data["outcome"] = "loaded"
        data["reasons"] = [reason.as_dict() for reason in outcome.remarks]
        if dead := registry.dead_members(outcome):
            data["unknown_members"] = dead
    elif outcome is not None:
        data["outcome"] = str(outcome.outcome)
        data["reasons"] = [outcome.reason.as_dict()]
    return data


def _kernels(platform: Platform | None) -> dict[str, Any] | None:
    found = None if platform is None else platform.kernel_report
    return None if found is None else found.as_dict()


def _selections(platform: Platform) -> list[Selection]:
    return platform._selections.made()  # noqa: SLF001  # the core's own member, kept out of a vendor's sight


def fingerprint() -> Fingerprint:
    """The fingerprint of what this process has decided so far; resolves the platform if that was not done.

    Compare it across processes and ranks with `hardpoint.agreement`. Errors: as `resolve`.
    """
    return _fingerprint(current_platform())


def _fingerprint(platform: Platform) -> Fingerprint:
    provenance = platform._provenance  # noqa: SLF001  # as above
    return Fingerprint(
        hardpoint_version=own_version(),
        platform=platform.name,
        platform_version=None if provenance is None else provenance.version,
        decisions=decisions_of(_selections(platform)),
    )
