from __future__ import annotations

import gc
import json
import os
import platform
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from hardpoint import LiveMachine
from hardpoint._recording import MAX_ENTRIES, MAX_TEXT, may_record_variable
from hardpoint._running import MAX_OUTPUT_BYTES, describe_exit, end
from hardpoint.errors import EnvironmentFailure
from tests.processes import ends

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder at the front of the search path."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def _write_tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_facts_are_those_of_the_standard_library() -> None:
    """System, architecture, release and version are what `platform` says; CPUs and memory what the system says."""
    machine = LiveMachine()
    assert machine.live
    assert machine.system == platform.system()
    assert machine.architecture == platform.machine()
    assert machine.kernel_release == platform.release()
    assert machine.python_version == platform.python_version()
    assert machine.cpu_count() == os.cpu_count()
    assert machine.user_id == os.getuid()
    assert machine.cpu_affinity() == frozenset(os.sched_getaffinity(0))
    memory = machine.total_memory_bytes()
    assert memory is not None
    stated = int(machine.read_text("/proc/meminfo").partition("MemTotal:")[2].split()[0]) * 1024
    assert memory == pytest.approx(stated, rel=0.01)
    assert machine.distribution_version("PlugGy") is not None
    assert machine.distribution_version("a-distribution-that-is-not-there") is None


def test_versions_of_several_distributions() -> None:
    """Several names are looked up at once, answered by the names given, and recorded one by one."""
    machine = LiveMachine()
    found = machine.distribution_versions(("PlugGy", "a-distribution-that-is-not-there"))
    assert found == {"PlugGy": machine.distribution_version("pluggy"), "a-distribution-that-is-not-there": None}
    recorded = machine.recorded_facts()["distributions"]
    assert recorded["PlugGy"] == recorded["pluggy"] == {"value": found["PlugGy"]}
    assert recorded["a-distribution-that-is-not-there"] == {"value": None}


def test_file_of_a_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution's file is found beside its metadata, under any spelling of the name, without importing it."""
    (tmp_path / "Some_Thing-1.0.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: Some.Thing\nVersion: 1.0\n"
    (tmp_path / "Some_Thing-1.0.dist-info/METADATA").write_text(metadata)
    (tmp_path / "some_thing").mkdir()
    (tmp_path / "some_thing/version.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    machine = LiveMachine()
    path = machine.distribution_file("some-thing", "some_thing/version.py")
    assert path == str(tmp_path / "some_thing" / "version.py")
    assert machine.distribution_file("some-thing", "some_thing/other.py") is None
    assert machine.distribution_file("some-thing", "some_thing") is None
    assert machine.distribution_file("a-distribution-that-is-not-there", "x.py") is None
    recorded = machine.recorded_facts()["distribution_files"]
    assert recorded["some-thing: some_thing/version.py"] == {"value": path}
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.chdir(tmp_path)
    assert machine.distribution_file("some-thing", "some_thing/version.py") == path


def test_systems_that_lack_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has no such question, the answer is None or comes from `platform`."""
    for name in ("sched_getaffinity", "getuid", "sysconf", "uname"):
        monkeypatch.delattr(os, name)
    machine = LiveMachine()
    assert [machine.cpu_affinity(), machine.user_id, machine.total_memory_bytes()] == [None] * 3
    assert machine.system == platform.system()


def test_sandbox_that_forbids_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system refuses to say which CPUs may be used, the answer is None."""

    def refuse(pid: int) -> set[int]:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_getaffinity", refuse, raising=False)
    assert LiveMachine().cpu_affinity() is None


def test_cheap_questions_load_nothing_heavy() -> None:
    """Asking for the facts that detection wants loads neither json, subprocess nor metadata libraries."""
    script = """
import sys
from hardpoint._machine_live import LiveMachine
from hardpoint._settings import read_settings
machine = LiveMachine()
machine.system, machine.architecture, machine.kernel_release, machine.python_version, machine.user_id
machine.cpu_affinity(), machine.cpu_count(), machine.total_memory_bytes(), machine.exists("/dev")
machine.find_tool("sh"), machine.list_directory("/"), machine.read_text("/proc/self/status")
machine.distribution_version("pluggy")
machine.can_read_and_write("/dev/null"), machine.real_path("/"), read_settings(machine), machine.probe("p", "os:getpid")
heavy = ("json", "subprocess", "importlib_metadata", "importlib.metadata", "packaging", "platform", "shutil", "ctypes",
         "torch", "numpy", "tempfile", "socket")
print([name for name in heavy if name in sys.modules])
"""
    # -S: an environment's own .pth files may load anything.
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{script}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_environment_is_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """No question changes a variable."""
    before = dict(os.environ)
    machine = LiveMachine()
    machine.run_tool(["env"])
    machine.variables("HARDPOINT_")
    assert dict(os.environ) == before


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable is what it is now: set, changed, removed, undecodable."""
    machine = LiveMachine()
    monkeypatch.delenv("XYZ_TEST", raising=False)
    assert machine.variable("XYZ_TEST") is None
    monkeypatch.setenv("XYZ_TEST", "1")
    assert machine.variable("XYZ_TEST") == "1"
    assert dict(machine.variables("XYZ_")) == {"XYZ_TEST": "1"}
    monkeypatch.setenv("XYZ_TEST", "")
    assert machine.variable("XYZ_TEST") == ""
    os.environb[b"XYZ_TEST"] = b"\xff"
    assert machine.variable("XYZ_TEST") == os.environ["XYZ_TEST"] == "\udcff"
    del os.environ["XYZ_TEST"]
    assert machine.variable("XYZ_TEST") is None


def test_variable_that_another_thread_deletes_meanwhile(tools: Path) -> None:
    """Between its name and its value it may vanish; then it is not there."""
    stop = threading.Event()

    def set_and_delete() -> None:
        while not stop.is_set():
            for number in range(50):
                os.environ[f"XYZ_{number}"] = "1"
            for number in range(50):
                del os.environ[f"XYZ_{number}"]

    other = threading.Thread(target=set_and_delete)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    other.start()
    try:
        machine = LiveMachine()
        for _ in range(300):
            assert set(machine.variables("XYZ_").values()) <= {"1"}
        assert machine.run_tool(["env"]).returncode == 0
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        other.join(30)


def test_files(tmp_path: Path) -> None:
    """Files are read up to the limit; every failure is the system's own, with the path."""
    machine = LiveMachine()
    (tmp_path / "file").write_bytes(b"0123456789\xff")
    assert machine.read_bytes(str(tmp_path / "file"), limit=4) == b"0123"
    assert machine.read_text(str(tmp_path / "file")) == "0123456789\ufffd"
    assert machine.list_directory(str(tmp_path)) == ("file",)
    assert machine.exists(str(tmp_path / "file"))
    assert not machine.exists(str(tmp_path / "other"))
    assert not machine.exists("a\0b")
    assert machine.can_read_and_write(str(tmp_path / "file"))
    assert not machine.can_read_and_write(str(tmp_path / "other"))
    (tmp_path / "link").symlink_to("file")
    assert machine.real_path(str(tmp_path / "link")) == os.path.realpath(tmp_path / "file")
    with pytest.raises(FileNotFoundError, match="other"):
        machine.read_bytes(str(tmp_path / "other"))
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        machine.read_bytes(str(tmp_path))
    with pytest.raises(NotADirectoryError):
        machine.list_directory(str(tmp_path / "file"))


def test_pipe_without_writer_does_not_hold_us_up(tmp_path: Path) -> None:
    """Reading something that would block gives what is there: nothing."""
    os.mkfifo(tmp_path / "pipe")
    assert LiveMachine().read_bytes(str(tmp_path / "pipe")) == b""


def test_tool(tools: Path) -> None:
    """A tool's output, its errors and its code are returned; it speaks English and reads nothing."""
    _write_tool(tools, "xyz-smi", 'echo "$@ $LC_ALL"; cat; echo sorry >&2; exit 4')
    machine = LiveMachine()
    assert machine.find_tool("xyz-smi") == str(tools / "xyz-smi")
    result = machine.run_tool(["xyz-smi", "-q", "--all"])
    assert (result.returncode, result.stdout, result.stderr, result.truncated) == (4, "-q --all C\n", "sorry\n", False)
    assert machine.run_tool([str(tools / "xyz-smi")]).returncode == 4


def test_tool_that_is_not_there(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing tool, one that is no program, and one in the working directory only are not found."""
    _write_tool(tools, "xyz-smi", "exit 0")
    (tools / "plain").write_text("")
    (tools / "broken").write_bytes(b"\x7fELF")
    (tools / "broken").chmod(0o755)
    machine = LiveMachine()
    with pytest.raises(FileNotFoundError, match="no such tool on the search path: 'abc-smi'"):
        machine.run_tool(["abc-smi"])
    assert machine.find_tool("plain") is None
    with pytest.raises(OSError, match="broken"):
        machine.run_tool(["broken"])
    monkeypatch.chdir(tools)
    monkeypatch.setenv("PATH", f"{os.pathsep}.{os.pathsep}/usr/bin")
    assert machine.find_tool("xyz-smi") is None


def test_tool_that_hangs(tools: Path, tmp_path: Path) -> None:
    """A tool that sleeps for ever is killed at the limit with what it started, is reaped, and the failure names it."""
    _write_tool(tools, "xyz-smi", f"sleep 1000 & echo $$ $! > '{tmp_path / 'pids'}'; wait")
    started = time.monotonic()
    with pytest.raises(EnvironmentFailure) as timeout:
        LiveMachine().run_tool(["xyz-smi", "-q"], timeout_seconds=1.5)
    assert str(timeout.value) == "timed out after 1.5 s running xyz-smi -q"
    assert timeout.value.code == "timeout"
    assert time.monotonic() - started < 60
    own, helper = map(int, (tmp_path / "pids").read_text().split())
    assert ends(helper)
    with pytest.raises(ChildProcessError):
        os.waitpid(own, os.WNOHANG)  # reaped: no child of ours any more


def test_tool_that_hangs_ends_at_the_default_limit(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HARDPOINT_PROBE_TIMEOUT is the limit where the caller names none."""
    monkeypatch.setenv("HARDPOINT_PROBE_TIMEOUT", "0.5")
    _write_tool(tools, "xyz-smi", "sleep 1000")
    with pytest.raises(EnvironmentFailure, match=r"^timed out after 0\.5 s running xyz-smi$"):
        LiveMachine().run_tool(["xyz-smi"])


@pytest.mark.parametrize("number", range(3))
def test_machine_that_gives_no_more_threads(tools: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """At the limit of threads a tool cannot be run: a reason, whichever of ours cannot start, and nothing is left."""
    _write_tool(tools, "xyz-smi", "echo here")
    start, started = threading.Thread.start, iter(range(9))

    def limited(thread: threading.Thread) -> None:
        # More memory for its stack than there are addresses: then no system starts a thread.
        before = threading.stack_size(1 << 46 if next(started) == number else 0)
        try:
            start(thread)
        finally:
            threading.stack_size(before)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(EnvironmentFailure, match="no program can be run: can't start new thread"):
        LiveMachine().run_tool(["xyz-smi"])
    gc.collect()


def test_slow_answer_is_not_kept(tools: Path) -> None:
    """A tool that timed out once is asked again."""
    _write_tool(tools, "xyz-smi", "sleep 1000")
    machine = LiveMachine()
    with pytest.raises(EnvironmentFailure, match="timed out"):
        machine.run_tool(["xyz-smi"], timeout_seconds=0.3)
    _write_tool(tools, "xyz-smi", "echo one")
    assert machine.run_tool(["xyz-smi"]).stdout == "one\n"


def test_tool_leaves_something_behind(tools: Path, tmp_path: Path) -> None:
    """A tool that ends and leaves a process that holds its output open is answered, and the process is killed."""
    _write_tool(tools, "xyz-smi", f"sleep 1000 & echo $! > '{tmp_path / 'pid'}'; echo ok")
    assert LiveMachine().run_tool(["xyz-smi"], timeout_seconds=20).stdout == "ok\n"
    assert ends(int((tmp_path / "pid").read_text()))


def test_endless_output(tools: Path) -> None:
    """Of output without end the beginning is kept, and the result says that it is cut."""
    _write_tool(tools, "xyz-smi", "yes x | head -c 50000000; exit 3")
    result = LiveMachine().run_tool(["xyz-smi"], timeout_seconds=60)
    assert (result.returncode, result.truncated, len(result.stdout)) == (3, True, MAX_OUTPUT_BYTES)


def test_interrupt_leaves_no_process(tools: Path, tmp_path: Path) -> None:
    """KeyboardInterrupt while a tool runs propagates, and the tool is killed and reaped."""
    _write_tool(
        tools,
        "xyz-smi",
        f"echo $$ > '{tmp_path / 'pid.new'}'; mv '{tmp_path / 'pid.new'}' '{tmp_path / 'pid'}'; exec sleep 1000",
    )
    script = (
        "import os, signal, threading, time, sys\n"
        "from hardpoint import LiveMachine\n"
        f"path = {str(tmp_path / 'pid')!r}\n"
        "def interrupt():\n"
        "    while not os.path.exists(path): time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "threading.Thread(target=interrupt, daemon=True).start()\n"
        "try: LiveMachine().run_tool(['xyz-smi'], timeout_seconds=100)\n"
        "except KeyboardInterrupt: print('interrupted')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "interrupted\n"
    assert ends(int((tmp_path / "pid").read_text()))


def test_process_that_does_not_end_is_not_waited_for() -> None:
    """A process that the kill does not end is given up after the grace time."""
    with subprocess.Popen(["sleep", "1000"]) as process:  # leads no group, so the kill finds nothing
        try:
            assert not end(process, grace_seconds=0.05)
        finally:
            process.kill()
    assert end(process)


def test_exit_texts() -> None:
    """An exit is described by signal or code."""
    assert describe_exit(0) == "exited with code 0"
    assert describe_exit(-11) == "crashed with SIGSEGV"
    assert describe_exit(-250) == "crashed with signal 250"


def test_facts_are_recorded(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that was asked is in the record with its answer or failure, as JSON data."""
    monkeypatch.setenv("HARDPOINT_PLATFORM", "cpu")
    monkeypatch.setenv("HARDPOINT_API_TOKEN", "hidden")
    monkeypatch.setenv("PRIVATE", "hidden")
    monkeypatch.setenv("MY_TILES", "4")
    _write_tool(tools, "xyz-smi", "echo one")
    machine = LiveMachine()
    for name in ("HARDPOINT_PLATFORM", "HARDPOINT_API_TOKEN", "PRIVATE", "MY_TILES"):
        machine.variable(name)
    machine.variables("")
    machine.exists("/dev/xyz0")
    machine.list_directory(str(tmp_path))
    (tmp_path / "long").write_bytes(b"x" * (MAX_TEXT + 1))
    machine.read_bytes(str(tmp_path / "long"))
    with pytest.raises(FileNotFoundError):
        machine.read_text("/proc/xyz")
    machine.run_tool(["xyz-smi"])
    machine.distribution_version("pluggy")
    _ = machine.system
    facts = machine.recorded_facts(owned=["MY_"])
    assert facts["variables"]["HARDPOINT_PLATFORM"] == "cpu"
    assert facts["variables"]["MY_TILES"] == "4"
    assert "hidden" not in json.dumps(facts)
    assert "MY_TILES" not in machine.recorded_facts()["variables"]
    assert facts["exists"] == {"/dev/xyz0": {"value": False}}
    assert facts["directories"] == {str(tmp_path): {"value": ["tools"]}}
    assert facts["files"][str(tmp_path / "long")] == {"value": "x" * MAX_TEXT, "length": MAX_TEXT + 1}
    assert facts["files"]["/proc/xyz"]["error"]["type"] == "FileNotFoundError"
    assert facts["tools"]["xyz-smi"]["value"]["stdout"] == "one\n"
    assert facts["machine"]["system"] == {"value": platform.system()}
    assert facts["left_out"] == 0


@pytest.mark.parametrize("name", ["HARDPOINT_TOKEN", "hf_token", "AWS_SECRET_ACCESS", "MY_KEY", "HARDPOINT_PASSWORD"])
def test_secrets_never_enter(name: str) -> None:
    """A name that sounds like a secret is not recorded, even if a plugin owns it."""
    assert not may_record_variable(name, [name])


def test_allow_list() -> None:
    """Ours, a plugin's and reviewed variables are recorded; no others."""
    assert may_record_variable("HARDPOINT_ANYTHING")
    assert may_record_variable("CUDA_VISIBLE_DEVICES")
    assert may_record_variable("MY_TILES", ["MY_"])
    assert not may_record_variable("MY_TILES")
    assert not may_record_variable("HOME")


def test_record_is_bounded() -> None:
    """Ever new questions do not fill the memory, and what was left out is counted."""
    machine = LiveMachine()
    for number in range(MAX_ENTRIES + 10):
        machine.exists(f"/xyz/{number}")
        machine.variable(f"XYZ_{number}")
    facts = machine.recorded_facts()
    assert len(facts["exists"]) == MAX_ENTRIES
    assert facts["left_out"] == 10
    assert len(machine._variables) <= 1024


def test_record_while_others_ask() -> None:
    """The record can be read while threads go on asking."""
    machine, errors, stop = LiveMachine(), list[Exception](), threading.Event()

    def ask() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            machine.exists(f"/xyz/{threading.get_ident()}/{number}")
            machine.variable(f"XYZ_{number}")

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            json.dumps(machine.recorded_facts())
    except RuntimeError as error:
        errors.append(error)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []
