"""The process's own answers: the live machine, the plugins, the current platform. `reset` forgets all of it."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hardpoint._flight import SingleFlight
from hardpoint._importing import decided_provisionally
from hardpoint._machine_live import LiveMachine
from hardpoint._names import normalise_name
from hardpoint._plugins import Registry
from hardpoint._race import warn_unknown_items
from hardpoint._requests import read_request
from hardpoint._resolution import Resolution, in_progress_error, resolve_platform, resolving_here
from hardpoint._say import WARNING, say_once
from hardpoint._settings import read_settings, warn_unknown
from hardpoint.errors import HardpointError, ResolutionTimeoutError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hardpoint._machine import Machine
    from hardpoint.platforms import Platform


class _Process:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.machine = LiveMachine()
        self.registry = Registry()
        self.flight: SingleFlight[Resolution] = SingleFlight()
        self.current: Resolution | None = None
        self.by_name: dict[str, Resolution] = {}
        self.overrides: list[Platform] = []

    def resolve(
        self,
        platform: str | Sequence[str] | None = None,
        machine: Machine | None = None,
        *,
        strict: bool | None = None,
        kept_as: str | None = None,
    ) -> Resolution:
        """One resolution. With `kept_as` (a name, or empty for the current platform) it is kept, and made only once."""
        if (plugin := resolving_here()) is not None:
            raise in_progress_error(plugin)
        machine = machine or self.machine
        settings = read_settings(machine)
        warn_unknown(machine)
        request = read_request(platform, settings.platform, "HARDPOINT_PLATFORM", "platform")
        is_strict = settings.strict if strict is None else strict
        key = (request, is_strict, id(machine), kept_as)
        limit = settings.probe_timeout_seconds

        def compute() -> Resolution:
            # Inside the flight: a thread that comes after its end finds the answer, never a second resolution.
            known = self.kept(kept_as)
            if known is not None:
                return known
            warn_unknown_items(self.registry, settings)
            found = resolve_platform(
                self.registry,
                machine,
                settings,
                request,
                strict=is_strict,
                note_progress=lambda text: self.flight.note_progress(key, text),
            )
            if not decided_provisionally(found.candidates):
                self.keep(kept_as, found)
            return found

        def timed_out(plugin: str) -> HardpointError:
            return ResolutionTimeoutError(
                f"waited {limit:g} s for another thread that is resolving the platform; it is at "
                f"{plugin or 'the plugin list'} (HARDPOINT_PROBE_TIMEOUT sets the limit, "
                "HARDPOINT_DISABLED_PLUGINS leaves a plugin out)"
            )

        return self.flight.run(key, compute, timeout_seconds=limit, reentered=in_progress_error, timed_out=timed_out)

    def kept(self, name: str | None) -> Resolution | None:
        """The kept resolution of a name (empty: the current one)."""
        if name is None:
            return None
        if not name or (self.current is not None and self.current.platform.name == name):
            return self.current
        return self.by_name.get(name)

    def keep(self, name: str | None, found: Resolution) -> None:
        """Keep a resolution under a name (empty: as the current one)."""
        if name:
            self.by_name[name] = found
        elif name is not None:
            self.current = found

    def named(self, name: str) -> Platform:
        """A platform by name, the same object every time."""
        key = normalise_name(name)
        if not key:
            raise SettingsError(f"platform={name!r}: expected a name", setting="platform", value=name)
        return (self.kept(key) or self.resolve(key, kept_as=key)).platform


_process: _Process | None = None
_process_lock = threading.Lock()


def process() -> _Process:
    """The one instance, made at the first question."""
    global _process  # noqa: PLW0603  # the process has one state, and this module is its home
    found = _process
    if found is None:
        with _process_lock:
            found = _process = _process or _Process()
    return found


def resolve(
    platform: str | Sequence[str] | None = None,
    machine: Machine | None = None,
    strict: bool | None = None,  # noqa: FBT001  # the order is the design's
) -> Resolution:
    """Resolve the platform afresh and say how it was decided.

    `platform`: a name, or names in order of preference (a last ``auto`` opens the automatic order); it beats
    ``HARDPOINT_PLATFORM``. `machine`: another machine than this one. `strict` makes every loss of a better candidate
    the error (default: ``HARDPOINT_STRICT``). Threads that ask the same at the same time share one answer. Imports no
    torch; creates no compute context.

    Errors: `UnknownPlatformError`, `PlatformUnavailableError`, `AmbiguousPlatformError`, `NoPlatformError` (all
    `ValueError`); `ResolutionInProgressError` from within a plugin; `ResolutionTimeoutError`. A plugin's bug
    propagates with a note.
    """
    return process().resolve(platform, machine, strict=strict)


def current_platform() -> Platform:
    """The process's platform. Resolved at the first call, then always the same object until `reset`.

    Thread-safe: 64 threads, one resolution. A forked child keeps a finished answer. Errors: as `resolve`; a failure is
    not kept.
    """
    state = process()
    if state.overrides:
        return state.overrides[-1]
    found = state.current
    if found is None:
        if (plugin := resolving_here()) is not None:
            raise in_progress_error(plugin)
        found = state.resolve(kept_as="")
    return found.platform


def platform(name: str) -> Platform:
    """A usable platform by name, beside the current one: always the same object until `reset`. Errors: as `resolve`."""
    if (plugin := resolving_here()) is not None:
        raise in_progress_error(plugin)
    return process().named(name)


@contextmanager
def override_platform(replacement: Platform | str) -> Iterator[Platform]:
    """Within the block, `current_platform` answers `replacement` (a platform, or a name) in every thread. Nests.

    For tests. The report shows it.
    """
    state = process()
    chosen = state.named(replacement) if isinstance(replacement, str) else replacement
    with state.lock:
        state.overrides.append(chosen)
    try:
        yield chosen
    finally:
        with state.lock:
            # The innermost entry of this very block, also if blocks of several threads overlap.
            for position in range(len(state.overrides) - 1, -1, -1):
                if state.overrides[position] is chosen:
                    del state.overrides[position]
                    break


def register(kind: str, name: str, plugin: object, distribution: str | None = None) -> None:
    """Register a plugin that has no metadata: in a notebook, a frozen application, an engine.

    `kind` is ``platform`` or ``backend``; `plugin` an instance or module with the hooks of `hardpoint.hookspecs`,
    checked at once. Kept until `reset`. Errors: `ContractError`; then nothing was registered.
    """
    state = process()
    entry = state.registry.register(kind, name, plugin, distribution)
    if kind == "platform" and state.current is not None:
        say_once(
            WARNING,
            "%s was registered after the platform had been resolved to %s; it takes part after hardpoint.reset()",
            entry.provenance,
            state.current.platform.name,
        )


def reset() -> None:
    """Forget everything: platforms, plugins (registered ones too), selections, what was logged once, import caches.

    Objects handed out before stay usable. Nothing is removed from ``sys.modules``.
    """
    global _process  # noqa: PLW0603  # as in `process`
    import importlib

    importlib.invalidate_caches()
    with _process_lock:
        _process = None
    if "hardpoint._log" in sys.modules:
        sys.modules["hardpoint._log"].forget_logged()


def _renew_locks() -> None:
    global _process_lock  # noqa: PLW0603  # as in `process`
    _process_lock = threading.Lock()
    if _process is not None:
        _process.lock = threading.Lock()
        _process.registry.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
