"""Every variable that matters here, ours and the plugins', as data: its value, and where that came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hardpoint._plugins import KINDS, LoadedPlugin
from hardpoint._recording import may_record_variable
from hardpoint._settings import (
    CACHE_DIR,
    DEFAULT_PROBE_TIMEOUT_SECONDS,
    DESCRIPTIONS,
    DISABLED_PLUGINS,
    INPROCESS,
    PLATFORM,
    PLUGINS,
    PROBE,
    PROBE_TIMEOUT,
    STRICT,
    backend_variable,
    unknown_variables,
)
from hardpoint._settings import KINDS as OPERATION_KINDS
from hardpoint.errors import NotRecorded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hardpoint._machine import Machine
    from hardpoint._plugins import Registry
    from hardpoint.hookspecs import Setting

_DEFAULTS: Final = {
    PLATFORM: "auto",
    PLUGINS: "all",
    DISABLED_PLUGINS: "none",
    STRICT: "0",
    PROBE: INPROCESS,
    PROBE_TIMEOUT: f"{DEFAULT_PROBE_TIMEOUT_SECONDS:g}",
    CACHE_DIR: "the user's cache directory",
    **{backend_variable(kind): "auto" for kind in OPERATION_KINDS},
}


def describe_variables(machine: Machine, registry: Registry) -> list[dict[str, Any]]:  # Any: JSON
    """Our variables, then those that loaded plugins declare, then the ones with our prefix that nobody knows.

    `value` is None where the variable is not set, is one that may hold a secret (`source` is then ``private``), or was
    not asked for on a recorded machine (``unknown``).
    """
    described = [
        _describe(machine, name, "hardpoint", DESCRIPTIONS[name], _DEFAULTS.get(name)) for name in DESCRIPTIONS
    ]
    seen = set(DESCRIPTIONS)
    for owner, setting in _settings_of_plugins(registry):
        if setting.name not in seen:
            seen.add(setting.name)
            described.append(_describe(machine, setting.name, owner, setting.description, setting.default))
    for name, meant in unknown_variables(machine, seen).items():
        told = f"did you mean {meant}?" if meant else "nobody knows it"
        row = _describe(machine, name, None, f"has no effect: {told}", None)
        described.append({**row, "meant": meant})
    return described


def _describe(
    machine: Machine, name: str, owner: str | None, description: str, default: str | None
) -> dict[str, Any]:  # Any: JSON
    try:
        value = (machine.variable(name) or "").strip() or None
        source = "default" if value is None else "environment"
    except NotRecorded:
        value, source = None, "unknown"
    if value is not None and not may_record_variable(name, (name,)):
        value, source = None, "private"
    return {
        "name": name,
        "owner": owner,
        "description": description,
        "default": default,
        "value": value,
        "source": source,
        "meant": None,
    }


def _settings_of_plugins(registry: Registry) -> Iterator[tuple[str, Setting]]:
    for kind in KINDS:
        for entry in registry.entries(kind):
            loaded = registry.outcome_of(entry)
            if isinstance(loaded, LoadedPlugin):
                for setting in loaded.spec.settings:
                    yield loaded.provenance.plugin, setting
