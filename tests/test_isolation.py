"""Isolated probes, from end to end: what a vendor's library does to its process becomes a reason, and the next wins."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hardpoint
from hardpoint import LiveMachine
from tests.plugins import usable

if TYPE_CHECKING:
    from tests.plugins import Site

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals, sessions and pipes are POSIX's")

LIBRARY = """
import ctypes, os, subprocess, sys, time

def segfault(): ctypes.string_at(8)
def abort(): os.abort()
def leave(): sys.exit(3)
def leave_with_text(): sys.exit("the driver says no")
def leave_at_once(): os._exit(7)
def kill(): os.kill(os.getpid(), 9)
def loop():
    while True: pass
def loud():
    for _ in range(20):
        os.write(1, b"x" * 1_000_000)
        os.write(2, b"y" * 1_000_000)
    os.abort()
def change():
    os.environ["HARDPOINT_PLATFORM"] = "nonsense"
    os.environ.clear()
    os.chdir("/")
    sys.path.clear()
    ctypes.string_at(8)
def recurse(): return recurse()
def start_another():
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True, stdin=subprocess.DEVNULL
    )
    with open(os.environ["PID_FILE"], "w") as file: file.write(str(child.pid))
    return {"answered": True}
def close_everything():
    os.closerange(0, 256)
    return 1
"""


def vendor(site: Site, function: str, monkeypatch: pytest.MonkeyPatch, *, seconds: str = "30") -> str:
    """A vendor's platform whose detection asks such a library, and one of lower rank that always works."""
    (site.folder / "hostile_library.py").write_text(LIBRARY)
    monkeypatch.setenv("HARDPOINT_PROBE", "isolated")
    monkeypatch.setenv("HARDPOINT_PROBE_TIMEOUT", seconds)
    site.platform("safe", rank="CPU", detect=usable(runtime="safe"))
    return site.platform("hostile", detect=f"machine.probe('hostile.key', 'hostile_library:{function}')\n{usable()}")


def children() -> set[int]:
    """The processes that this one has to reap, where the system says so."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        found |= set(map(int, path.read_text().split()))
    return found


ENDINGS = {
    "segfault": "crashed with SIGSEGV",
    "abort": "crashed with SIGABRT",
    "kill": "crashed with SIGKILL",
    "leave": "exited with code 3",
    "leave_with_text": "exited with code 1",
    "leave_at_once": "exited with code 7",
    "loud": "crashed with SIGABRT",
    "change": "crashed with SIGSEGV",
}


@pytest.mark.parametrize("function", ENDINGS)
def test_next_candidate_is_tried(
    site: Site,
    function: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The ending is the candidate's reason, one WARNING says what was lost, and this process is as it was."""
    vendor(site, function, monkeypatch)
    before = dict(os.environ), os.getcwd(), list(sys.path), children()
    with caplog.at_level(logging.WARNING, logger="hardpoint"):
        resolution = hardpoint.resolve()
    assert resolution.platform.name == "safe"
    assert resolution.is_fallback
    (lost,) = (item for item in resolution.candidates if item.name == "hostile")
    (reason,) = lost.reasons
    text = f"{ENDINGS[function]} running hostile_library:{function} for probe 'hostile.key'"
    assert reason.message == f"EnvironmentFailure: {text}"
    assert (lost.outcome, lost.phase, reason.code) == ("failed", "detect", "crashed")
    (warning,) = (record.getMessage() for record in caplog.records)
    assert text in warning
    assert "using safe instead" in warning
    assert (dict(os.environ), os.getcwd(), list(sys.path)) == before[:3]
    assert children() <= before[3]
    assert capfd.readouterr() == ("", "")
    assert "hostile_library" not in sys.modules


def test_endless_loop(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit that the variable sets the child is killed and reaped, and the next candidate is tried."""
    vendor(site, "loop", monkeypatch, seconds="1")
    before = children()
    resolution = hardpoint.resolve()
    assert resolution.platform.name == "safe"
    (reason,) = next(item for item in resolution.candidates if item.name == "hostile").reasons
    assert reason.message == (
        "EnvironmentFailure: timed out after 1 s running hostile_library:loop for probe 'hostile.key'"
    )
    assert reason.code == "timeout"
    assert children() <= before


def test_asked_for_by_name(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A platform that was asked for is not replaced: its crash is the error."""
    vendor(site, "segfault", monkeypatch)
    with pytest.raises(hardpoint.errors.PlatformUnavailableError, match="crashed with SIGSEGV"):
        hardpoint.resolve("hostile")
    with pytest.raises(hardpoint.errors.PlatformUnavailableError, match="strict mode does not fall back to safe"):
        hardpoint.resolve(strict=True)


def test_runaway_recursion(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python error in the child stays what it is, a bug, with the child's traceback."""
    vendor(site, "recurse", monkeypatch)
    with pytest.raises(RecursionError) as bug:
        hardpoint.resolve()
    assert any("def recurse(): return recurse()" in note or "in recurse" in note for note in bug.value.__notes__)


def test_inspection_goes_on(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report of a machine with a library that crashes shows the crash as any other reason."""
    vendor(site, "abort", monkeypatch)
    text = hardpoint.inspect().to_text()
    assert "platform: safe (automatic, as a fallback)" in text
    assert "crashed with SIGABRT running hostile_library:abort" in text


def test_crash_in_a_snapshot(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded crash is replayed as one, with its code."""
    vendor(site, "segfault", monkeypatch)
    taken = hardpoint.snapshot()
    with pytest.raises(hardpoint.EnvironmentFailure, match="crashed with SIGSEGV") as crash:
        taken.machine().probe("hostile.key", "hostile_library:segfault")
    assert crash.value.code == "crashed"
    assert taken.recompute().changes == ()


def test_grandchild_that_keeps_the_pipe(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that the library leaves behind, in a session of its own and with our pipe, holds nobody up."""
    vendor(site, "start_another", monkeypatch)
    monkeypatch.setenv("PID_FILE", str(tmp_path / "pid"))
    assert LiveMachine().probe("k", "hostile_library:start_another", isolated=True) == {"answered": True}
    pid = int((tmp_path / "pid").read_text())
    # It is alive: what was waited for was not its end.
    os.kill(pid, 0)
    os.kill(pid, signal.SIGKILL)


def test_child_that_closes_its_pipes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that closes every descriptor cannot answer any more, and that is a reason too."""
    vendor(site, "close_everything", monkeypatch)
    resolution = hardpoint.resolve()
    assert resolution.platform.name == "safe"
    (reason,) = next(item for item in resolution.candidates if item.name == "hostile").reasons
    assert reason.code in ("crashed", "other")


def test_in_process_is_the_default(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Management calls are cheap, and without the variable they start no process."""
    (site.folder / "calm_library.py").write_text("import os\ndef ask(): return os.getpid()\n")
    monkeypatch.delenv("HARDPOINT_PROBE", raising=False)
    assert LiveMachine().probe("k", "calm_library:ask") == os.getpid()
