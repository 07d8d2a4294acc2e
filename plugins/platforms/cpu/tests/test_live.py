"""This very computer: the real files, a real mask, and real packages where the native kernels would be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hardpoint import KernelReport, LiveMachine
from hardpoint_cpu import _cgroup
from hardpoint_cpu._detect import detect
from hardpoint_cpu.platform import CpuPlatform

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hardpoint import InMemoryMachine

    Make = Callable[..., InMemoryMachine]

NAMES = ("_amx", "_avx512_bf16", "_avx512", "_avx2", "_neon")
WORKS = "def write_kv_cache(): ...\ndef attention(): ...\n"

IMPORT = """
import json, logging
from hardpoint import Device, DeviceCapability, LiveMachine
from hardpoint_cpu.platform import CpuPlatform
from hardpoint_cpu._kernel_modules import BUILDS
class Kept(logging.Handler):
    texts = []
    def emit(self, record):
        if record.levelno >= logging.WARNING:
            self.texts.append(record.getMessage())
logging.getLogger("hardpoint").addHandler(Kept())
features = frozenset(name for build in BUILDS if build.family == "x86_64" for name in build.features)
capability = DeviceCapability(runtime="cpu", arch="x86-64-v4", features=features)
device = Device(index=0, name="CPU", capability=capability, properties={"family": "x86_64"})
report = CpuPlatform(LiveMachine(), [device]).import_kernels()
print(json.dumps({
    "ok": report.ok,
    "outcomes": {item.name.rpartition(".")[2]: str(item.outcome) for item in report.modules},
    "reasons": {item.name.rpartition(".")[2]: str(item.reason) for item in report.modules},
    "warnings": Kept.texts,
}))
"""


def run(code: str, *paths: Path) -> Any:
    """What the code prints, as JSON, in a fresh process with these folders on its path."""
    search = os.pathsep.join([*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": search}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def write_package(folder: Path, **modules: str) -> Path:
    """A package of kernel modules; one that is not given is not there."""
    package = folder / "hardpoint_cpu_native"
    package.mkdir()
    (package / "__init__.py").touch()
    for name, source in modules.items():
        (package / f"{name}.py").write_text(source)
    return folder


def test_this_machine() -> None:
    """What is detected here fits what Python itself says of this process."""
    machine = LiveMachine()
    (cpu,) = detect(machine).devices
    count = os.cpu_count()
    usable = cpu.properties["usable_cpus"]
    assert isinstance(usable, int)
    assert 1 <= usable <= (count or 1)
    assert cpu.total_memory_bytes is None or cpu.total_memory_bytes > 1 << 20
    platform = CpuPlatform(machine, [cpu])
    if hasattr(os, "sched_getaffinity"):
        assert platform.cpu_affinity == frozenset(os.sched_getaffinity(0))
        usage = platform.get_current_memory_usage()
        assert usage is not None
        assert usage > 1 << 20
    assert sum(share.threads for share in platform.partition_cores(1)) <= usable


def test_path_that_no_system_opens() -> None:
    """A damaged file may name a group with a NUL in it: it limits nothing."""
    assert _cgroup._read(LiveMachine(), "/sys/fs/cgroup/a\0b/cpu.max") is None


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a system with affinity masks")
def test_real_mask() -> None:
    """A process that was bound to one CPU has one, and every share of it is that one."""
    code = """
import json, os
cpu = max(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cpu})
from hardpoint import LiveMachine
from hardpoint_cpu._detect import detect
from hardpoint_cpu.platform import CpuPlatform
machine = LiveMachine()
platform = CpuPlatform(machine, detect(machine).devices)
(share,) = platform.partition_cores(1)
os.sched_setaffinity(0, share.cpus)
print(json.dumps([cpu, sorted(platform.cpu_affinity), sorted(share.cpus), platform.usable_cpus]))
"""
    cpu, affinity, share, usable = run(code)
    assert (affinity, share, usable) == ([cpu], [cpu], 1)


def test_kernels_that_are_not_installed_are_quiet(tmp_path: Path) -> None:
    """Without the native distribution nothing warns, and the report says why each module is not there."""
    # An empty package would hide one that is really installed.
    found = run(IMPORT, write_package(tmp_path))
    assert found["outcomes"] == dict.fromkeys(NAMES[:4], "absent") | {"_neon": "not_run"}
    assert found["ok"] is True
    assert found["warnings"] == []
    assert "No module named 'hardpoint_cpu_native._avx2'" in found["reasons"]["_avx2"]


def test_remedy_names_the_distribution(make_machine: Make) -> None:
    """An absent module says which distribution brings it."""
    devices = detect(make_machine("skylake")).devices
    modules = CpuPlatform(LiveMachine(), devices).kernel_modules()
    assert {module.distribution for module in modules} == {"hardpoint-cpu-native"}


def test_first_that_imports_is_taken(tmp_path: Path) -> None:
    """The widest module whose instructions are there is imported, and the narrower ones are left alone."""
    bomb = "raise SystemExit('imported')"
    found = run(IMPORT, write_package(tmp_path, _avx512_bf16=WORKS, _avx512=bomb, _avx2=bomb, _neon=bomb))
    assert found["outcomes"] == {
        "_amx": "absent",
        "_avx512_bf16": "imported",
        "_avx512": "not_run",
        "_avx2": "not_run",
        "_neon": "not_run",
    }


def test_permission_for_tiles_is_refused(tmp_path: Path, forbid_tiles: str) -> None:
    """Where the kernel refuses tiles at the last moment, the AMX module is not imported, and the next one is."""
    bomb = "raise SystemExit('imported')"
    found = run(forbid_tiles + IMPORT, write_package(tmp_path, _amx=bomb, _avx512_bf16=WORKS))
    assert found["outcomes"]["_amx"] == "broken"
    assert found["outcomes"]["_avx512_bf16"] == "imported"
    assert "AMX not permitted" in found["reasons"]["_amx"]
    assert len(found["warnings"]) == 1
    assert "AMX not permitted" in found["warnings"][0]


def test_module_that_lacks_a_promised_operator(tmp_path: Path) -> None:
    """A module of another version, without a promised operator, is incomplete, and the next one is taken."""
    found = run(IMPORT, write_package(tmp_path, _avx512="def attention(): ...\n", _avx2=WORKS))
    assert found["outcomes"]["_avx512"] == "incomplete"
    assert "write_kv_cache" in found["reasons"]["_avx512"]
    assert found["outcomes"]["_avx2"] == "imported"


def test_simulated_machine_loads_nothing(make_machine: Make) -> None:
    """On a machine that is data every module is not run."""
    machine = make_machine("skylake")
    report: KernelReport = CpuPlatform(machine, detect(machine).devices).import_kernels()
    assert {str(item.outcome) for item in report.modules} == {"not_run"}
