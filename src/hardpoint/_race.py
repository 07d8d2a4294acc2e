"""The race: which plugins of a kind take part in a decision, loaded, with what became of those that do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hardpoint._gatekeeping import gatekeeping, labels_of
from hardpoint._importing import decided_provisionally
from hardpoint._names import near_miss, normalise_distribution, normalise_name, unknown_name_text
from hardpoint._plugins import KINDS, LoadedPlugin, PluginEntry, Registry
from hardpoint._probing import Failure
from hardpoint._reasons import Candidate, Outcome, Phase, Reason, ReasonCode
from hardpoint._say import WARNING, say_once
from hardpoint.errors import ContractError, HardpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hardpoint._settings import Settings


class Race(NamedTuple):
    """Loaded plugins in order of name, and a candidate for each plugin that is out already."""

    runners: tuple[LoadedPlugin, ...]
    out: tuple[Candidate, ...]


def start_race(
    registry: Registry,
    kind: str,
    settings: Settings,
    *,
    names: Sequence[str] | None = None,
    inspecting: bool = False,
    raise_as: Callable[[PluginEntry, Failure], HardpointError] | None = None,
    note_progress: Callable[[str], None] | None = None,
) -> Race:
    """Load the plugins of a kind, or only those of the given (normalised) names.

    A plugin that cannot be loaded is recorded; `raise_as` makes its environment failure the error of an explicit
    request. Contract errors are then raised as they are. Bugs propagate, unless `inspecting`. `note_progress` is told
    whose module is loaded next. What became of all plugins of a kind is kept for as long as the registry knows the same
    ones.
    """
    if names is not None or inspecting or raise_as is not None:
        return _run(registry, kind, settings, names, note_progress, inspecting=inspecting, raise_as=raise_as)
    key = (kind, settings.plugins, settings.disabled_plugins)
    generation = registry.generation
    known = registry.races.get(key)
    if known is not None and known[0] == generation:
        return known[1]
    race = _run(registry, kind, settings, None, note_progress)
    if not decided_provisionally(race.out):
        registry.races[key] = (generation, race)
    return race


def _run(
    registry: Registry,
    kind: str,
    settings: Settings,
    names: Sequence[str] | None,
    note_progress: Callable[[str], None] | None,
    *,
    inspecting: bool = False,
    raise_as: Callable[[PluginEntry, Failure], HardpointError] | None = None,
) -> Race:
    runners: list[LoadedPlugin] = []
    out: list[Candidate] = []
    by_name: dict[str, list[PluginEntry]] = {}
    for entry in registry.entries(kind):
        if names is None or entry.name in names:
            by_name.setdefault(entry.name, []).append(entry)
    for entries in by_name.values():
        admitted: list[LoadedPlugin | tuple[PluginEntry, Failure]] = []
        for entry in entries:
            if reason := gatekeeping(entry, registry, settings):
                outcome = Outcome.UNTRUSTED if reason.code is ReasonCode.UNTRUSTED else Outcome.BLOCKED
                out.append(_refused(entry, outcome, reason))
                continue
            if note_progress is not None:
                note_progress(str(entry.provenance))
            loaded = registry.load(
                entry,
                inspecting=inspecting,
                raise_as=None if raise_as is None else _bind(raise_as, entry),
            )
            admitted.append((entry, loaded) if isinstance(loaded, Failure) else loaded)
        if len(admitted) > 1:
            winner, losers = _settle(kind, admitted, explicit=raise_as is not None)
            out += losers
            runners += winner
            continue
        for item in admitted:
            if isinstance(item, LoadedPlugin):
                runners.append(item)
            else:
                out.append(item[1].as_candidate(item[0].name, item[0].provenance))
    return Race(tuple(runners), tuple(out))


def _bind(
    raise_as: Callable[[PluginEntry, Failure], HardpointError], entry: PluginEntry
) -> Callable[[Failure], HardpointError]:
    return lambda failure: raise_as(entry, failure)


def _refused(entry: PluginEntry, outcome: Outcome, reason: Reason) -> Candidate:
    return Candidate(
        name=entry.name, outcome=outcome, reasons=(reason,), provenance=entry.provenance, phase=Phase.DISCOVER
    )


def _settle(
    kind: str, rivals: Sequence[LoadedPlugin | tuple[PluginEntry, Failure]], *, explicit: bool
) -> tuple[list[LoadedPlugin], list[Candidate]]:
    """One name, several plugins: the one that says `replaces` wins; without exactly one such, none does."""
    entries = [item.entry if isinstance(item, LoadedPlugin) else item[0] for item in rivals]
    distributions = {normalise_distribution(entry.provenance.distribution or "") for entry in entries}
    replacers = [
        item
        for item in rivals
        if isinstance(item, LoadedPlugin)
        and item.spec.replaces
        and normalise_distribution(item.spec.replaces) in distributions
        and normalise_distribution(item.spec.replaces) != normalise_distribution(item.provenance.distribution or "")
    ]
    if len(replacers) == 1:
        winner = replacers[0]
        replaced = [entry for entry in entries if entry is not winner.entry]
        reasons = (Reason(code=ReasonCode.DUPLICATE, message=f"replaced by {winner.provenance}"),)
        losers = [
            Candidate(
                name=e.name, outcome=Outcome.NOT_TRIED, reasons=reasons, provenance=e.provenance, phase=Phase.LOAD
            )
            for e in replaced
        ]
        return [winner], losers
    listed = " and ".join(str(entry.provenance) for entry in entries)
    text = f"{len(entries)} distributions bring a {kind} named {entries[0].name!r}: {listed}"
    remedy = "uninstall all but one, or name the unwanted distribution in HARDPOINT_DISABLED_PLUGINS"
    if explicit:
        raise ContractError(f"{text}; {remedy}", plugin=f"{kind}/{entries[0].name}", code=ReasonCode.DUPLICATE)
    reason = Reason(code=ReasonCode.DUPLICATE, message=text, remedy=remedy)
    return [], [
        Candidate(name=e.name, outcome=Outcome.CONTRACT, reasons=(reason,), provenance=e.provenance, phase=Phase.LOAD)
        for e in entries
    ]


def warn_unknown_items(registry: Registry, settings: Settings) -> None:
    """Warn once of each item of HARDPOINT_DISABLED_PLUGINS that disables nothing: somebody meant it to."""
    if not settings.disabled_plugins:
        return
    known = {label for kind in KINDS for entry in registry.entries(kind) for label in labels_of(entry)}
    for item in settings.disabled_plugins:
        if item in known:
            continue
        meant = [label for label in sorted(known) if label.endswith(f"/{normalise_name(item)}")]
        close = " or ".join(meant) or near_miss(item, known)
        guess = f"; did you mean {close}?" if close else ""
        say_once(WARNING, "HARDPOINT_DISABLED_PLUGINS: there is no plugin or distribution %s to disable%s", item, guess)


def unknown_names(
    registry: Registry, kind: str, names: Iterable[str], also_known: Iterable[str] = ()
) -> dict[str, str]:
    """The names that no plugin of the kind has, each with a sentence that guesses the nearest real one."""
    installed = {entry.name for entry in registry.entries(kind)}
    known = installed | set(also_known)
    return {name: unknown_name_text(kind, name, installed, known) for name in names if name not in known}
