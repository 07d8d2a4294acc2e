"""What runs in the child process of a command: the whole inspection. The parent's side is `_ask.py`.

Everything goes through one pipe, in order: what plugins print, and between it the frames that say whose code begins
and ends. So whatever happens to this process, the parent knows in whose code it happened and who printed what.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading

# Bound here: a plugin may put something else into their modules.
from json import dumps
from os import _exit as end_process
from os import getpid
from os import write as write_bytes
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hardpoint import _probing
from hardpoint._probing import Failure, Replayed
from hardpoint._reasons import Outcome, Phase, Provenance, Reason
from hardpoint.errors import HardpointError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Json = Any  # what JSON can hold

FRAME_BYTES: Final = 2048
"""Of an answer, per frame. Linux writes up to 4096 bytes to a pipe at once, so that nothing comes between."""


_TIMERS: Final = tuple(
    getattr(signal, name) for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF") if hasattr(signal, name)
)


_NO_DIRECTORY: Final = {
    "plugin": "this process",
    "phase": "start",
    "what": "has no working directory: it was deleted, and what is started in it may end at once (torch, for one). "
    f"Looked at from {os.sep} instead",
    "remedy": "change to a directory that exists",
}


class _Channel:
    """Frames on the pipe that is also standard output and standard error."""

    def __init__(self, nonce: str) -> None:
        self._opening, self._closing = f"\0{nonce}<".encode(), f">{nonce}\0".encode()
        # Of its own, so that a plugin may close or replace standard output.
        self._descriptor = os.dup(1)
        self._process = getpid()

    def send(self, kind: str, text: str) -> None:
        """One frame, in one write."""
        if getpid() != self._process:
            # The copy of a plugin that forks and returns twice.
            end_process(1)
        write_bytes(self._descriptor, self._opening + kind.encode() + text.encode("ascii") + self._closing)

    def send_answer(self, kind: str, value: Json) -> None:
        """JSON of any size, in frames, with nobody else writing any more."""
        text = dumps(value)
        for start in range(0, len(text), FRAME_BYTES):
            self.send("+", text[start : start + FRAME_BYTES])
        self.send(kind, "")


class Watcher:
    """Tells the parent whose code begins and ends, replays what is known, and undoes changes of the environment."""

    def __init__(self, channel: _Channel, verdicts: Sequence[Mapping[str, Json]]) -> None:
        self._channel = channel
        self._verdicts = {(item["plugin"], item["phase"], item["what"]): item for item in verdicts}
        self._open: list[tuple[Provenance, Phase, _Before]] = []
        self.observations: list[dict[str, Json]] = []

    def begin(self, provenance: Provenance, phase: Phase, what: str) -> None:
        """See `hardpoint._probing.Watcher`."""
        known = self._verdicts.get((provenance.plugin, str(phase), what))
        if known is not None:
            reason = Reason(
                code=known["code"], message=known["message"], remedy=known["remedy"], detail=known["detail"]
            )
            raise Replayed(Failure(Outcome.BUG, phase, reason))
        self._channel.send("b", dumps([provenance.plugin, str(phase), what, str(provenance)]))
        self._open.append((provenance, phase, _Before(dict(os.environ), _running(), list(sys.path), _directory())))

    def end(self) -> None:
        """See `hardpoint._probing.Watcher`."""
        provenance, phase, before = self._open.pop()
        _flush()
        self._channel.send("e", "left" if _running() - before.running else "")
        if dict(os.environ) != before.environment:
            self._undo(provenance, phase, before.environment)
        if missing := [entry for entry in before.path if entry not in sys.path]:
            sys.path[:] = [*before.path, *(entry for entry in sys.path if entry not in before.path)]
            self._observe(provenance, phase, f"took {len(missing)} entries from the import path")
        if before.directory is not None and _directory() != before.directory:
            os.chdir(before.directory)
            self._observe(provenance, phase, "changed the working directory")

    def _undo(self, provenance: Provenance, phase: Phase, before: Mapping[str, str]) -> None:
        now = dict(os.environ)
        changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        for name in changed:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]
        self._observe(provenance, phase, f"changed the environment ({phase}): {', '.join(changed)}")

    def _observe(self, provenance: Provenance, phase: Phase, what: str) -> None:
        what = what if f"({phase})" in what else f"{what} ({phase})"
        self.observations.append(
            {
                "plugin": provenance.plugin,
                "phase": str(phase),
                "what": f"{what}; undone here, and not in an engine",
                "remedy": f"report it to its authors; HARDPOINT_DISABLED_PLUGINS={provenance.plugin} leaves it out",
            }
        )


class _Before(NamedTuple):
    """What a step finds, and should leave."""

    environment: dict[str, str]
    running: set[int]
    path: list[str]
    directory: str | None


def _directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def main(request: dict[str, Json]) -> None:
    """Answer the parent's question, and end without the interpreter's own end, where a library could hang or crash."""
    from hardpoint._probe_child import no_core_file

    os.dup2(1, 2)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Into a pipe it is written in blocks, which would come after what was said later on the other stream.
        sys.stdout.reconfigure(line_buffering=True)
    no_core_file()
    channel = _Channel(request["nonce"])
    watcher = Watcher(channel, request["verdicts"])
    try:
        os.getcwd()
    except OSError:
        # Libraries may end the process over it, as the one of Intel does that comes with torch.
        os.chdir(os.sep)
        watcher.observations.append(_NO_DIRECTORY)
    _probing.watch(watcher)
    try:
        from hardpoint.cli._answers import answer

        found = answer(request["question"])
        kind, value = "A", {"answer": found, "observations": watcher.observations}
    except HardpointError as error:
        kind, value = "E", {"type": type(error).__name__, "message": str(error)}
    _probing.watch(None)
    _flush()
    # Whatever still runs here prints into nothing from now on.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    channel.send_answer(kind, value)
    end_process(0)


def _running() -> set[int]:
    """The threads of this process that are not ours, by their ids; 0 stands for a timer that will send a signal."""
    own = {thread.native_id for thread in threading.enumerate() if thread.name.startswith("hardpoint-")}
    try:
        found = {int(name) for name in os.listdir("/proc/self/task")}
    except OSError:
        found = {thread.native_id for thread in threading.enumerate() if thread.native_id is not None}
    is_set = any(signal.getitimer(timer)[0] for timer in _TIMERS)
    return found - own | ({0} if is_set else set())


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            # A plugin has put something else there, or closed it.
            continue
