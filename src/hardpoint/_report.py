"""The report: everything that was decided in this process and why, as data; text and JSON are views of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hardpoint._cache_directory import cache_directory
from hardpoint._fingerprint import Fingerprint, decisions_of
from hardpoint._hardware import find_hardware
from hardpoint._hints import find_hints
from hardpoint._plugins import KINDS, LoadedPlugin
from hardpoint._probing import Failure, attempt
from hardpoint._process import current_platform, process
from hardpoint._reasons import Outcome, Phase, Provenance, Reason, ReasonCode, plain_scalar, plain_text
from hardpoint._settings import CACHE_DIR, read_settings
from hardpoint._settings_table import describe_variables
from hardpoint._version import own_version
from hardpoint.errors import EnvironmentFailure, NotRecorded, SettingsError
from hardpoint.hookspecs import PlatformSpec, Rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint._backend_spec import BackendSpec
    from hardpoint._kernel_records import KernelReport
    from hardpoint._machine import Machine
    from hardpoint._plugins import PluginEntry, Registry
    from hardpoint._reasons import Candidate
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

        return _encodable(json.dumps(self.data, indent=indent, ensure_ascii=False))

    def to_text(self) -> str:
        """The whole report as plain text, 80 columns where the facts allow it."""
        from hardpoint._report_text import as_text

        return _encodable(as_text(self.data))

    def __str__(self) -> str:
        return self.to_text()


def report() -> Report:
    """The report of this process as it is now. Safe at any time: it runs no plugin and resolves nothing."""
    state = process()
    override = state.overrides[-1] if state.overrides else None
    platform = override or (state.current.platform if state.current else None)
    return build_report(
        state.machine,
        state.registry,
        resolution=None if state.current is None else state.current.as_dict(),
        override=None if override is None else override.name,
        platform=platform,
        kernels=None if platform is None else platform.kernel_report,
        selections=[] if platform is None else _selections(platform),
    )


def build_report(
    machine: Machine,
    registry: Registry,
    *,
    resolution: Mapping[str, Any] | None,
    override: str | None,
    platform: Platform | None,
    kernels: KernelReport | None,
    selections: Sequence[Selection],
    sections: Sequence[Mapping[str, Any]] = (),
    more_bugs: Sequence[Mapping[str, Any]] = (),
    left_out: Sequence[Candidate] = (),
) -> Report:
    """Put a report together from what was decided. `left_out`: plugins that no decision was asked of."""
    try:
        settings: object = read_settings(machine).as_dict()
    except SettingsError as error:
        settings = {"error": str(error)}
    discovery = registry.discovery
    chosen = [item.as_dict() for item in selections]
    others = {"candidates": [item.as_dict() for item in left_out]}
    groups = [*([] if resolution is None else [resolution]), *chosen, others]
    plugins = [_plugin(registry, entry, groups) for kind in KINDS for entry in registry.entries(kind)]
    imported = None if kernels is None else kernels.as_dict()
    described, bugs = (None, []) if platform is None else _described(platform)
    data = as_json(
        {
            "schema": SCHEMA_VERSION,
            "hardpoint": own_version(),
            "bugs": _bugs(groups, imported, platform) + bugs + list(more_bugs),
            "machine": {
                "system": machine.system,
                "architecture": machine.architecture,
                "kernel": machine.kernel_release,
                "python": machine.python_version,
                "cpu_count": machine.cpu_count(),
                "total_memory_bytes": machine.total_memory_bytes(),
            },
            "hardware": find_hardware(machine),
            "cache": _cache(machine),
            "settings": settings,
            "variables": describe_variables(machine, registry),
            "discovery": {
                "method": discovery.method,
                "faults": [
                    {"path": fault.path, "code": str(fault.code), "message": fault.message}
                    for fault in discovery.faults
                ],
            },
            "plugins": plugins,
            "resolution": resolution,
            "override": override,
            "platform": described,
            "kernels": imported,
            "selections": chosen,
            "sections": list(sections),
            "observations": [],
            "fingerprint": None if platform is None else fingerprint_of(platform, selections).as_dict(),
        }
    )
    return Report(data={**data, "hints": find_hints(data)})


def with_observations(report: Report, observations: Sequence[Mapping[str, Any]]) -> Report:
    """The report with what else was seen of plugins while they ran: ``plugin``, ``phase``, ``what``, ``remedy``."""
    data = as_json({**report.data, "observations": list(observations)})
    return Report(data={**data, "hints": find_hints(data)})


def _cache(machine: Machine) -> dict[str, Any]:  # Any: JSON
    """Where kernels would be kept, or why nowhere."""
    try:
        path = cache_directory(machine)
        chosen = any(machine.variable(name) for name in (CACHE_DIR, "XDG_CACHE_HOME", "LOCALAPPDATA"))
        home = (machine.variable("HOME") or "").strip("/")
        # Of a simulated machine nobody knows it.
        is_known = machine.live or machine.variable("HOME") is not None
        return {"directory": path, "error": None, "is_temporary": is_known and not chosen and not home}
    except NotRecorded:
        return {"directory": None, "error": None, "is_temporary": False}
    except EnvironmentFailure as error:
        reason = Reason(code=error.code, message=str(error), remedy=error.remedy)
    except SettingsError as error:
        reason = Reason(code=ReasonCode.OTHER, message=str(error), remedy=f"correct {error.setting}")
    return {"directory": None, "error": reason.as_dict(), "is_temporary": False}


def _described(platform: Platform) -> tuple[dict[str, Any], list[dict[str, Any]]]:  # Any: JSON
    """What the platform says of itself, and its bug where it fails to: its members are a plugin's code."""
    provenance = _provenance_of(platform)

    def describe() -> dict[str, Any]:
        masks = {name: _variable(platform.machine, name) for name in platform.device_control_env_vars}
        return {**platform.describe(), "masks": masks}

    found = attempt(describe, phase=Phase.REPORT, provenance=provenance, inspecting=True)
    if not isinstance(found, Failure):
        return found, []
    shown = {"name": platform.name, "devices": [device.as_dict() for device in platform.devices], "masks": {}}
    bug = {"plugin": provenance.plugin, "phase": str(found.phase), **found.reason.as_dict()}
    return {**shown, "error": found.reason.message}, [bug] if found.outcome is Outcome.BUG else []


def _variable(machine: Machine, name: str) -> str | None:
    try:
        return machine.variable(name)
    except NotRecorded:
        return None


def _provenance_of(platform: Platform) -> Provenance:
    return platform._provenance or Provenance(plugin=f"platform/{platform.name}")  # noqa: SLF001  # the core's own


def as_json(value: Any) -> Any:  # noqa: ANN401  # JSON
    """A copy that is JSON whatever plugins put in; what JSON does not have is told as text."""
    if isinstance(value, Mapping):
        return {plain_text(key): as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [as_json(item) for item in value]
    return plain_scalar(value)


def _encodable(text: str) -> str:
    """What came out of a path or a variable and is no UTF-8, as an escape: in JSON that means the same."""
    return text.encode("utf-8", "backslashreplace").decode()


def _bugs(
    groups: Sequence[Mapping[str, Any]], kernels: Mapping[str, Any] | None, platform: Platform | None
) -> list[dict[str, Any]]:
    """What was recorded as a plugin's bug, once each: it is shown first."""
    found = [item for group in groups for item in group["candidates"] if item["outcome"] == "bug"]
    bugs = [
        {"plugin": (item["provenance"] or {}).get("plugin", item["name"]), "phase": item["phase"], **reason}
        for item in found
        for reason in item["reasons"]
    ]
    bugs += [
        {
            "plugin": "unknown" if platform is None else _provenance_of(platform).plugin,
            "phase": str(Phase.IMPORT_KERNELS),
            **module["reason"],
            "message": f"{module['name']}: {module['reason']['message']}",
        }
        for module in (kernels or {}).get("modules", ())
        if module["bug"]
    ]
    return [bug for number, bug in enumerate(bugs) if bug not in bugs[:number]]


def _plugin(registry: Registry, entry: PluginEntry, groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    outcome = registry.outcome_of(entry)
    own = entry.provenance.as_dict()
    data: dict[str, Any] = {"name": entry.name, **own, "outcome": "not_tried", "reasons": [], "spec": None}
    if isinstance(outcome, LoadedPlugin):
        data["outcome"] = "loaded"
        data["reasons"] = [reason.as_dict() for reason in outcome.remarks]
        data["spec"] = _spec(outcome.spec)
        data["unknown_members"] = registry.dead_members(outcome)
    elif outcome is not None:
        data["outcome"] = str(outcome.outcome)
        data["reasons"] = [outcome.reason.as_dict()]
    else:
        # One that was not let in, or whose bug is not kept, is on record as a candidate only.
        for item in (item for group in groups for item in group["candidates"]):
            if item["provenance"] == own and item["outcome"] != str(Outcome.NOT_TRIED):
                data.update(outcome=item["outcome"], reasons=item["reasons"])
                break
    return data


def _spec(spec: PlatformSpec | BackendSpec) -> dict[str, Any]:  # Any: JSON
    """What a descriptor says that people ask for."""
    if isinstance(spec, PlatformSpec):
        return {"rank": Rank(spec.rank).name.lower().replace("_", "-"), "api": spec.api, "replaces": spec.replaces}
    return {
        "kind": spec.kind,
        "platforms": spec.platforms,
        "api": spec.api,
        "requires": spec.requires,
        "kernel_modules": spec.kernel_modules,
        "replaces": spec.replaces,
    }


def _selections(platform: Platform) -> list[Selection]:
    return platform._selections.made()  # noqa: SLF001  # the core's own member, kept out of a vendor's sight


def fingerprint() -> Fingerprint:
    """The fingerprint of what this process has decided so far; resolves the platform if that was not done.

    Compare it across processes and ranks with `hardpoint.agreement`. Errors: as `resolve`.
    """
    platform = current_platform()
    return fingerprint_of(platform, _selections(platform))


def fingerprint_of(platform: Platform, selections: Sequence[Selection]) -> Fingerprint:
    """The fingerprint of a platform and of selections that were made on it."""
    provenance = platform._provenance  # noqa: SLF001  # as above
    return Fingerprint(
        hardpoint_version=own_version(),
        platform=platform.name,
        platform_version=None if provenance is None else provenance.version,
        decisions=decisions_of(selections),
    )
