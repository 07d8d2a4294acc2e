"""Broken machines: the doctor's first lines name the cause, and what to do about it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

import hardpoint
from hardpoint import EnvironmentFailure, InMemoryMachine
from hardpoint.cli import _text
from hardpoint.cli._doctor import TYPICAL_CONFIGS, doctor_blocks, doctor_envelope
from hardpoint.cli._question import LIVE
from tests.cli.conftest import Shown
from tests.distributions import add
from tests.native import EXTENSION_SUFFIX, binary
from tests.processes import open_to_all

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command
    from tests.plugins import Site

GPU = {"0000:10:00.0": ("0x10de", "0x2330", "0x030200")}
DEVICE = {
    "index": 0,
    "name": "NVIDIA H100 80GB HBM3",
    "uuid": "GPU-00000000-aaaa-bbbb-cccc-0123456789ab",
    "pci_bus_id": "00000000:10:00.0",
    "capability": [9, 0],
    "memory_bytes": 80 << 30,
    "unified_memory": False,
    "cores": 16896,
    "mig_enabled": False,
    "instances": [],
}
ANSWER = {
    "library": "/usr/lib/libnvidia-ml.so.1",
    "driver_version": "570.86.15",
    "cuda_version": [12, 8],
    "devices": [DEVICE],
    "problems": [],
}
NO_NVML = EnvironmentFailure(
    "libnvidia-ml.so.1: cannot open shared object file: No such file or directory", code="missing_library"
)


def nvidia(
    *,
    nvml: Any = ANSWER,
    driver: Any = NO_NVML,
    traces: tuple[str, ...] = ("/dev/nvidiactl", "/proc/driver/nvidia"),
    torch: tuple[str, str, str] = ("2.9.0+cu128", "'12.8'", "None"),
    variables: dict[str, str] | None = None,
    **facts: Any,
) -> InMemoryMachine:
    """A machine with an H100, as its management library, its driver and its torch show it."""
    flags = "lahf_lm cx16 popcnt sse4_1 sse4_2 ssse3 pni avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"
    files: dict[str, Any] = {**dict.fromkeys(traces, ""), "/proc/cpuinfo": f"flags\t\t: {flags}\n"}
    for address, (vendor, device, kind) in GPU.items():
        folder = f"/sys/bus/pci/devices/{address}"
        files |= {f"{folder}/vendor": f"{vendor}\n", f"{folder}/device": f"{device}\n", f"{folder}/class": f"{kind}\n"}
    version, cuda, hip = torch
    files["/site/torch/version.py"] = f"__version__ = '{version}'\ncuda: Optional[str] = {cuda}\nhip = {hip}\n"
    return InMemoryMachine(
        files={**files, **facts.pop("files", {})},
        variables={"HARDPOINT_PLUGINS": "hardpoint-cpu,hardpoint-cuda", "HOME": "/home/u", **(variables or {})},
        directories=["/home/u", "/tmp"],
        probes={"cuda.nvml": nvml, "cuda.driver": driver, "cuda.driver.masked": driver},
        distributions={"torch": version, "hardpoint-cpu-native": "0.1.0"},
        distribution_folders={"torch": "/site"},
        cpu_count=facts.pop("cpu_count", 8),
        affinity=facts.pop("affinity", range(8)),
        **facts,
    )


def first_lines(machine: InMemoryMachine, count: int = 6) -> str:
    """What the doctor says first of a machine, without white space: the layout breaks lines anywhere."""
    config = hardpoint.AttentionConfig(**{"dtype": "float32", **TYPICAL_CONFIGS[0]["fields"]})  # type: ignore[dict-item, arg-type]
    report = hardpoint.inspect([config], machine=machine).as_dict()
    blocks = list(doctor_blocks(doctor_envelope(LIVE, report, ["The layer"], [])))
    lines = _text.render(blocks, width=80, colour=False).splitlines()
    assert max(map(len, lines)) <= 80
    return "".join("".join(lines[:count]).split())


def host(site: Site) -> None:
    """What is whole on the machine: a platform, and a backend for it."""
    site.platform("host", rank="CPU")
    site.backend("plain")


def broken(code: str, text: str) -> EnvironmentFailure:
    """A probe's failure."""
    return EnvironmentFailure(text, code=code)


MISMATCH = "NVML: driver/library version mismatch"
STUB = "cuInit: stub library (error 34), loaded from /usr/local/cuda/lib64/stubs/libcuda.so.1"
MACHINES: dict[str, tuple[InMemoryMachine, tuple[str, ...]]] = {
    "driver mismatch": (
        nvidia(nvml=broken("driver", MISMATCH), driver=broken("driver", "cuInit: system driver mismatch (error 803)")),
        (
            "WARNING platform/cuda",
            f"cannot be used: {MISMATCH}; cpu is used instead",
            "-> make the driver one version: reboot after its upgrade, or reinstall it",
        ),
    ),
    "stub libcuda": (
        nvidia(nvml=broken("stub_library", STUB), driver=broken("stub_library", STUB)),
        (f"cannot be used: {STUB}; cpu is used instead", "-> take the toolkit's 'stubs' folder out of LD_LIBRARY_PATH"),
    ),
    "no NVML": (
        nvidia(nvml=NO_NVML, driver=ANSWER),
        (
            "WARNING platform cuda: no NVML: libnvidia-ml.so.1: cannot open shared object file",
            "-> install what brings the library, or add its folder to LD_LIBRARY_PATH",
        ),
    ),
    "container without device node": (
        nvidia(traces=()),
        (
            (
                "WARNING NVIDIA GPU is here (PCI 0000:10:00.0) and platform cuda does not see it: no NVIDIA device: "
                "neither device nodes nor a driver; cpu is used instead"
            ),
            "-> load NVIDIA's driver (nvidia-smi must work); start a container with --gpus all",
        ),
    ),
    "nouveau in NVIDIA's place": (
        nvidia(traces=(), files={"/sys/bus/pci/drivers/nouveau/0000:10:00.0/uevent": ""}),
        (
            (
                "cannot be used: the kernel's driver nouveau has 0000:10:00.0, and CUDA needs NVIDIA's own driver; "
                "cpu is used instead"
            ),
            "-> install NVIDIA's driver, which blacklists nouveau, and reboot",
        ),
    ),
    "container with NVIDIA_VISIBLE_DEVICES=void": (
        nvidia(traces=(), variables={"NVIDIA_VISIBLE_DEVICES": "void"}),
        (
            "does not see it: no NVIDIA device: NVIDIA_VISIBLE_DEVICES='void' hides them all from this container",
            "-> start the container with --gpus all",
        ),
    ),
    "device too old for torch": (
        nvidia(
            nvml={**ANSWER, "devices": [{**DEVICE, "name": "Tesla V100", "capability": [7, 0]}]},
            torch=("2.13.0+cu130", "'13.0'", "None"),
        ),
        (
            "torch 2.13.0+cu130, built for CUDA 13.0, has no kernels for Tesla V100 (compute capability 7.0)",
            "-> install a torch wheel for CUDA 12.6",
        ),
    ),
    "fabric manager that does not run": (
        nvidia(
            nvml={**ANSWER, "devices": [{**DEVICE, "fabric_state": 2}]},
            driver=broken("driver", "the CUDA driver cannot initialise: system not yet initialized 802"),
        ),
        (
            "cannot be used: the CUDA driver cannot initialise: system not yet initialized 802; cpu is used instead",
            "-> start the service that initialises the devices (for NVIDIA's with NVSwitch: nvidia-fabricmanager)",
        ),
    ),
    "HIP torch on NVIDIA": (
        nvidia(torch=("2.9.0+rocm6.4", "None", "'6.4.1'")),
        (
            "cannot be used: torch 2.9.0+rocm6.4 is built for ROCm 6.4.1, not for CUDA; cpu is used instead",
            "-> install a torch wheel for CUDA 12.8",
        ),
    ),
    "CPU torch on H100": (
        nvidia(torch=("2.9.0+cpu", "None", "None")),
        (
            "cannot be used: torch 2.9.0+cpu is built for the CPU only, not for CUDA; cpu is used instead",
            "-> install a torch wheel for CUDA 12.8",
        ),
    ),
    "mask by unknown UUID": (
        nvidia(variables={"CUDA_VISIBLE_DEVICES": "GPU-ffff"}),
        (
            "cannot be used: CUDA_VISIBLE_DEVICES='GPU-ffff' leaves no device",
            "-> unset CUDA_VISIBLE_DEVICES, or give it devices that exist",
        ),
    ),
    "empty mask": (
        nvidia(variables={"CUDA_VISIBLE_DEVICES": ""}),
        (
            "cannot be used: CUDA_VISIBLE_DEVICES='' leaves no device",
            "cpu is used instead -> unset CUDA_VISIBLE_DEVICES",
        ),
    ),
    "read-only cache": (
        nvidia(variables={"HARDPOINT_CACHE_DIR": "/ro/cache"}, files={"/ro/x": ""}, read_only=["/ro"]),
        (
            (
                "WARNING nothing can be cached, so what compiles kernels may fail: HARDPOINT_CACHE_DIR=/ro/cache "
                "cannot be used: /ro cannot be written"
            ),
            "-> make it writable, or set HARDPOINT_CACHE_DIR to a directory that is",
        ),
    ),
    "unknown uid": (
        nvidia(variables={"HOME": "/"}, user_id=4711),
        (
            (
                "ADVICE HOME is not set or not this user's, so kernels are cached in a temporary directory: "
                "/tmp/hardpoint-4711"
            ),
            "-> set HARDPOINT_CACHE_DIR to a directory that stays",
        ),
    ),
    "cgroup-limited CPU": (
        nvidia(
            traces=(),
            cpu_count=64,
            affinity=range(64),
            files={
                "/proc/self/cgroup": "0::/\n",
                "/proc/self/mountinfo": "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n",
                "/sys/fs/cgroup/cpu.max": "400000 100000\n",
                "/sys/bus/pci/devices/0000:10:00.0/vendor": "0x8086\n",
            },
        ),
        (
            "ADVICE this process may use 4 of 64 CPUs: a cgroup quota of 4 CPUs",
            "-> raise the container's CPU limit, if it is not meant so",
        ),
    ),
}


@pytest.mark.plugins
@pytest.mark.parametrize("name", MACHINES)
def test_the_first_lines_of_a_broken_machine(name: str) -> None:
    """They name the cause as the machine told it, and the remedy."""
    machine, parts = MACHINES[name]
    hardpoint.reset()
    shown = first_lines(machine, 10)
    hardpoint.reset()
    for part in parts:
        assert "".join(part.split()) in shown


def test_a_truncated_kernel(site: Site, hardpoint_command: Command) -> None:
    """The file is named, and so is the command that brings a whole one."""
    (site.folder / "chip_kernels.so").write_bytes(b"\x7fELF")
    site.platform(
        "chip", body="def kernel_modules(self):\n    return [KernelModule(name='chip_kernels', required=True)]"
    )
    shown = hardpoint_command("doctor")
    assert shown.says("ERROR kernel module chip_kernels is broken: ImportError: ")
    assert shown.says("chip_kernels.so: file too short")
    assert shown.says("-> the file is damaged: pip install --force-reinstall --no-cache-dir")


@pytest.mark.compiler
def test_an_undefined_symbol_after_a_torch_upgrade(site: Site, hardpoint_command: Command) -> None:
    """The better backend that is lost, the symbol, and that it must be rebuilt."""
    site.backend("fast", spec="order=Order(before=('slow',))", top="from fast_kernels import _ext")
    (site.folder / "fast_kernels").mkdir()
    (site.folder / "fast_kernels" / "__init__.py").touch()
    (site.folder / "fast_kernels" / f"_ext{EXTENSION_SUFFIX}").write_bytes(binary("missing_symbol"))
    site.backend("slow")
    site.platform("chip")
    shown = hardpoint_command("doctor")
    assert shown.says("WARNING backend fast is lost (import): ImportError: ")
    assert shown.says("undefined symbol: hardpoint_test_no_such_symbol")
    assert shown.says("slow is used instead")
    assert shown.says("-> it was built for another torch: reinstall or rebuild fake-fast")
    assert shown.code == 0


def test_two_vendors(site: Site, hardpoint_command: Command) -> None:
    """Both plugins with their distributions, and the variable to set; the CPU is nobody's rival."""
    site.platform("one", distribution="chips-of-one", version="1.1")
    site.platform("two", distribution="chips-of-two", version="2.2")
    host(site)
    shown = hardpoint_command("doctor")
    assert shown.says(
        "ERROR two plugins are at odds: platform/one (chips-of-one 1.1) and platform/two (chips-of-two 2.2) are both "
        "usable, and neither goes before the other -> set HARDPOINT_PLATFORM=one (or two); "
        "where the machine is simulated or recorded: --platform one"
    )
    assert hardpoint_command("doctor", "--platform", "one").code == 0
    assert shown.code == 1


def test_a_plugin_that_is_too_new(site: Site, hardpoint_command: Command) -> None:
    """Both versions, and that an upgrade helps."""
    site.platform("newer", api="(2, 0)", requires=("hardpoint>=2",))
    host(site)
    shown = hardpoint_command("doctor")
    for part in ("WARNING platform/newer (fake-newer 1.0)", "2.0", "1.0", "hardpoint>=2", "host is used instead"):
        assert shown.says(part)
    assert shown.says("-> install a version of the plugin for this hardpoint, or another hardpoint")


def test_a_misspelt_hook(site: Site, hardpoint_command: Command) -> None:
    """The wrong name, the right one, and whom to ask."""
    site.platform("typo", hooks="@hookimpl\ndef hardpoint_detekt(self, machine):\n    return None")
    host(site)
    shown = hardpoint_command("doctor")
    assert shown.says("hardpoint_detekt is no hook of hardpoint; did you mean hardpoint_detect?")
    assert shown.says("-> pip install --upgrade fake-typo; HARDPOINT_DISABLED_PLUGINS=platform/typo leaves it out")


def test_a_plugin_that_crashes_at_import(site: Site, hardpoint_command: Command) -> None:
    """Who crashed and how, in the top line; everything else is there; the exit code says that a plugin has a bug."""
    site.platform("crasher", plugin_top="import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    host(site)
    shown = hardpoint_command("doctor")
    assert shown.says(
        "BUG platform/crasher (fake-crasher 1.0) has a bug (load): crashed with SIGSEGV, and would take an engine "
        "with it -> report it to its authors; until then: HARDPOINT_DISABLED_PLUGINS=platform/crasher",
        within=4,
    )
    assert "Platform: host" in shown.out
    assert shown.code == 3


def test_a_plugin_that_hangs(site: Site, hardpoint_command: Command) -> None:
    """Who, in which phase, and for how long it was waited."""
    site.monkeypatch.setenv("HARDPOINT_PROBE_TIMEOUT", "1")
    site.platform("sleeper", detect="import time\ntime.sleep(600)")
    host(site)
    shown = hardpoint_command("doctor")
    assert shown.says(
        "BUG platform/sleeper (fake-sleeper 1.0) has a bug (detect): hangs: no answer within 4 s -> report it", within=3
    )
    assert "Platform: host" in shown.out
    assert shown.code == 3


def test_a_circular_import(site: Site, hardpoint_command: Command) -> None:
    """That it is one, and that it is the authors' to mend."""
    (site.folder / "ring_a.py").write_text("import ring_b\nvalue = 1\n")
    (site.folder / "ring_b.py").write_text("from ring_a import value\n")
    site.platform("ring", plugin_top="import ring_a")
    host(site)
    shown = hardpoint_command("doctor")
    assert shown.says("WARNING platform/ring (fake-ring 1.0) failed (load): ImportError: cannot import name 'value'")
    assert shown.says("circular import")
    assert shown.says("-> report it to its authors: the import belongs into a function")


def test_malformed_metadata_elsewhere(site: Site, hardpoint_command: Command) -> None:
    """The folder, what is wrong in it, and that it must be reinstalled; no plugin is lost by it."""
    add(
        site.folder,
        "stranger-1.0.dist-info",
        b"[console_scripts]\nthis is no entry point\n\xff\xfe[hardpoint.backends]\n",
    )
    host(site)
    shown = hardpoint_command("doctor")
    assert shown.says("WARNING broken metadata: ")
    assert shown.says("stranger-1.0.dist-info")
    assert shown.says("-> reinstall the distribution that it belongs to, or delete it")
    assert "Platform: host" in shown.out


def test_a_user_without_name_and_home(site: Site, hardpoint_command: Command, tmp_path: Path) -> None:
    """The live doctor works, and says where caches go."""
    host(site)
    for name in ("HOME", "XDG_CACHE_HOME", "USER", "LOGNAME", "HARDPOINT_CACHE_DIR"):
        site.monkeypatch.delenv(name, raising=False)
    site.monkeypatch.setenv("TMPDIR", str(tmp_path))
    shown = hardpoint_command("doctor")
    assert shown.says("so kernels are cached in a temporary directory: ")
    assert "Platform: host" in shown.out


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can become another user")
def test_the_live_doctor_of_a_user_without_a_name(site: Site) -> None:
    """Nobody knows the user, there is no home, nothing is written: it works, and says where caches would go."""
    host(site)
    open_to_all(site.folder)
    who: dict[str, Any] = {"user": 12345, "group": 12345, "extra_groups": []}
    environment = {"PYTHONPATH": str(site.folder), "PATH": os.defpath, "HARDPOINT_PLUGINS": ",".join(site.allowed)}
    try:
        subprocess.run([sys.executable, "-c", "import click, rich"], env=environment, check=True, **who)
    except (PermissionError, subprocess.CalledProcessError):
        pytest.skip("that user cannot reach this interpreter and its packages")
    done = subprocess.run(
        [sys.executable, "-m", "hardpoint.cli", "doctor"],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        **who,
    )
    shown = Shown(done.returncode, done.stdout, done.stderr)
    assert shown.says("ADVICE HOME is not set or not this user's, so kernels are cached in a temporary directory: ")
    assert shown.says("/hardpoint-12345 -> set HARDPOINT_CACHE_DIR to a directory that stays")
    assert (shown.code, shown.err) == (0, "")
