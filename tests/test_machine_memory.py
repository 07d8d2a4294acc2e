from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from hardpoint import InMemoryMachine
from hardpoint._machine import ToolResult
from hardpoint.errors import EnvironmentFailure, NotRecorded

if TYPE_CHECKING:
    from collections.abc import Sequence


def test_nothing_given() -> None:
    """An empty machine knows nothing, says None and lacks every file as a real one would."""
    machine = InMemoryMachine()
    assert not machine.live
    assert (machine.system, machine.architecture, machine.python_version) == ("Linux", "x86_64", "3.11.0")
    assert [machine.cpu_affinity(), machine.cpu_count(), machine.total_memory_bytes()] == [None] * 3
    assert [machine.variable("HOME"), machine.distribution_version("torch"), machine.find_tool("xyz-smi")] == [None] * 3
    assert dict(machine.variables()) == {}
    assert machine.exists("/")
    assert not machine.exists("/dev/xyz0")
    assert not machine.can_read_and_write("/dev/xyz0")
    with pytest.raises(FileNotFoundError, match="/proc/cpuinfo"):
        machine.read_text("/proc/cpuinfo")
    with pytest.raises(FileNotFoundError, match="/dev"):
        machine.list_directory("/dev")
    with pytest.raises(FileNotFoundError, match="xyz-smi"):
        machine.run_tool(["xyz-smi", "-q"])
    with pytest.raises(NotRecorded, match=r"no record of the probe 'xyz.count' \(xyz:count\)"):
        machine.probe("xyz.count", "xyz:count")


def test_other_machines() -> None:
    """Each fact of the machine can be stated."""
    machine = InMemoryMachine(
        system="Darwin",
        architecture="arm64",
        kernel_release="23.1.0",
        python_version="3.13.0",
        affinity=[3, 1],
        cpu_count=8,
        user_id=None,
        total_memory_bytes=1 << 34,
        distributions={"Flash_Attn": "2.8.3"},
        variables={"A_ONE": "1", "B": "2"},
    )
    assert (machine.system, machine.architecture, machine.kernel_release) == ("Darwin", "arm64", "23.1.0")
    assert (machine.cpu_affinity(), machine.cpu_count(), machine.user_id) == (frozenset({1, 3}), 8, None)
    assert machine.total_memory_bytes() == 1 << 34
    assert machine.distribution_version("flash-attn") == "2.8.3"
    assert machine.distribution_versions(["flash-attn", "torch"]) == {"flash-attn": "2.8.3", "torch": None}
    assert dict(machine.variables("A_")) == {"A_ONE": "1"}
    assert machine.variable("B") == "2"


def test_file_of_a_distribution() -> None:
    """A distribution's file is one of the machine's, in the folder that is stated for it, under any spelling."""
    files = {"/site/torch/version.py": "", "/other/x.py": ""}
    machine = InMemoryMachine(files=files, distribution_folders={"Torch": "/site"})
    assert machine.distribution_file("torch", "torch/version.py") == "/site/torch/version.py"
    assert machine.distribution_file("torch", "torch/other.py") is None
    assert machine.distribution_file("torch", "torch") is None
    assert machine.distribution_file("other", "x.py") is None
    assert machine.questions["distribution file torch: torch/version.py"] == 1


def test_files_and_folders() -> None:
    """Files bring their folders, folders list what is in them, and mistakes are the errors of a real system."""
    machine = InMemoryMachine(
        files={
            "/sys/a/one": "text",
            "/sys/a/two": b"\xff\x00",
            "/sys/b": PermissionError(13, "Permission denied", "/sys/b"),
        },
        directories=["/dev/empty/"],
        read_only=["/sys/a"],
    )
    assert machine.list_directory("/sys") == ("a", "b")
    assert machine.list_directory("/sys/a/") == ("one", "two")
    assert machine.list_directory("/") == ("dev", "sys")
    assert machine.list_directory("/dev/empty") == ()
    assert machine.read_text("/sys/a/../a/one") == "text"
    assert machine.read_bytes("/sys/a/one", limit=2) == b"te"
    assert machine.read_text("/sys/a/two") == "\ufffd\0"
    assert machine.exists("/sys/b")
    assert not machine.can_read_and_write("/sys/b")
    assert not machine.can_read_and_write("/sys/a/one")
    assert machine.can_read_and_write("/dev/empty")
    with pytest.raises(PermissionError):
        machine.read_bytes("/sys/b")
    with pytest.raises(IsADirectoryError):
        machine.read_bytes("/sys/a")
    with pytest.raises(NotADirectoryError):
        machine.list_directory("/sys/a/one")


def test_unreadable_folder() -> None:
    """A folder may refuse to be listed, and exists all the same."""
    machine = InMemoryMachine(directories={"/dev/dri": PermissionError(13, "Permission denied"), "/dev/kfd": None})
    assert machine.exists("/dev/dri")
    assert machine.list_directory("/dev/kfd") == ()
    with pytest.raises(PermissionError):
        machine.list_directory("/dev/dri")


def test_links() -> None:
    """Links are followed, relative ones too, and a loop ends."""
    machine = InMemoryMachine(
        files={"/sys/devices/pci0/vendor": "0x10de"},
        links={"/sys/class/drm": "../devices", "/sys/card0": "/sys/class/drm/pci0", "/loop": "/loop"},
    )
    assert machine.real_path("/sys/card0/vendor") == "/sys/devices/pci0/vendor"
    assert machine.read_text("/sys/card0/vendor") == "0x10de"
    assert machine.list_directory("/sys/class/drm") == ("pci0",)
    assert machine.list_directory("/sys") == ("card0", "class", "devices")
    assert not machine.exists("/loop")


def test_tools() -> None:
    """A tool is a text, a result, a function or an error, by name or by whole command line."""

    def version(arguments: Sequence[str]) -> ToolResult:
        return ToolResult(returncode=len(arguments), stdout="", stderr="no")

    machine = InMemoryMachine(
        tools={
            "xyz-smi -q": "one device",
            "abc-smi": version,
            "slow": EnvironmentFailure("timed out after 5 s running slow", code="timeout"),
            "done": ToolResult(returncode=2, stdout="o", stderr="e"),
        }
    )
    assert machine.find_tool("xyz-smi") == "/usr/bin/xyz-smi"
    assert machine.run_tool(["xyz-smi", "-q"]) == ToolResult(returncode=0, stdout="one device", stderr="")
    assert machine.run_tool(["abc-smi", "-v"]).returncode == 2
    assert machine.run_tool(["done", "anything"]).stderr == "e"
    with pytest.raises(EnvironmentFailure, match="timed out") as failure:
        machine.run_tool(["slow"])
    assert failure.value.code == "timeout"
    with pytest.raises(NotRecorded, match="no record of what 'xyz-smi -L' prints"):
        machine.run_tool(["xyz-smi", "-L"])


def test_probes() -> None:
    """A probe's answer is a fresh copy each time, and a failure a fresh equal error."""
    machine = InMemoryMachine(probes={"count": {"devices": (1, 2)}, "bad": OSError(2, "gone", "/dev/x"), "none": None})
    first = machine.probe("count", "m:f")
    first["devices"].append(3)
    assert machine.probe("count", "m:f") == {"devices": [1, 2]}
    assert machine.probe("none", "m:f") is None
    with pytest.raises(FileNotFoundError, match="gone: '/dev/x'"):
        machine.probe("bad", "m:f")


def test_recorded_errors_keep_nothing_alive() -> None:
    """Raising a recorded error does not tie the frames it passed through to the machine."""

    class Local:
        pass

    machine = InMemoryMachine(
        probes={"bad": OSError("gone")}, files={"/f": OSError("gone")}, tools={"t": OSError("gone")}
    )

    def fail() -> weakref.ref[Local]:
        local = Local()
        for question in (
            lambda: machine.probe("bad", "m:f"),
            lambda: machine.read_bytes("/f"),
            lambda: machine.run_tool(["t"]),
        ):
            with pytest.raises(OSError, match="gone"):
                question()
        return weakref.ref(local)

    reference = fail()
    gc.collect()
    assert reference() is None


def test_inputs_are_copied() -> None:
    """Changing what was given does not change the machine."""
    files: dict[str, str | bytes | OSError] = {"/a": "1"}
    answers: dict[str, list[int]] = {"p": [1]}
    machine = InMemoryMachine(files=files, probes=answers)
    files["/a"] = "2"
    answers["p"].append(2)
    assert machine.read_text("/a") == "1"
    assert machine.probe("p", "m:f") == [1]


def test_questions_are_counted() -> None:
    """The machine says what it was asked, and how often."""
    machine = InMemoryMachine(probes={"p": 1}, files={"/f": ""})
    machine.probe("p", "m:f")
    machine.probe("p", "m:f")
    machine.read_text("/f")
    assert machine.questions == {"probe p": 2, "read /f": 1}
