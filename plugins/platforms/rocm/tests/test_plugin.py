from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from hardpoint import API_VERSION, InMemoryMachine
from hardpoint.hookspecs import Rank
from hardpoint_rocm.plugin import plugin

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., InMemoryMachine]


def test_descriptor() -> None:
    """The platform stands before the CPU and behind a vendor's, and names the variables that it reads."""
    spec = plugin.hardpoint_platform()
    assert (spec.api, spec.rank) == (API_VERSION, Rank.IN_TREE)
    assert (spec.target, spec.profiles) == ("hardpoint_rocm.platform:RocmPlatform", "hardpoint_rocm:profiles")
    assert [setting.name for setting in spec.settings] == [
        "ROCR_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES",
        "HSA_OVERRIDE_GFX_VERSION",
    ]


def test_doctor(make_machine: Make, card: Callable[..., dict[str, int]]) -> None:
    """The doctor sees traces, driver, torch's build, the variables, every device, and why they are as they are."""
    pci = {"/sys/bus/pci/devices/0000:10:00.0/vendor": "0x1002", "/sys/bus/pci/devices/0000:10:00.0/class": "0x120000"}
    (section,) = plugin.hardpoint_report(make_machine([card()], hip="0,7", files=pci))
    assert section.title == "ROCm"
    assert section.lines == (
        ("traces", "/sys/class/kfd"),
        ("driver", "amdgpu is loaded"),
        ("PCI", "0000:10:00.0"),
        ("amdsmi", "not installed"),
        ("torch", "2.9.0, built for hip 7.0.51831"),
        ("ROCR_VISIBLE_DEVICES", "not set"),
        ("HIP_VISIBLE_DEVICES", "'0,7'"),
        ("CUDA_VISIBLE_DEVICES", "not set"),
        ("HSA_OVERRIDE_GFX_VERSION", "not set"),
        ("outcome", "usable"),
        ("device 0", "AMD gfx942 (0x74a1), gfx942, 196592 MiB, GPU-00000000000000a0, 0000:10:00.0"),
        ("note", "HIP_VISIBLE_DEVICES='0,7' is cut short: '7' is out of range: there are 1 devices, numbered from 0"),
    )


def test_doctor_without_hardware() -> None:
    """Where nothing is there nothing is probed; a card without a driver is seen on the bus; WSL is named."""
    pci = {"/sys/bus/pci/devices/0000:03:00.0/vendor": "0x1002", "/sys/bus/pci/devices/0000:03:00.0/class": "0x030000"}
    machine = InMemoryMachine(files=pci, kernel_release="5.15.0-microsoft-standard-WSL2")
    (section,) = plugin.hardpoint_report(machine)
    lines = dict(section.lines)
    assert (lines["traces"], lines["PCI"], lines["driver"]) == ("none", "0000:03:00.0", "amdgpu is not loaded")
    assert (lines["torch"], lines["WSL"]) == ("not installed", "5.15.0-microsoft-standard-WSL2")
    assert not [question for question in machine.questions if question.startswith(("probe", "run"))]


def test_doctor_shows_reasons(make_machine: Make, card: Callable[..., dict[str, int]]) -> None:
    """A reason stands with its remedy."""
    (section,) = plugin.hardpoint_report(make_machine([card(location_id=None)], read_only=["/dev/kfd"]))
    assert dict(section.lines)["reason"].startswith("/dev/kfd may not be opened (add this user to the groups")
    assert "no PCI address" in dict(section.lines)["device 0"]


def test_modules_import_without_libraries() -> None:
    """Every module imports where neither amdsmi nor torch nor what only POSIX has is there."""
    code = (
        "import sys, pkgutil, importlib\n"
        "for name in ('amdsmi', 'fcntl', 'resource', 'pwd', 'torch', 'numpy'): sys.modules[name] = None\n"
        "import hardpoint_rocm\n"
        "for item in pkgutil.iter_modules(hardpoint_rocm.__path__):\n"
        "    importlib.import_module('hardpoint_rocm.' + item.name)\n"
        "print('done')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "done"
