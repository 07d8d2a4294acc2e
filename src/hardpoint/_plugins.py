"""The registry of plugins: what discovery found and what was registered by hand, each loaded at most once.

Loading imports a plugin's light module, checks the contract, asks for its descriptor and registers it with pluggy.
Outcomes are kept, failures as text, until `hardpoint.reset`. No lock is held while a plugin's code runs.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import pluggy

from hardpoint import _contract
from hardpoint._discovery import GROUPS, Discovery, EntryPointRecord, discover, requires_hardpoint
from hardpoint._flight import SingleFlight
from hardpoint._importing import Target, import_target, is_provisional
from hardpoint._names import normalise_distribution, normalise_name
from hardpoint._probing import Failure, attempt, raise_failure
from hardpoint._reasons import Outcome, Phase, Provenance, Reason, ReasonCode
from hardpoint._say import INFO, WARNING, say_once
from hardpoint.errors import ContractError, HardpointError, ResolutionInProgressError, ResolutionTimeoutError
from hardpoint.hookspecs import PROJECT, HookSpecs, PlatformSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from hardpoint._backend_spec import BackendSpec
    from hardpoint._race import Race

_T = TypeVar("_T")
KINDS: Final = ("platform", "backend")
LOAD_TIMEOUT_SECONDS: Final = 60.0
"""How long a thread waits for another one that is importing the same plugin."""


class PluginEntry(NamedTuple):
    """A plugin that is known and not loaded: from metadata, or registered by hand with its object."""

    kind: str
    name: str
    provenance: Provenance
    record: EntryPointRecord | None = None
    plugin: object = None

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What tells it apart from every other plugin."""
        distribution = normalise_distribution(self.provenance.distribution or "")
        return self.kind, self.name, distribution, self.provenance.target or ""


class LoadedPlugin(NamedTuple):
    """A plugin whose descriptor is known. `remarks` are what is odd about it and did not stop it."""

    entry: PluginEntry
    plugin: object
    spec: PlatformSpec | BackendSpec
    remarks: tuple[Reason, ...] = ()

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def provenance(self) -> Provenance:
        return self.entry.provenance


class _Attempt(Generic[_T]):
    """Loading something of a plugin under the failure rule. Keeps the original exception for the thread that ran it."""

    def __init__(
        self, load: Callable[[], _T], phase: Phase, provenance: Provenance, target: Target | None, *, inspecting: bool
    ) -> None:
        self.load = load
        self.phase = phase
        self.provenance = provenance
        self.own_modules = target.modules if target is not None else ()
        self.inspecting = inspecting
        self.original: BaseException | None = None

    def run(self) -> _T | Failure:
        """The result, or the failure. A bug propagates, unless inspecting."""
        return attempt(
            self._load,
            phase=self.phase,
            provenance=self.provenance,
            own_modules=self.own_modules,
            inspecting=self.inspecting,
        )

    def _load(self) -> _T:
        try:
            return self.load()
        except Exception as error:
            self.original = error
            raise


class _Manager(pluggy.PluginManager):
    """Does not ask what every object has whether it is a hook."""

    def parse_hookspec_opts(self, module_or_class: object, name: str) -> pluggy.HookspecOpts | None:
        return None if name in _contract.NEVER_HOOKS else super().parse_hookspec_opts(module_or_class, name)  # type: ignore[arg-type]

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        return None if name in _contract.NEVER_HOOKS else super().parse_hookimpl_opts(plugin, name)


class Registry:
    """One set of plugins. `generation` counts every change to what is known."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._discovery: Discovery | None = None
        self._manual: list[PluginEntry] = []
        self._entries: dict[str, tuple[int, tuple[PluginEntry, ...]]] = {}
        self._loaded: dict[tuple[str, ...], LoadedPlugin | Failure] = {}
        self._classes: dict[tuple[str, ...], type[Any] | Failure] = {}
        self._registered: dict[tuple[str, ...], object] = {}
        self._dead_members: dict[tuple[str, ...], list[str]] = {}
        self._flight: SingleFlight[Any] = SingleFlight()
        self._manager = _Manager(PROJECT)
        self._manager.add_hookspecs(HookSpecs)
        self.generation = 0
        self.races: dict[tuple[object, ...], tuple[int, Race]] = {}
        """Of `hardpoint._race`: by kind and settings, with the generation that it was run in."""

    @property
    def discovery(self) -> Discovery:
        """What the metadata say. Read once; marked done only after success."""
        found = self._discovery
        if found is None:
            found = self._flight.run(
                "discovery",
                self._discover,
                timeout_seconds=LOAD_TIMEOUT_SECONDS,
                reentered=_reentered_load,
                timed_out=_load_timed_out,
            )
        return found

    def _discover(self) -> Discovery:
        if self._discovery is None:
            found = discover()
            for fault in found.faults:
                say_once(WARNING, "plugin discovery: %s", fault.message)
            self._discovery = found
        return self._discovery

    def renew_lock(self) -> None:
        """For the child of a fork, where the thread that holds the lock may not exist."""
        self._lock = threading.RLock()

    def entries(self, kind: str) -> tuple[PluginEntry, ...]:
        """Every known plugin of a kind, sorted by name, then distribution."""
        generation = self.generation
        known = self._entries.get(kind)
        if known is not None and known[0] == generation:
            return known[1]
        group = GROUPS[KINDS.index(kind)]
        found: dict[tuple[str, ...], PluginEntry] = {}
        for record in self.discovery.entries:
            if record.group == group:
                entry = _entry_of(kind, record)
                found.setdefault(entry.key, entry)
        for entry in self._manual:
            if entry.kind == kind:
                found.setdefault(entry.key, entry)
        entries = tuple(sorted(found.values(), key=lambda entry: entry.key))
        self._entries[kind] = (generation, entries)
        return entries

    def register(self, kind: str, name: str, plugin: object, distribution: str | None) -> PluginEntry:
        """Add a plugin without metadata, checked at once. Errors: `ContractError`; then nothing was added."""
        if kind not in KINDS:
            raise ContractError(f"register(kind={kind!r}): known are {', '.join(KINDS)}")
        given: object = name
        name = normalise_name(given) if isinstance(given, str) else ""
        if not name:
            raise ContractError(f"register(name={given!r}): expected a name")
        provenance = Provenance(plugin=f"{kind}/{name}", distribution=distribution, target="(registered)")
        entry = PluginEntry(kind=kind, name=name, provenance=provenance, plugin=plugin)
        for other in self.entries(kind):
            if other.name == name and other.key == entry.key:
                raise ContractError(f"{provenance} is registered already", plugin=provenance.plugin)
        loaded = self._describe(entry, plugin, [])
        if isinstance(loaded, Failure):
            raise ContractError(f"{provenance}: {loaded.reason.message}", plugin=provenance.plugin)
        with self._lock:
            self._manual.append(entry)
            self._loaded[entry.key] = loaded
            self.generation += 1
        return entry

    def load(
        self,
        entry: PluginEntry,
        *,
        inspecting: bool = False,
        raise_as: Callable[[Failure], HardpointError] | None = None,
    ) -> LoadedPlugin | Failure:
        """The plugin's descriptor, or why there is none. The outcome, a failure too, is kept; a bug is not."""
        target = Target.parse(entry.provenance.target or "")

        def load() -> LoadedPlugin | Failure:
            if target is None:
                raise ContractError(
                    f"{entry.provenance}: entry point value {entry.provenance.target!r} is not 'package.module:object'",
                    plugin=entry.provenance.plugin,
                )
            foreign: list[str] = []
            plugin = import_target(target, entry.provenance, foreign=foreign)
            return self._describe(entry, plugin, foreign)

        attempt_to_load = _Attempt(load, Phase.LOAD, entry.provenance, target, inspecting=inspecting)
        return self._once(self._loaded, entry.key, attempt_to_load, raise_as)

    def _once(
        self,
        outcomes: dict[tuple[str, ...], _T | Failure],
        key: tuple[str, ...],
        attempt_to_load: _Attempt[_T],
        raise_as: Callable[[Failure], HardpointError] | None,
    ) -> _T | Failure:
        """The kept outcome, or the attempt's, which is kept unless it is a bug or a circle of imports that is open yet.

        One attempt for all threads.
        """
        flight = (outcomes is self._classes, attempt_to_load.inspecting, key)

        def compute() -> _T | Failure:
            known = outcomes.get(key)
            if known is not None:
                return known
            self._flight.note_progress(flight, str(attempt_to_load.provenance))
            found = attempt_to_load.run()
            if not (isinstance(found, Failure) and (found.outcome is Outcome.BUG or is_provisional([found.reason]))):
                outcomes[key] = found
            return found

        try:
            outcome = outcomes.get(key)
            if outcome is None:
                outcome = self._flight.run(
                    flight,
                    compute,
                    timeout_seconds=LOAD_TIMEOUT_SECONDS,
                    reentered=_reentered_load,
                    timed_out=_load_timed_out,
                )
            if isinstance(outcome, Failure) and raise_as is not None and outcome.outcome is not Outcome.BUG:
                raise_failure(outcome, attempt_to_load.provenance, raise_as, attempt_to_load.original)
            return outcome
        finally:
            attempt_to_load.original = None

    def _describe(self, entry: PluginEntry, plugin: object, foreign: list[str]) -> LoadedPlugin | Failure:
        provenance = entry.provenance
        _contract.check_object(entry.kind, plugin, provenance)
        name = f"{entry.kind}/{entry.name}"
        with self._lock:
            if self._registered.get(entry.key) is plugin and self._manager.is_registered(plugin):
                # A fork came between registering and keeping the outcome: the child goes on from there.
                self._manager.unregister(plugin)
            if self._manager.has_plugin(name):
                # Another distribution's plugin of this name: both are described, so that `replaces` can settle it.
                name = f"{name} ({provenance.distribution or 'registered'})"
            # Before, so that a fork in between leaves the child a mark without a plugin, never the other way round.
            self._registered[entry.key] = plugin
            try:
                self._manager.register(plugin, name=name)
            except ValueError:
                self._registered.pop(entry.key)
                other = self._manager.get_name(plugin)
                raise ContractError(
                    f"{provenance}: this very object, or its equal, is a plugin already, {other}; each needs its own",
                    plugin=provenance.plugin,
                ) from None
            except pluggy.PluginValidationError as error:
                raise ContractError(f"{provenance}: {error}", plugin=provenance.plugin) from None
        try:
            spec = self.call(plugin, f"hardpoint_{entry.kind}")
            if spec is None:
                self._manager.unregister(plugin)
                self._registered.pop(entry.key, None)
                declined = Reason(code=ReasonCode.DECLINED, message=f"declined: hardpoint_{entry.kind}() returned None")
                say_once(INFO, "%s %s", provenance, declined.message)
                return Failure(Outcome.DECLINED, Phase.LOAD, declined)
            remarks = _contract.check_spec(entry.kind, spec, provenance, lambda: _requirement(entry))
        except BaseException:
            # Nothing half-registered stays behind.
            self._manager.unregister(plugin)
            self._registered.pop(entry.key, None)
            raise
        if foreign:
            remarks.append(
                f"{provenance} is not light: loading {provenance.target!r} also imported {', '.join(foreign)}; "
                "a plugin module may import the standard library and hardpoint only"
            )
        for remark in remarks:
            say_once(WARNING, "%s", remark)
        reasons = tuple(Reason(code=ReasonCode.CONTRACT, message=remark) for remark in remarks)
        return LoadedPlugin(entry=entry, plugin=plugin, spec=spec, remarks=reasons)

    def call(self, plugin: object, hook: str, **arguments: object) -> Any:  # noqa: ANN401  # each hook has its own type
        """Call one plugin's implementation of a hook, alone, with the arguments that it asks for."""
        for implementation in getattr(self._manager.hook, hook).get_hookimpls():
            if implementation.plugin is plugin:
                return implementation.function(*(arguments[name] for name in implementation.argnames))
        return None

    def load_class(
        self,
        loaded: LoadedPlugin,
        base: type,
        *,
        phase: Phase,
        inspecting: bool = False,
        raise_as: Callable[[Failure], HardpointError] | None = None,
    ) -> type[Any] | Failure:
        """The class behind a descriptor's lazy target, checked against `base`. The outcome is kept, as in `load`."""
        key = (*loaded.entry.key, "class")
        text = loaded.spec.target
        target = Target.parse(text)

        def load() -> type[Any]:
            if target is None:
                raise ContractError(f"{loaded.provenance}: target {text!r}", plugin=loaded.provenance.plugin)
            found = import_target(target, loaded.provenance)
            dead = _contract.check_class(found, base, loaded.provenance, text)
            if dead:
                self._dead_members[key] = dead
                say_once(INFO, "%s: %s defines members that the contract does not know: %s",
                    loaded.provenance, text, ", ".join(dead),
                )  # fmt: skip
            if loaded.entry.kind == "backend":
                _contract.check_validate_signature(found, loaded.provenance)
            cls: type[Any] = found
            return cls

        return self._once(
            self._classes, key, _Attempt(load, phase, loaded.provenance, target, inspecting=inspecting), raise_as
        )

    def dead_members(self, loaded: LoadedPlugin) -> list[str]:
        """Public members of the loaded class that the contract does not know."""
        return self._dead_members.get((*loaded.entry.key, "class"), [])

    def outcome_of(self, entry: PluginEntry) -> LoadedPlugin | Failure | None:
        """What became of loading it so far; None: not tried."""
        return self._loaded.get(entry.key)


def _entry_of(kind: str, record: EntryPointRecord) -> PluginEntry:
    name = normalise_name(record.name)
    provenance = Provenance(
        plugin=f"{kind}/{name}",
        distribution=record.distribution,
        version=record.version,
        target=record.value,
        file=record.metadata_path,
    )
    return PluginEntry(kind=kind, name=name, provenance=provenance, record=record)


def _requirement(entry: PluginEntry) -> str | None:
    return None if entry.record is None else requires_hardpoint(entry.record)


def _reentered_load(progress: str) -> HardpointError:
    return ResolutionInProgressError(
        f"{progress} asks hardpoint for something that needs {progress} itself while it is being loaded; "
        "move the call out of module scope, into a function"
    )


def _load_timed_out(progress: str) -> HardpointError:
    return ResolutionTimeoutError(
        f"waited {LOAD_TIMEOUT_SECONDS:g} s for another thread to load {progress or 'the plugin list'}"
    )


__all__ = ["KINDS", "LoadedPlugin", "PluginEntry", "Registry"]
