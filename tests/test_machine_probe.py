from __future__ import annotations

import os
import sys
import textwrap
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hardpoint import LiveMachine
from hardpoint.errors import ContractError, EnvironmentFailure, SettingsError
from tests.processes import ends

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARY = """
    import ctypes, os, subprocess, sys, time
    from hardpoint.errors import EnvironmentFailure

    class VendorError(OSError): pass
    class VendorBug(Exception): pass
    class Unprintable(Exception):
        def __str__(self): raise KeyError("text")

    def answer(*arguments): return {"arguments": arguments, "pid": os.getpid(), "nothing": None}
    def path(): return sys.path
    def flags(): return sys.flags.safe_path
    def fail(): raise FileNotFoundError(2, "No such file or directory", "/dev/xyz")
    def fail_in_words(): raise OSError("undefined symbol: xyz_open")
    def fail_import(): raise ModuleNotFoundError("No module named 'xyz_smi'", name="xyz_smi")
    def fail_ours(): raise EnvironmentFailure("no GPU", code="no_device", remedy="check /dev/dri")
    def fail_vendor(): raise VendorError("driver 34")
    def bug(): return {}["uuid"]
    def vendor_bug(): raise VendorBug("unexpected")
    def unprintable(): raise Unprintable
    class Shy:
        def __repr__(self): raise KeyError("no text")
    def unprintable_argument(): raise RuntimeError("no GPU", Shy())
    def undecodable(): return b"\\xff".decode()
    def segfault(): ctypes.string_at(8)
    def abort(): os.abort()
    def leave(): sys.exit(3)
    def leave_quietly(): os._exit(0)
    def loop():
        while True: pass
    def interrupt(): raise KeyboardInterrupt
    def loud():
        for _ in range(50):
            os.write(1, b"x" * 1_000_000)
            os.write(2, b"y" * 1_000_000)
        print("done")
        return "heard"
    def change():
        os.environ["HARDPOINT_PLATFORM"] = "changed"
        os.environ["VENDOR_VARIABLE"] = "changed"
        os.chdir("/")
        return "changed"
    def busy_exit():
        import atexit, threading
        atexit.register(os.abort)
        threading.Thread(target=time.sleep, args=(1000,)).start()
        return "answered"
    def start_another():
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        open(os.environ["PID_FILE"], "w").write(str(child.pid))
        time.sleep(1000)
    def strange(): return {"handle": object()}
    def not_a_number(): return [float("nan")]
    def large(): return "z" * 10_000_000
    constant = 3
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveMachine]:
    """The live machine, with a vendor library that misbehaves in every way on the import path."""
    (tmp_path / "probed_library.py").write_text(textwrap.dedent(LIBRARY))
    (tmp_path / "probed_broken.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield LiveMachine()
    for name in ("probed_library", "probed_broken"):
        sys.modules.pop(name, None)


def _ask(machine: LiveMachine, function: str, *, isolated: bool, seconds: float = 20.0) -> object:
    return machine.probe("library.key", f"probed_library:{function}", timeout_seconds=seconds, isolated=isolated)


both = pytest.mark.parametrize("isolated", [False, True], ids=["inprocess", "isolated"])


@both
def test_answer(machine: LiveMachine, isolated: bool) -> None:
    """A probe answers with plain JSON data, the same in this process and in a child."""
    answer = machine.probe("k", "probed_library:answer", arguments=["a", 1, 2.5, None, True], isolated=isolated)
    assert answer["arguments"] == ["a", 1, 2.5, None, True]
    assert answer["nothing"] is None
    assert (answer["pid"] == os.getpid()) is not isolated


@both
def test_environment_failure_is_raised_as_it_was(machine: LiveMachine, isolated: bool) -> None:
    """An environment failure has its own type, text and fields, wherever the probe ran."""
    with pytest.raises(FileNotFoundError) as missing:
        _ask(machine, "fail", isolated=isolated)
    assert str(missing.value) == "[Errno 2] No such file or directory: '/dev/xyz'"
    with pytest.raises(OSError, match=r"(?m)^undefined symbol: xyz_open$"):
        _ask(machine, "fail_in_words", isolated=isolated)
    with pytest.raises(ModuleNotFoundError, match="No module named 'xyz_smi'") as absent:
        _ask(machine, "fail_import", isolated=isolated)
    assert absent.value.name == "xyz_smi"
    with pytest.raises(EnvironmentFailure, match=r"(?m)^no GPU$") as ours:
        _ask(machine, "fail_ours", isolated=isolated)
    assert (ours.value.code, ours.value.remedy) == ("no_device", "check /dev/dri")


def test_environment_failure_of_another_type_names_it(machine: LiveMachine) -> None:
    """A library's own OSError comes out of a child as an EnvironmentFailure that names the type."""
    with pytest.raises(EnvironmentFailure, match=r"(?m)^VendorError: driver 34$"):
        _ask(machine, "fail_vendor", isolated=True)
    with pytest.raises(OSError, match=r"^driver 34$"):
        _ask(machine, "fail_vendor", isolated=False)


@both
def test_bug_propagates(machine: LiveMachine, isolated: bool) -> None:
    """A programming error of a probe is no environment failure."""
    with pytest.raises(KeyError, match="'uuid'"):
        _ask(machine, "bug", isolated=isolated)
    assert "probes" not in machine.recorded_facts()


def test_bug_of_another_type_is_a_runtime_error(machine: LiveMachine) -> None:
    """What cannot be built again comes out of a child as RuntimeError with type, text and traceback."""
    with pytest.raises(RuntimeError, match=r"(?m)^probed_library\.VendorBug: unexpected$") as bug:
        _ask(machine, "vendor_bug", isolated=True)
    assert "def vendor_bug" in "".join(traceback.format_exception(bug.value))
    with pytest.raises(RuntimeError, match=r"Unprintable: \(its text cannot be made: KeyError\)"):
        _ask(machine, "unprintable", isolated=True)
    with pytest.raises(RuntimeError, match=r"no GPU.*\(its text cannot be made: KeyError\)"):
        _ask(machine, "unprintable_argument", isolated=True)
    with pytest.raises(RuntimeError, match=r"^builtins\.UnicodeDecodeError: 'utf-8' codec"):
        _ask(machine, "undecodable", isolated=True)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("segfault", "crashed with SIGSEGV"),
        ("abort", "crashed with SIGABRT"),
        ("leave", "exited with code 3"),
        ("leave_quietly", "exited with code 0 without an answer"),
        ("interrupt", "crashed with SIGINT"),
    ],
)
def test_crash_is_a_reason(machine: LiveMachine, function: str, text: str) -> None:
    """A child that crashes or leaves is an environment failure that says how it ended and what it was asked."""
    with pytest.raises(EnvironmentFailure) as crash:
        _ask(machine, function, isolated=True)
    assert str(crash.value) == f"{text} running probed_library:{function} for probe 'library.key'"
    assert crash.value.code == "crashed"
    assert machine.recorded_facts()["probes"]["library.key"]["error"]["code"] == "crashed"


def test_crash_shows_where(machine: LiveMachine) -> None:
    """The stack of a crashed child is in the notes, so that it reaches the traceback text of the record."""
    with pytest.raises(EnvironmentFailure) as crash:
        _ask(machine, "segfault", isolated=True)
    assert "in segfault" in "".join(crash.value.__notes__)


def test_endless_loop_ends_at_the_limit(machine: LiveMachine) -> None:
    """A probe that does not end is killed at the limit, and the failure says so."""
    before = _children()
    with pytest.raises(EnvironmentFailure) as timeout:
        _ask(machine, "loop", isolated=True, seconds=1.0)
    assert str(timeout.value) == "timed out after 1 s running probed_library:loop for probe 'library.key'"
    assert timeout.value.code == "timeout"
    assert _children() <= before  # reaped; what other tests have left does not count


def _children() -> set[int]:
    """The processes that this one has to reap, where the system says so."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        found |= set(map(int, path.read_text().split()))
    return found


def test_what_the_child_started_is_killed_too(
    machine: LiveMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A helper that the probe started does not outlive it."""
    monkeypatch.setenv("PID_FILE", str(tmp_path / "pid"))
    with pytest.raises(EnvironmentFailure, match="timed out"):
        _ask(machine, "start_another", isolated=True, seconds=3.0)
    assert ends(int((tmp_path / "pid").read_text()))


def test_printing_does_not_disturb(machine: LiveMachine, capfd: pytest.CaptureFixture[str]) -> None:
    """A hundred megabytes printed by the child neither block it, nor spoil its answer, nor reach our own output."""
    assert _ask(machine, "loud", isolated=True, seconds=60.0) == "heard"
    assert capfd.readouterr() == ("", "")


def test_child_changes_nothing_here(machine: LiveMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment and working directory of this process are as they were."""
    monkeypatch.delenv("HARDPOINT_PLATFORM", raising=False)
    before, folder = dict(os.environ), os.getcwd()
    assert _ask(machine, "change", isolated=True) == "changed"
    assert (dict(os.environ), os.getcwd()) == (before, folder)


def test_answer_counts_although_the_library_cannot_end(machine: LiveMachine) -> None:
    """A library that would hang or crash while the interpreter ends has answered all the same."""
    assert _ask(machine, "busy_exit", isolated=True) == "answered"


def test_child_imports_as_the_parent_does(machine: LiveMachine) -> None:
    """The child has the parent's path and, being safe, no folder of its own in front of it."""
    assert _ask(machine, "path", isolated=True) == sys.path
    assert _ask(machine, "flags", isolated=True) is True


def test_path_with_entries_that_are_no_text(machine: LiveMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some programs put a `pathlib.Path` there; Python passes over it, and so does the child."""
    monkeypatch.setattr(sys, "path", [*sys.path, Path("somewhere"), b"elsewhere"])
    assert machine.probe("xyz", "math:sqrt", arguments=(4,), isolated=True) == 2.0


def test_variable_isolates(machine: LiveMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """HARDPOINT_PROBE decides where the caller does not."""
    monkeypatch.setenv("HARDPOINT_PROBE", " Isolated ")
    assert machine.probe("k", "probed_library:answer")["pid"] != os.getpid()
    monkeypatch.setenv("HARDPOINT_PROBE", "inprocess")
    assert machine.probe("k", "probed_library:answer")["pid"] == os.getpid()
    monkeypatch.setenv("HARDPOINT_PROBE", "sometimes")
    with pytest.raises(SettingsError, match="HARDPOINT_PROBE='sometimes' means nothing; accepted: inprocess, isolated"):
        machine.probe("k", "probed_library:answer")


@both
@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("probed_library", "the target 'probed_library' is not of the form 'module:function'"),
        ("probed_library:", "is not of the form"),
        ("probed_libary:answer", "no module 'probed_libary' for the target"),
        ("probed_library.inner:answer", "no module 'probed_library.inner' for the target"),
        ("probed_library:anwser", "'probed_library' has no function 'anwser'"),
        ("probed_library:constant", "'probed_library' has no function 'constant'"),
        ("probed_library:strange", "answers with what cannot be recorded: JSON cannot hold object"),
        ("probed_library:not_a_number", "answers with what cannot be recorded: JSON cannot hold nan; unknown is None"),
    ],
)
def test_wrong_probe_is_a_contract_error(machine: LiveMachine, isolated: bool, target: str, text: str) -> None:
    """A target that is not there, or that answers with what no snapshot could hold, is the plugin's fault."""
    with pytest.raises(ContractError) as wrong:
        machine.probe("k", target, isolated=isolated)
    assert str(wrong.value).startswith("probe 'k': ")
    assert text in str(wrong.value)


@both
def test_missing_dependency_is_the_environment(machine: LiveMachine, isolated: bool) -> None:
    """A package that the probed module wants and that is not installed is no contract error."""
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_there"):
        machine.probe("k", "probed_broken:answer", isolated=isolated)


def test_too_long_an_answer(machine: LiveMachine) -> None:
    """An answer beyond what is kept is the plugin's fault, and is not taken in part."""
    with pytest.raises(ContractError, match="answers with more than can be kept"):
        _ask(machine, "large", isolated=True)


def test_answers_and_failures_are_recorded(machine: LiveMachine) -> None:
    """The record holds the last answer or failure by key."""
    machine.probe("good", "probed_library:answer", arguments=[1])
    with pytest.raises(FileNotFoundError):
        machine.probe("bad", "probed_library:fail")
    probes = machine.recorded_facts()["probes"]
    assert probes["good"]["value"]["arguments"] == [1]
    assert probes["bad"] == {
        "error": {
            "type": "FileNotFoundError",
            "message": "[Errno 2] No such file or directory: '/dev/xyz'",
            "errno": 2,
        }
    }


def test_frozen_program(machine: LiveMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no interpreter to start, isolation is an environment failure and not a copy of the program."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(EnvironmentFailure, match="no Python interpreter to isolate a probe with"):
        _ask(machine, "answer", isolated=True)
