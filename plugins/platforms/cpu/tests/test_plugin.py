from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hardpoint import API_VERSION, InMemoryMachine
from hardpoint.hookspecs import Detection, DetectionStatus, Device, Rank
from hardpoint_cpu.plugin import plugin

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., InMemoryMachine]

GIB = 1 << 30


def detect(machine: InMemoryMachine) -> Detection:
    """What the hook answers."""
    return plugin.hardpoint_detect(machine)


def device(machine: InMemoryMachine) -> Device:
    """The one device."""
    return detect(machine).devices[0]


def usable(machine: InMemoryMachine) -> object:
    """How many CPUs may be used."""
    return device(machine).properties["usable_cpus"]


def test_descriptor() -> None:
    """The platform stands behind every accelerator, was written for this contract, and owns no variable."""
    spec = plugin.hardpoint_platform()
    assert (spec.api, spec.rank, spec.settings) == (API_VERSION, Rank.CPU, ())
    assert spec.target == "hardpoint_cpu.platform:CpuPlatform"


@pytest.mark.parametrize(
    ("system", "architecture"),
    [
        ("Linux", "x86_64"),
        ("Darwin", "arm64"),
        ("Linux", "aarch64"),
        ("Linux", "ppc64le"),
        ("Linux", "s390x"),
        ("Linux", "riscv64"),
        ("Linux", ""),
        ("Windows", "AMD64"),
        ("Windows", "ARM64"),
        ("FreeBSD", "amd64"),
        ("", ""),
    ],
)
def test_every_machine_has_one(system: str, architecture: str) -> None:
    """A machine of any architecture, on which nothing can be read, has a CPU; what is unknown is None."""
    detection = detect(InMemoryMachine(system=system, architecture=architecture))
    assert detection.status is DetectionStatus.USABLE
    (cpu,) = detection.devices
    assert cpu.capability is not None
    assert (cpu.capability.runtime, cpu.capability.version) == ("cpu", None)
    assert (cpu.total_memory_bytes, cpu.numa_node) == (None, None)
    assert {name: cpu.properties[name] for name in ("cpus", "cpu_quota", "usable_cpus", "numa_nodes", "vendor")} == {
        "cpus": None,
        "cpu_quota": None,
        "usable_cpus": 1,
        "numa_nodes": None,
        "vendor": "unknown",
    }


def test_mask_of_four_cpus_among_64(make_machine: Make) -> None:
    """The host has 64 CPUs, the mask four: four are usable."""
    machine = make_machine(affinity=frozenset((8, 9, 10, 11)), cpu_count=64)
    assert usable(machine) == 4
    assert device(machine).properties["cpus"] == "8-11"


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("400000 100000", 4), ("765000 100000", 7), ("50000 100000", 1), ("max 100000", 16), ("6400000 100000", 16)],
)
def test_smallest_of_quota_and_mask(make_machine: Make, quota: str, expected: int) -> None:
    """The quota counts where it is smaller than the mask, rounded down, at least one."""
    machine = make_machine(files={"/sys/fs/cgroup/cpu.max": f"{quota}\n"}, affinity=frozenset(range(16)), cpu_count=64)
    assert usable(machine) == expected


def test_mask_smaller_than_the_quota(make_machine: Make) -> None:
    """A quota of four CPUs on a mask of two is two."""
    files = {"/sys/fs/cgroup/cpu.max": "400000 100000\n"}
    assert usable(make_machine(files=files, affinity=frozenset((0, 1)))) == 2


def test_unlimited_quota_of_version_1(make_machine: Make) -> None:
    """A quota of -1 leaves the mask."""
    files = {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}
    assert usable(make_machine(files=files, affinity=frozenset(range(6)))) == 6


@pytest.mark.parametrize(("count", "expected"), [(12, 12), (None, 1)])
def test_system_without_masks(count: int | None, expected: int) -> None:
    """Where the system has no mask (macOS), its count of CPUs is taken; without that there is one."""
    machine = InMemoryMachine(system="Darwin", architecture="arm64", affinity=None, cpu_count=count)
    assert usable(machine) == expected


@pytest.mark.parametrize(
    ("limit", "expected"), [("max", 64 * GIB), (str(8 * GIB), 8 * GIB), (str(512 * GIB), 64 * GIB)]
)
def test_memory_under_a_limit(make_machine: Make, limit: str, expected: int) -> None:
    """The cgroup's limit counts where it is smaller than the machine's memory."""
    assert device(make_machine(files={"/sys/fs/cgroup/memory.max": limit})).total_memory_bytes == expected


def test_limit_is_known_where_the_memory_is_not(make_machine: Make) -> None:
    """A limit says what may be used even where the machine does not tell what it has."""
    machine = make_machine(files={"/sys/fs/cgroup/memory.max": str(GIB)}, total_memory_bytes=None)
    assert device(machine).total_memory_bytes == GIB


def test_node_is_named_where_all_cpus_are_in_it(make_machine: Make) -> None:
    """With the mask inside node 1, that is the device's node, and the only one that is usable."""
    files = {
        "/sys/devices/system/node/node0/cpulist": "0-31\n",
        "/sys/devices/system/node/node1/cpulist": "32-63\n",
        "/sys/devices/system/node/node2/cpulist": "\n",
    }
    inside = device(make_machine(files=files, affinity=frozenset(range(40, 44))))
    assert (inside.numa_node, inside.properties["numa_nodes"]) == (1, "1")
    across = device(make_machine(files=files, affinity=frozenset((0, 40))))
    assert (across.numa_node, across.properties["numa_nodes"]) == (None, "0-1")


def test_refused_tiles_are_noted(make_machine: Make) -> None:
    """The reason stands in the detection's notes and with the device, and the capability lacks the feature."""
    detection = detect(make_machine("sapphire rapids", probes={"cpu.amx": False}))
    (note,) = detection.notes
    assert note.message.startswith("AMX not permitted")
    cpu = detection.devices[0]
    assert cpu.properties["amx_refusal"] == note.message
    assert cpu.capability is not None
    assert "amx_tile" not in cpu.capability.features


def test_detection_is_data(make_machine: Make) -> None:
    """The device can be written as JSON, and two looks at one machine give the same."""
    machine = make_machine("skylake", files={"/sys/fs/cgroup/cpu.max": "765000 100000\n"})
    assert json.loads(json.dumps(device(machine).as_dict()))["properties"]["cpu_quota"] == 7.65
    assert detect(machine) == detect(machine)


def test_doctor(make_machine: Make) -> None:
    """The section for the doctor says what was found and what limits it."""
    files = {"/sys/fs/cgroup/cpu.max": "765000 100000\n", "/sys/fs/cgroup/memory.max": str(GIB)}
    machine = make_machine(
        "sapphire rapids", model="Xeon", files=files, affinity=frozenset((8, 9)), probes={"cpu.amx": False}
    )
    (section,) = plugin.hardpoint_report(machine)
    assert section.title == "CPU"
    lines = dict(section.lines)
    assert " avx512f " in lines.pop("features")
    assert lines == {
        "processor": "Xeon (Intel)",
        "architecture": "x86-64-v4",
        "CPUs of the affinity mask": "8-9",
        "CPU quota": "7.65 CPUs",
        "usable CPUs": "2",
        "usable NUMA nodes": "unknown",
        "usable memory": "1073741824 bytes",
        "note": "AMX not permitted: the kernel offers no tile state to processes",
    }


def test_doctor_on_a_machine_that_says_nothing() -> None:
    """What is unknown is called so."""
    (section,) = plugin.hardpoint_report(InMemoryMachine(system="", architecture=""))
    lines = dict(section.lines)
    assert (lines["architecture"], lines["features"], lines["usable memory"]) == ("unknown", "none known", "unknown")
    assert (lines["CPUs of the affinity mask"], lines["CPU quota"]) == ("the system does not say", "none")


def test_nothing_heavy_is_imported() -> None:
    """Importing the light module and detecting load neither torch nor numpy, json, subprocess or ctypes."""
    code = (
        "import sys, pluggy; before = set(sys.modules)\n"
        "from hardpoint_cpu.plugin import plugin\n"
        "from hardpoint import InMemoryMachine\n"
        "plugin.hardpoint_platform(); plugin.hardpoint_detect(InMemoryMachine())\n"
        "heavy = {'torch', 'numpy', 'json', 'subprocess', 'ctypes', 'hardpoint._backend_spec', 'hardpoint.platforms'}\n"
        "print(sorted(heavy & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_modules_import_without_posix() -> None:
    """Every module also imports where fcntl, resource and the like do not exist."""
    code = (
        "import sys, pkgutil, importlib\n"
        "for name in ('fcntl', 'resource', 'grp', 'pwd', 'termios', 'torch', 'numpy'): sys.modules[name] = None\n"
        "import hardpoint_cpu\n"
        "for item in pkgutil.iter_modules(hardpoint_cpu.__path__):\n"
        "    importlib.import_module('hardpoint_cpu.' + item.name)\n"
        "print('done')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "done"


def test_properties_are_scalars(make_machine: Make) -> None:
    """A property is text, a number or nothing, so that a snapshot can hold it."""
    values: list[Any] = list(device(make_machine()).properties.values())
    assert all(value is None or isinstance(value, str | int | float) for value in values)
