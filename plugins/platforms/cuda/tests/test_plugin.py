from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

from hardpoint import API_VERSION, InMemoryMachine
from hardpoint.hookspecs import Rank
from hardpoint_cuda.plugin import plugin

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., InMemoryMachine]


def test_descriptor() -> None:
    """The platform stands before the CPU and behind a vendor's, and names the variables that it reads."""
    spec = plugin.hardpoint_platform()
    assert (spec.api, spec.rank) == (API_VERSION, Rank.IN_TREE)
    assert spec.target == "hardpoint_cuda.platform:CudaPlatform"
    assert [setting.name for setting in spec.settings] == [
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "NVIDIA_VISIBLE_DEVICES",
        "HARDPOINT_CUDA_PIN_MEMORY_ON_WSL",
    ]


def test_doctor(make_machine: Make, card: Callable[..., dict[str, Any]]) -> None:
    """The doctor sees traces, torch's build, the variables, every device, and why they are as they are."""
    machine = make_machine([card(uuid="GPU-a")], mask="0,7", kernel_release="5.15.0-microsoft-standard-WSL2")
    (section,) = plugin.hardpoint_report(machine)
    assert section.title == "CUDA"
    assert section.lines == (
        ("traces", "/dev/nvidiactl, /proc/driver/nvidia"),
        ("torch", "2.9.0, built for cuda 12.8"),
        ("CUDA_VISIBLE_DEVICES", "'0,7'"),
        ("CUDA_DEVICE_ORDER", "not set"),
        ("NVIDIA_VISIBLE_DEVICES", "not set"),
        ("WSL", "5.15.0-microsoft-standard-WSL2"),
        ("outcome", "usable"),
        ("device 0", "NVIDIA H100 80GB HBM3, compute capability 9.0, 81920 MiB, GPU-a, 0000:10:00.0"),
        (
            "note",
            (
                "CUDA_VISIBLE_DEVICES='0,7' is cut short: '7' is out of range: there are 1 devices, numbered from 0 "
                "(unset CUDA_VISIBLE_DEVICES, or give it devices that exist)"
            ),
        ),
    )


def test_doctor_without_hardware() -> None:
    """Where nothing is there, nothing is probed."""
    machine = InMemoryMachine()
    (section,) = plugin.hardpoint_report(machine)
    assert dict(section.lines)["traces"] == "none"
    assert dict(section.lines)["torch"] == "not installed"
    assert not [question for question in machine.questions if question.startswith("probe")]


def test_doctor_shows_reasons(make_machine: Make) -> None:
    """A reason stands with its remedy."""
    (section,) = plugin.hardpoint_report(make_machine([], mask=""))
    assert dict(section.lines)["reason"].startswith("CUDA_VISIBLE_DEVICES='' leaves no device: empty")


def test_modules_import_without_libraries() -> None:
    """Every module imports where neither pynvml nor torch nor what only POSIX has is there."""
    code = (
        "import sys, pkgutil, importlib\n"
        "for name in ('pynvml', 'fcntl', 'resource', 'pwd', 'torch', 'numpy'): sys.modules[name] = None\n"
        "import hardpoint_cuda\n"
        "for item in pkgutil.iter_modules(hardpoint_cuda.__path__):\n"
        "    importlib.import_module('hardpoint_cuda.' + item.name)\n"
        "print('done')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "done"
