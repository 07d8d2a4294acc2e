"""Recomputing a snapshot: the decisions made anew from its facts, and what came out differently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hardpoint._gatekeeping import labels_of
from hardpoint._inspection import inspect
from hardpoint._machine_recorded import RecordedMachine
from hardpoint._names import normalise_distribution
from hardpoint._plugins import KINDS
from hardpoint._process import process
from hardpoint._reasons import Outcome, Phase, ReasonCode
from hardpoint._requests import AUTO
from hardpoint._settings import DISABLED_PLUGINS, read_settings
from hardpoint.attention import AttentionConfig

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from hardpoint._report import Report
    from hardpoint._snapshot import Snapshot

_DEEPER: Final = frozenset(map(str, (Phase.IMPORT, Phase.VALIDATE, Phase.PREPARE)))
"""Phases that nothing gets to at depth ``static``."""
_DEVICE_FIELDS: Final = (
    "name",
    "uuid",
    "pci_bus_id",
    "physical_id",
    "visible_id",
    "capability",
    "total_memory_bytes",
    "numa_node",
    "properties",
)
_WOULD_DO: Final = "would do"
_TAKEN: Final = frozenset(map(str, (Outcome.CHOSEN, Outcome.VALID)))


class Change(NamedTuple):
    """Something that came out differently. None: it is not there."""

    where: str
    recorded: str | None
    recomputed: str | None

    def __str__(self) -> str:
        return f"{self.where}: {_shown(self.recorded)} -> {_shown(self.recomputed)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
    """A report made anew from a snapshot's facts, and how it differs from the recorded one."""

    report: Report
    changes: tuple[Change, ...]

    def as_dict(self) -> dict[str, Any]:  # Any: JSON
        return {"changes": [change._asdict() for change in self.changes], "report": self.report.as_dict()}

    def to_text(self) -> str:
        """A line for each change."""
        head = "recomputed from the recorded facts, with the plugins installed here, at depth static"
        lines = [f"  {change}" for change in self.changes] or ["  nothing has changed"]
        return "\n".join([head, *lines]) + "\n"

    def __str__(self) -> str:
        return self.to_text()


def recompute(snapshot: Snapshot) -> Recomputation:
    """See `Snapshot.recompute`."""
    recorded = snapshot.report.as_dict()
    report = inspect(recorded_configs(recorded), machine=recomputing_machine(snapshot), depth="static")
    return Recomputation(report=report, changes=tuple(changes_between(recorded, report.as_dict())))


def recomputing_machine(snapshot: Snapshot) -> RecordedMachine:
    """The recorded machine, on which what this process does not trust or has disabled is left out."""
    facts, owned = snapshot.data["facts"], snapshot.data["owned"]
    banned = ",".join([facts["variables"].get(DISABLED_PLUGINS, ""), *_refused_here()]).strip(",")
    return RecordedMachine({**facts, "variables": {**facts["variables"], DISABLED_PLUGINS: banned}}, owned)


def _refused_here() -> Iterator[str]:
    """The plugins that this process does not trust or has disabled: no file can say otherwise."""
    state = process()
    settings = read_settings(state.machine)
    for kind in KINDS:
        for entry in state.registry.entries(kind):
            distribution = normalise_distribution(entry.provenance.distribution or "")
            is_strange = entry.record is not None and not entry.record.trusted and distribution not in settings.plugins
            if is_strange or labels_of(entry) & set(settings.disabled_plugins):
                yield distribution or f"{kind}/{entry.name}"


def recorded_configs(recorded: Mapping[str, Any]) -> tuple[AttentionConfig, ...]:
    """The layers that a recorded report has decided about, as far as they can be asked about here."""
    found = []
    for selection in _dicts(recorded.get("selections")):
        try:
            found.append(AttentionConfig(**_dict(selection.get("config"))))
        except (TypeError, ValueError):
            # From a version with other fields: shown as a selection that is not there any more.
            continue
    return tuple(dict.fromkeys(found))


PLATFORMS: Final = "platforms"
BACKENDS: Final = "backends"
SETTINGS: Final = "settings"
ALL_PARTS: Final = (PLATFORMS, BACKENDS, SETTINGS)


def changes_between(
    recorded: Mapping[str, Any],
    now: Mapping[str, Any],
    *,
    parts: Collection[str] = ALL_PARTS,
    only_asked: bool = False,
) -> Iterator[Change]:
    """What came out differently in a second report, in these parts of it.

    `only_asked`: of layers, those alone that both have decided about.
    """
    if recorded.get("hardpoint") != now.get("hardpoint"):
        yield Change("hardpoint", _text(recorded.get("hardpoint")), _text(now.get("hardpoint")))
    # A plugin brings settings as well.
    kinds = tuple(f"{kind}/" for kind in KINDS if f"{kind}s" in parts or SETTINGS in parts)
    yield from _differences("plugin", _plugins(recorded, kinds), _plugins(now, kinds))
    if PLATFORMS in parts:
        yield from _platform_changes(recorded, now)
    if BACKENDS in parts:
        old, new = _selections(recorded), _selections(now)
        for key in dict.fromkeys([*old, *new]):
            if not only_asked or (key in old and key in new):
                yield from _selection_changes(key, old.get(key, {}), new.get(key, {}))
    if SETTINGS in parts:
        yield from _variable_changes(recorded, now)


def is_recorded(config: Mapping[str, Any], recorded: Mapping[str, Any]) -> bool:
    """Whether a recorded report has decided about a layer."""
    return _config_key(config) in _selections(recorded)


def _platform_changes(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Change]:
    before, after = _dict(recorded.get("resolution")), _dict(now.get("resolution"))
    if before.get("platform") != after.get("platform"):
        yield Change("platform", _text(before.get("platform")), _text(after.get("platform")))
    yield from _differences("platform candidate", _verdicts(before), _verdicts(after))
    if before.get("platform") == after.get("platform"):
        yield from _differences("device", _devices(recorded), _devices(now))


def _variable_changes(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Change]:
    """Values, defaults, and who owns a variable. One that only one side knows, and nobody has set, is no news."""
    before, after = _variables(recorded), _variables(now)
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        is_news = (old is not None and new is not None) or any(item and item.is_set for item in (old, new))
        if is_news and old != new:
            yield Change(f"setting {name}", old and old.text, new and new.text)


class _Variable(NamedTuple):
    text: str
    is_set: bool


def _variables(report: Mapping[str, Any]) -> dict[str, _Variable]:
    found = {}
    for item in _dicts(report.get("variables")):
        source = item.get("source")
        if source == "unknown":
            value = "not recorded"
        elif source == "private":
            value = "set, and not shown"
        else:
            value = str(item.get("value") or item.get("default") or "not set")
        owner = f"of {item['owner']}" if item.get("owner") else "unknown, without effect"
        found[str(item.get("name"))] = _Variable(f"{value} ({owner})", source in ("environment", "private"))
    return found


def _selection_changes(key: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    # What a deeper look ruled out there stays ruled out: here nobody looks so deep.
    ruled_out = {
        _text(item.get("name")): item for item in _dicts(before.get("candidates")) if _is_ruled_out_deeper(item)
    }
    backend = _text(after.get("backend"))
    if backend in ruled_out:
        stated = after.get("requested")
        requested: list[Any] = stated if isinstance(stated, list) else []
        binds = bool(requested) and requested[-1] != AUTO
        allowed = [item for item in _dicts(after.get("candidates")) if not binds or item.get("name") in requested]
        names = [_text(item.get("name")) for item in allowed if _is_taken(item)]
        backend = next((name for name in names if name not in ruled_out), None)
    if _text(before.get("backend")) != backend:
        yield Change(f"{key}: backend", _text(before.get("backend")), backend)
    old, new = _verdicts(before), _verdicts(after)
    # Of these nothing is known but that they are still there and would be looked at; if not, that is news.
    new.update({name: old[name] for name in ruled_out if new.get(name) == _WOULD_DO})
    yield from _differences(f"{key}: candidate", old, new)


def _is_ruled_out_deeper(candidate: Mapping[str, Any]) -> bool:
    if _is_taken(candidate):
        return False
    codes = [reason.get("code") for reason in _dicts(candidate.get("reasons"))]
    return _text(candidate.get("phase")) in _DEEPER or str(ReasonCode.KERNEL_MISSING) in codes


def _is_taken(candidate: Mapping[str, Any]) -> bool:
    return _text(candidate.get("outcome")) in _TAKEN


def _verdicts(decision: Mapping[str, Any]) -> dict[str | None, str]:
    """What became of each candidate and why, by name. Which of those that would do was chosen is told apart."""
    found = {}
    for item in _dicts(decision.get("candidates")):
        reasons = "; ".join(str(reason.get("message")) for reason in _dicts(item.get("reasons")))
        found[_text(item.get("name"))] = _WOULD_DO if _is_taken(item) else f"{item.get('outcome')}: {reasons}"
    return found


def _plugins(report: Mapping[str, Any], kinds: tuple[str, ...]) -> dict[str | None, str]:
    return {
        f"{item.get('plugin')} ({item.get('distribution') or 'unknown distribution'})": str(item.get("version"))
        for item in _dicts(report.get("plugins"))
        if str(item.get("plugin")).startswith(kinds)
    }


def _devices(report: Mapping[str, Any]) -> dict[str | None, str]:
    found: dict[str | None, str] = {}
    for item in _dicts(_dict(report.get("platform")).get("devices")):
        for field in _DEVICE_FIELDS:
            if item.get(field) is not None:
                found[f"{item.get('index')}: {field}"] = _flat(item[field])
    return found


def _selections(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {_config_key(_dict(item.get("config"))): item for item in _dicts(report.get("selections"))}


def _config_key(config: Mapping[str, Any]) -> str:
    """The fields that are not as they would be if nobody had said anything."""
    usual = {
        "kind": "attention",
        "v_head_size": config.get("head_size"),
        "num_kv_heads": config.get("num_heads"),
        "kv_cache_dtype": "auto",
        "attention_type": "decoder",
        "causal": config.get("attention_type") == "decoder",
    }
    told = {name: value for name, value in config.items() if value != usual.get(name) and (name in usual or value)}
    return ", ".join(f"{name}={value}" for name, value in told.items())


def _differences(what: str, before: Mapping[str | None, str], after: Mapping[str | None, str]) -> Iterator[Change]:
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            yield Change(f"{what} {name}", before.get(name), after.get(name))


def _flat(value: Any) -> str:  # noqa: ANN401  # JSON
    if isinstance(value, dict):
        return ", ".join(f"{name}={_flat(item)}" for name, item in sorted(value.items()) if item is not None)
    if isinstance(value, list):
        return " ".join(map(_flat, value))
    return str(value)


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _shown(value: str | None) -> str:
    return "(not there)" if value is None else value
