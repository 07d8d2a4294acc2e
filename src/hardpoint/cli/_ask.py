"""Asking in a child process: a plugin that crashes, hangs, exits or floods its output is survived, and named.

One child answers the whole question. Should it die or fall silent, then the plugin whose code it was in is known; the
question is asked anew with that step answered by what happened, until it is answered. Where another plugin had left
threads or a timer running, it is tried first whether all is well without that one: then it is the one to blame. Where
the process ends in nobody's code, though some plugin's ran before, it is tried which one's absence mends it.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from hardpoint._isolation import interpreter
from hardpoint._running import GRACE_SECONDS, Start, begin, describe_exit
from hardpoint._trust import script_folder
from hardpoint.cli._frames import Frames
from hardpoint.errors import HardpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Json = Any  # what JSON can hold

MAX_DEATHS: Final = 24
"""How many steps may end the child. A machine with more broken plugins than that gets an error that says so."""

_START: Final = (
    "import json, sys; request = json.load(sys.stdin.buffer); sys.path[:] = request['path']; "
    "from hardpoint.cli._child import main; main(request)"
)
_LIGHT_PHASES: Final = frozenset({"load", "detect", "report", "declared support"})
_LIGHT_FACTOR: Final = 4
_HEAVY_FACTOR: Final = 12
_HEAVY_SECONDS: Final = 60.0
"""At least this long, for an import of torch takes what it takes, however little patience a probe gets."""
_MUTE: Final = "ended without an answer"
_FLOOD_BYTES: Final = 64 * 1024
_SHOWN_CHARACTERS: Final = 4000
_SHOWN_OF_A_LINE: Final = 200


class AskError(HardpointError):
    """The child reported an error of ours (`kind` names it), or ended outside of any plugin's code (``died``)."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class Answer(NamedTuple):
    """The child's answer, and what was seen of plugins on the way."""

    value: Json
    observations: list[dict[str, Json]]


class _Step(NamedTuple):
    plugin: str
    phase: str
    what: str
    provenance: str


def ask(question: Mapping[str, Json], *, probe_timeout_seconds: float, progress: Callable[[str], None]) -> Answer:
    """Ask; `progress` is told whose turn it is. Errors: `AskError`; `OSError` where no process can be started."""
    verdicts: list[dict[str, Json]] = []
    while True:
        child = _Child(question, verdicts, probe_timeout_seconds, progress)
        answer = child.run()
        if answer is not None:
            return answer
        verdict: dict[str, Json] | None = None
        if child.may_be_spoilt():
            everybody = [child.accusation(step) for step in child.suspects()]
            if _Child(question, [*verdicts, *everybody], probe_timeout_seconds, progress).run() is None:
                # It is no plugin's doing.
                child.verdict()
        unclear: list[_Step] = []
        for suspect in child.suspects():
            accusation = child.accusation(suspect)
            trial = _Child(question, [*verdicts, accusation], probe_timeout_seconds, progress)
            answer = trial.run()
            if answer is not None and trial.has_passed(child):
                return answer
            if trial.has_passed(child):
                verdict = accusation
                break
            if not trial.has_died_like(child):
                # Without the one the other was not asked at all.
                unclear.append(suspect)
        verdicts.append(verdict or child.verdict(unclear))
        if len(verdicts) > MAX_DEATHS:
            names = ", ".join(dict.fromkeys(item["plugin"] for item in verdicts))
            raise AskError(f"plugins ended the process {len(verdicts)} times; given up. They are: {names}", "died")


class _Child:
    def __init__(
        self,
        question: Mapping[str, Json],
        verdicts: list[dict[str, Json]],
        probe_timeout_seconds: float,
        progress: Callable[[str], None],
    ) -> None:
        self._timeout = probe_timeout_seconds
        self._progress = progress
        nonce = os.urandom(8).hex()
        self._request = {"question": question, "verdicts": verdicts, "path": _path(), "nonce": nonce}
        self._frames = Frames(nonce)
        self._open: list[_Step] = []
        self._passed: dict[_Step, None] = {}
        self._left_running: list[_Step] = []
        self._printed: dict[_Step | None, int] = {}
        self._tail = b""
        self._answer: list[str] = []
        self._ended = ""
        self._timed_out = False
        self._is_mute = False

    def run(self) -> Answer | None:
        """The answer; None: the child ended or fell silent in a plugin's code, see `verdict`."""
        start = Start([*interpreter(), "-c", _START], None, has_input=True)
        chunks: queue.Queue[bytes | None] = queue.Queue(maxsize=64)
        threads: list[threading.Thread] = []
        try:
            process = start.wait()
            stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
            if stdin is None or stdout is None or stderr is None:
                raise OSError("the process was started without pipes")
            content = json.dumps(self._request).encode()
            threads += (
                threading.Thread(target=_write, args=(stdin, content), daemon=True),
                threading.Thread(target=_read, args=(stdout, chunks), daemon=True),
                threading.Thread(target=_read, args=(stderr, chunks), daemon=True),
            )
            for thread in threads:
                begin(thread)
            answer = self._listen(chunks, lambda: process.poll() is not None)
            if answer is None and not self._timed_out:
                # The end of its output is not its own: what ends it then is us.
                self._is_mute = not _ends(process)
        finally:
            # With all that it has started.
            start.end()
            _finish(threads, chunks)
        if answer is None and not self._timed_out:
            self._ended = _MUTE if self._is_mute else describe_exit(process.returncode)
        return answer

    def _listen(self, chunks: queue.Queue[bytes | None], has_ended: Callable[[], bool]) -> Answer | None:
        """Take in what the child sends, until its answer, its end, or too long a silence."""
        deadline = time.monotonic() + self._limit()
        open_streams = 2
        while open_streams:
            try:
                chunk = chunks.get(timeout=0.2)
            except queue.Empty:
                if has_ended():
                    # Something that it has started holds the pipe still.
                    return None
                if time.monotonic() > deadline:
                    self._timed_out = True
                    return None
                continue
            if chunk is None:
                open_streams -= 1
                continue
            for kind, content in self._frames.feed(chunk):
                if kind in "be":
                    deadline = self._turn(kind, content)
                elif kind == "+":
                    self._answer.append(content.decode("ascii"))
                elif kind in "AE":
                    return self._read_answer(kind)
                else:
                    self._note_output(content)
            if time.monotonic() > deadline:
                # It prints and prints.
                self._timed_out = True
                return None
        return None

    def _turn(self, kind: str, content: bytes) -> float:
        if kind == "b":
            step = _Step(*json.loads(content))
            self._open.append(step)
            self._tail = b""
            self._progress(f"{step.plugin}: {step.phase} {step.what}".rstrip())
        elif self._open:
            step = self._open.pop()
            self._passed[step] = None
            if content and step not in self._left_running:
                self._left_running.append(step)
        return time.monotonic() + self._limit()

    def _note_output(self, content: bytes) -> None:
        step = self._open[-1] if self._open else None
        self._printed[step] = self._printed.get(step, 0) + len(content)
        self._tail = (self._tail + content)[-_SHOWN_CHARACTERS:]

    def _read_answer(self, kind: str) -> Answer | None:
        try:
            value = json.loads("".join(self._answer))
        except ValueError:
            # Something else wrote between.
            return None
        if kind == "E":
            raise AskError(value["message"], value["type"])
        floods = [
            {
                "plugin": step.plugin,
                "phase": step.phase,
                "what": f"printed {_size(count)} ({step.phase})",
                "remedy": f"report it to its authors; HARDPOINT_DISABLED_PLUGINS={step.plugin} leaves it out",
            }
            for step, count in self._printed.items()
            if step is not None and count >= _FLOOD_BYTES
        ]
        return Answer(value["answer"], [*value["observations"], *floods])

    def _limit(self) -> float:
        """How long the present step may take, in seconds."""
        light = bool(self._open) and self._open[-1].phase in _LIGHT_PHASES
        return self._timeout * _LIGHT_FACTOR if light else max(self._timeout * _HEAVY_FACTOR, _HEAVY_SECONDS)

    def may_be_spoilt(self) -> bool:
        """Whether the process ended in nobody's code, after some plugin's, which may have changed what all rely on."""
        return not self._open and not self._timed_out and bool(self._passed)

    def suspects(self) -> list[_Step]:
        """The steps of other plugins that had left something running when the process ended.

        Where it ended in nobody's code, all that ran before, the last one first.
        """
        if self.may_be_spoilt():
            return list(dict.fromkeys([*self._left_running, *reversed(self._passed)]))[:MAX_DEATHS]
        dying = self._open[-1].plugin if self._open else None
        return [step for step in self._left_running if step.plugin != dying]

    def has_passed(self, other: _Child) -> bool:
        """Whether the step in which the other process ended was passed here; if it ended in none: whether this did."""
        if not other._open:
            return not self._timed_out and not self._ended
        return other._open[-1] in self._passed

    def has_died_like(self, other: _Child) -> bool:
        """Whether this process ended in the same step."""
        return bool(self._timed_out or self._ended) and self._open[-1:] == other._open[-1:]

    def accusation(self, suspect: _Step) -> dict[str, Json]:
        """The outcome of a step that has left something running or spoilt, if that is what ended the process."""
        code, message = self._what_happened()
        if suspect in self._left_running:
            during = f" while {self._open[-1].plugin} was running ({self._open[-1].phase})" if self._open else ""
            told = f"left threads or a timer running, and then the process {message}{during}"
        else:
            told = f"spoils the process for all others, which then {message}, after {self._last_line()!r}"
        return self._as_outcome(suspect, code, told)

    def verdict(self, unclear: Sequence[_Step] = ()) -> dict[str, Json]:
        """What happened, as the outcome of the step in which it did; it may be the doing of `unclear`.

        Errors: `AskError` where it was in no plugin's code.
        """
        code, message = self._what_happened()
        if not self._open:
            text = self._tail.decode("utf-8", "replace").strip()
            raise AskError(
                f"the process that inspects the machine {message}, in no plugin's code\n{text}".rstrip(), "died"
            )
        if code == "crashed" and not self._is_mute:
            is_exit = self._ended.startswith("exited")
            message = f"ended the process: it {message}" if is_exit else f"{message}, and would take an engine with it"
            # Of a crash the last lines are the interpreter's own.
            message += f", after {self._last_line()!r}" if is_exit and self._last_line() else ""
        if unclear:
            others = " and ".join(dict.fromkeys(step.plugin for step in unclear))
            message += f"; or it is the doing of {others}, which had left threads or a timer running"
        return self._as_outcome(self._open[-1], code, message)

    def _last_line(self) -> str:
        lines = [line.strip() for line in self._tail.decode("utf-8", "replace").splitlines() if line.strip()]
        return lines[-1][:_SHOWN_OF_A_LINE] if lines else ""

    def _what_happened(self) -> tuple[str, str]:
        if self._timed_out:
            return "timeout", f"hangs: no answer within {self._limit():g} s"
        if self._is_mute:
            return "crashed", f"{self._ended}: the process's descriptors are closed"
        return "crashed", self._ended

    def _as_outcome(self, step: _Step, code: str, message: str) -> dict[str, Json]:
        text = self._tail.decode("utf-8", "replace").strip()
        return {
            "plugin": step.plugin,
            "phase": step.phase,
            "what": step.what,
            "code": code,
            "message": message if not step.what else f"{message} [{step.what}]",
            "remedy": f"report it to its authors; until then: HARDPOINT_DISABLED_PLUGINS={step.plugin}",
            "detail": text or None,
        }


def _path() -> list[str]:
    """This process's import path, without what Python put there for the sake of the script or the folder it ran from.

    An engine would not have that; and what is found only there is not trusted.
    """
    entries: list[object] = [*sys.path]
    path = [entry for entry in entries if isinstance(entry, str)]
    implicit = script_folder()
    own = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if implicit is not None and path and path[0] in (implicit, "") and os.path.realpath(implicit) != own:
        del path[0]
    return path


def _ends(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process, whose output has ended, ends by itself."""
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 1 << 20 else f"{count / 2**10:.0f} KiB"


def _read(stream: IO[bytes], chunks: queue.Queue[bytes | None]) -> None:
    # Closed by the thread that reads it: something that has left the process may hold the other end for long.
    with stream:
        while True:
            try:
                chunk = os.read(stream.fileno(), 1 << 16)
            except OSError:
                chunk = b""
            try:
                chunks.put(chunk or None, timeout=60)
            except queue.Full:
                # Nobody listens any more.
                return
            if not chunk:
                return


def _finish(threads: list[threading.Thread], chunks: queue.Queue[bytes | None]) -> None:
    """Let the threads come to their end, which is near: the process is gone."""
    deadline = time.monotonic() + GRACE_SECONDS
    while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
        try:
            # A reader may be waiting for room.
            chunks.get(timeout=0.01)
        except queue.Empty:
            continue


def _write(stream: IO[bytes], content: bytes) -> None:
    try:
        with stream:
            stream.write(content)
    except OSError:
        # It ended without reading: its exit says more.
        return


__all__ = ["Answer", "AskError", "ask"]
