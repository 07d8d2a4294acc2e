"""Machines with NVIDIA devices: in memory, with the answers that probes would give, and live ones with fake drivers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from hardpoint import InMemoryMachine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

SOURCES = Path(__file__).parent / "fake_drivers"
GIB = 1 << 30
VERSION = "__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = {cuda}\nhip: Optional[str] = {hip}\n"


def make_card(number: int = 0, **changes: Any) -> dict[str, Any]:
    """What NVML tells of an H100, with an id and an address of its own; everything can be changed."""
    card = {
        "index": number,
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": f"GPU-{number:08x}-aaaa-bbbb-cccc-0123456789ab",
        "pci_bus_id": f"00000000:{0x10 + number:02X}:00.0",
        "capability": [9, 0],
        "memory_bytes": 80 * GIB,
        "unified_memory": False,
        "cores": 132 * 128,
        "mig_enabled": False,
        "instances": [],
    }
    return {**card, **changes}


def answer(cards: Iterable[Mapping[str, Any]], **changes: Any) -> dict[str, Any]:
    """What a probe answers."""
    return {
        "library": "/usr/lib/libnvidia-ml.so.1",
        "driver_version": "570.86.15",
        "cuda_version": [12, 8],
        "devices": list(cards),
        "problems": [],
        **changes,
    }


@pytest.fixture
def card() -> Callable[..., dict[str, Any]]:
    """A factory of devices: number, and what differs from an H100."""
    return make_card


@pytest.fixture
def probed() -> Callable[..., dict[str, Any]]:
    """A factory of probes' answers: devices, and what differs."""
    return answer


@pytest.fixture
def make_machine() -> Callable[..., InMemoryMachine]:
    """A factory of machines with these devices in NVML, a mask, and a torch for CUDA (`torch`: its version file).

    `nvml` and `driver` replace what those probes answer, or are the errors that they end with; `driver` None: nobody
    has asked it. `more`: other probes.
    """

    def make(
        cards: Sequence[Mapping[str, Any]] = (),
        *,
        mask: str | None = None,
        torch: str | None = VERSION.format(version="2.9.0+cu128", cuda="'12.8'", hip="None"),
        traces: Iterable[str] = ("/dev/nvidiactl", "/proc/driver/nvidia"),
        nvml: Any = None,
        driver: Any = None,
        driver_masked: Any = None,
        variables: Mapping[str, str] = MappingProxyType({}),
        files: Mapping[str, str | bytes | OSError] = MappingProxyType({}),
        more: Mapping[str, Any] | None = None,
        **overrides: Any,
    ) -> InMemoryMachine:
        probes = {"cuda.nvml": answer(cards) if nvml is None else nvml}
        if driver is not None:
            probes["cuda.driver"] = driver
        if driver_masked is not None:
            probes["cuda.driver.masked"] = driver_masked
        there: dict[str, str | bytes | OSError] = dict.fromkeys(traces, "")
        if torch is not None:
            there["/site/torch/version.py"] = torch
        masked = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
        facts: dict[str, Any] = {
            "distributions": {} if torch is None else {"torch": "2.9.0"},
            "distribution_folders": {} if torch is None else {"torch": "/site"},
            **overrides,
        }
        return InMemoryMachine(
            files={**there, **files}, variables={**masked, **variables}, probes={**probes, **(more or {})}, **facts
        )

    return make


@cache
def compiled(name: str, *flags: str) -> bytes:
    """A fake library as a shared object."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))))
    soname = {"nvml": "libnvidia-ml.so.1", "cuda": "libcuda.so.1"}[name]
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / soname
        command = [compiler, "-shared", "-fPIC", "-O1", f"-Wl,-soname,{soname}", *flags]
        subprocess.run([*command, "-o", target, SOURCES / f"{name}.c"], check=True, capture_output=True)
        return target.read_bytes()


# A live machine of which only the trace is made up: the libraries are really loaded.
PRELUDE = """
import json, logging, os, sys
from hardpoint import LiveMachine
class Seen(LiveMachine):
    def exists(self, path):
        return path == os.environ.get("FAKE_TRACE", "/dev/nvidiactl")
class Kept(logging.Handler):
    texts = []
    def emit(self, record):
        if record.levelno >= logging.WARNING:
            self.texts.append(record.getMessage())
logging.getLogger("hardpoint").addHandler(Kept())
machine = Seen()
"""


class Drivers:
    """A folder of fake libraries, what they are to do, and a process that loads them."""

    def __init__(self, folder: Path) -> None:
        self.libraries = folder / "lib"
        self.libraries.mkdir()
        self.script = folder / "script"
        self.log = folder / "log"
        self.site = folder / "site"
        self.variables: dict[str, str] = {}
        self.parent = 0
        self.play()
        self.torch("'12.8'")

    def install(self, name: str, *flags: str) -> Path:
        """Put a library (``nvml`` or ``cuda``) where the loader looks first."""
        target = self.libraries / {"nvml": "libnvidia-ml.so.1", "cuda": "libcuda.so.1"}[name]
        target.write_bytes(compiled(name, *flags))
        return target

    def play(self, *lines: str) -> None:
        """What the libraries are to do."""
        self.script.write_text("".join(f"{line}\n" for line in lines))

    def torch(self, cuda: str, hip: str = "None") -> None:
        """A torch that is only its metadata and its version file."""
        (self.site / "torch-9.9.dist-info").mkdir(parents=True, exist_ok=True)
        (self.site / "torch-9.9.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9\n")
        (self.site / "torch").mkdir(exist_ok=True)
        (self.site / "torch/version.py").write_text(VERSION.format(version="9.9", cuda=cuda, hip=hip))

    def run(self, code: str, *, search: Path | None = None) -> Any:
        """What the code prints last, as JSON, in a fresh process; `machine` is there."""
        self.log.write_text("")
        environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith(("HARDPOINT_", "CUDA_"))},
            "LD_LIBRARY_PATH": str(self.libraries),
            "FAKE_SCRIPT": str(self.script),
            "FAKE_LOG": str(self.log),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(search or self.site), os.environ.get("PYTHONPATH")])),
            **self.variables,
        }
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(code) + "\nprint(os.getpid())"],
            capture_output=True, text=True, check=False, timeout=120, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        *_, printed, pid = done.stdout.splitlines()
        self.parent = int(pid)
        return json.loads(printed)

    def calls(self, *, parent: bool | None = None) -> list[str]:
        """The functions called: by the process itself, by its children (`parent` False), or by all."""
        lines = [line.split(" ", 1) for line in self.log.read_text().splitlines()]
        return [name for pid, name in lines if parent is None or (int(pid) == self.parent) is parent]


@pytest.fixture
def drivers(tmp_path: Path) -> Drivers:
    """Fake drivers; none is installed yet."""
    return Drivers(tmp_path)
