"""Machines with AMD devices: in memory, with the kernel's files, and live ones whose files are plain folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

import hardpoint
from hardpoint import InMemoryMachine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

SOURCES = Path(__file__).parent / "fake_amdsmi"
NODES = "/sys/class/kfd/kfd/topology/nodes"
MIB = 1 << 20
CPU = "cpu_cores_count 48\nsimd_count 0\ngfx_target_version 0\nvendor_id 0\n"
HIP_BUILD = "__version__ = '2.9.0+rocm7.0'\ncuda: Optional[str] = None\nhip: Optional[str] = '7.0.51831'\n"


def make_properties(number: int = 0, **changes: int | None) -> dict[str, int]:
    """What the kernel tells of an MI300X, with an id and an address of its own; None leaves a line out."""
    values: dict[str, int | None] = {
        "cpu_cores_count": 0,
        "simd_count": 1216,
        "wave_front_size": 64,
        "simd_per_cu": 4,
        "gfx_target_version": 90402,
        "vendor_id": 0x1002,
        "device_id": 0x74A1,
        "location_id": (0x10 + number) << 8,
        "domain": 0,
        "drm_render_minor": 128 + number,
        "hive_id": 0,
        "local_mem_size": 0,
        "num_xcc": 8,
        "unique_id": 0xA0 + number,
    }
    return {name: value for name, value in {**values, **changes}.items() if value is not None}


def node_files(
    node: int,
    properties: Mapping[str, int],
    *,
    memory: int | None = 196592 * MIB,
    links: Sequence[Mapping[str, int]] = (),
) -> dict[str, str]:
    """The files of one node of the topology, and the device's render node."""
    folder = f"{NODES}/{node}"
    files = {f"{folder}/gpu_id": f"{1000 + node}\n", f"{folder}/properties": _lines(properties)}
    if memory is not None:
        files[f"{folder}/mem_banks/0/properties"] = _lines({"heap_type": 1, "size_in_bytes": memory, "flags": 0})
    for place, link in enumerate(links):
        files[f"{folder}/io_links/{place}/properties"] = _lines({"node_from": node, **link})
    if properties.get("drm_render_minor"):
        files[f"/dev/dri/renderD{properties['drm_render_minor']}"] = ""
    return files


def tree(cards: Iterable[Mapping[str, int] | Mapping[str, str]]) -> dict[str, str]:
    """The files of a machine with a CPU in node 0 and behind it these devices, given by their properties or files."""
    files: dict[str, Any] = {"/dev/kfd": "", f"{NODES}/0/gpu_id": "0\n", f"{NODES}/0/properties": CPU}
    for node, card in enumerate(cards, start=1):
        is_files = any(isinstance(value, str) for value in card.values())
        files.update(card if is_files else node_files(node, card))  # type: ignore[arg-type]
    return files


def _lines(values: Mapping[str, int]) -> str:
    return "".join(f"{name} {value}\n" for name, value in values.items())


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """What one test has logged once, the next one hears again."""
    hardpoint.reset()
    yield
    hardpoint.reset()


@pytest.fixture
def card() -> Callable[..., dict[str, int]]:
    """A factory of a device's properties: number, and what differs from an MI300X."""
    return make_properties


@pytest.fixture
def node() -> Callable[..., dict[str, str]]:
    """A factory of a node's files: node, properties, memory and links."""
    return node_files


@pytest.fixture
def make_machine() -> Callable[..., InMemoryMachine]:
    """A factory of machines with these devices in the kernel's topology, masks, and a torch for ROCm.

    `torch` is its version file. `amdsmi` is what that probe answers or the error it ends with; None: not installed.
    """

    def make(
        cards: Iterable[Mapping[str, int] | Mapping[str, str]] = (),
        *,
        rocr: str | None = None,
        hip: str | None = None,
        cuda: str | None = None,
        torch: str | None = HIP_BUILD,
        amdsmi: Any = None,
        variables: Mapping[str, str] = MappingProxyType({}),
        files: Mapping[str, str | bytes | OSError | None] = MappingProxyType({}),
        **overrides: Any,
    ) -> InMemoryMachine:
        masks = {"ROCR_VISIBLE_DEVICES": rocr, "HIP_VISIBLE_DEVICES": hip, "CUDA_VISIBLE_DEVICES": cuda}
        everything: dict[str, Any] = {**tree(cards), **files}
        if torch is not None:
            everything["/site/torch/version.py"] = torch
        facts: dict[str, Any] = {
            "directories": ["/sys/module/amdgpu"],
            "distributions": {
                **({} if torch is None else {"torch": "2.9.0"}),
                **({} if amdsmi is None else {"amdsmi": "7.0.2"}),
            },
            "distribution_folders": {} if torch is None else {"torch": "/site"},
            "probes": {} if amdsmi is None else {"rocm.amdsmi": amdsmi},
            **overrides,
        }
        return InMemoryMachine(
            files={path: content for path, content in everything.items() if content is not None},
            variables={**{name: text for name, text in masks.items() if text is not None}, **variables},
            **facts,
        )

    return make


# A live machine whose /sys and /dev are folders of the test's own: all else is this computer.
PRELUDE = """
import json, logging, os, sys
from hardpoint import LiveMachine
ROOT = os.environ["FAKE_ROOT"]
def moved(path):
    return ROOT + path if path.startswith(("/sys", "/dev", "/opt", "/usr/share")) else path
class Rooted(LiveMachine):
    def exists(self, path): return super().exists(moved(path))
    def list_directory(self, path): return super().list_directory(moved(path))
    def read_bytes(self, path, limit=1 << 20): return super().read_bytes(moved(path), limit)
    def can_read_and_write(self, path): return super().can_read_and_write(moved(path))
class Kept(logging.Handler):
    texts = []
    def emit(self, record):
        if record.levelno >= logging.WARNING:
            self.texts.append(record.getMessage())
logging.getLogger("hardpoint").addHandler(Kept())
machine = Rooted()
"""


class Host:
    """A folder with the kernel's files, a fake amdsmi, a torch that is only its version file, and a process there."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.site = folder / "site"
        self.script = folder / "script"
        self.log = folder / "log"
        self.variables: dict[str, str] = {}
        self.root.mkdir()
        self.play()
        self._distribution("torch", "9.9", "torch/version.py", HIP_BUILD)

    def add(self, cards: Iterable[Mapping[str, int] | Mapping[str, str]]) -> None:
        """Put these devices into the kernel's files."""
        self.write(tree(cards))

    def write(self, files: Mapping[str, str]) -> None:
        """Put files under the root."""
        for path, text in files.items():
            target = self.root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)

    def install_amdsmi(self) -> None:
        """Put the fake distribution on the path."""
        for source in SOURCES.glob("*.py"):
            self._distribution("amdsmi", "7.0.2", f"amdsmi/{source.name}", source.read_text())

    def play(self, **script: Any) -> None:
        """What the fake amdsmi is to do: see its `amdsmi_wrapper`."""
        self.script.write_text(json.dumps(script))

    def run(self, code: str) -> Any:
        """What the code prints last, as JSON, in a fresh process; `machine` is there."""
        self.log.write_text("")
        hidden = ("HARDPOINT_", "CUDA_", "HIP_", "ROCR_", "HSA_", "ROCM_")
        environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith(hidden)},
            "FAKE_ROOT": str(self.root),
            "FAKE_SCRIPT": str(self.script),
            "FAKE_LOG": str(self.log),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(self.site), os.environ.get("PYTHONPATH")])),
            **self.variables,
        }
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
            capture_output=True, text=True, check=False, timeout=120, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        (printed,) = done.stdout.splitlines()
        return json.loads(printed)

    def calls(self) -> list[str]:
        """The functions of amdsmi that were called."""
        return self.log.read_text().splitlines()

    def _distribution(self, name: str, version: str, path: str, text: str) -> None:
        info = self.site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        target = self.site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A machine without devices and without amdsmi."""
    return Host(tmp_path)
