"""Machines with Neuron devices: in memory, and live ones whose device nodes and sysfs are plain folders."""

from __future__ import annotations

import json
import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from hardpoint import InMemoryMachine, LiveMachine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

SYSFS = "/sys/devices/virtual/neuron_device"
COMMAND = "neuron-ls --json-output"
GIB = 1 << 30

# What the driver and neuron-ls show of each generation: name, instance type, cores, memory, joined cores.
KINDS: Mapping[str, tuple[str, str, int, int, int]] = {
    "inf1": ("Inferentia", "Inf1", 4, 8 * GIB, 1),
    "inf2": ("Inferentia2", "Inf2", 2, 32 * GIB, 1),
    "trn1": ("Trainium1", "Trn1", 2, 32 * GIB, 1),
    "trn2": ("Trainium2", "Trn2", 8, 96 * GIB, 2),
    "trn3": ("Trainium3", "Trn3", 8, 144 * GIB, 2),
}


def sysfs_files(number: int, kind: str) -> dict[str, str]:
    """The files of one device."""
    name, instance, cores, _, _ = KINDS[kind]
    folder = f"{SYSFS}/neuron{number}"
    return {
        f"{folder}/core_count": str(cores),
        f"{folder}/info/architecture/device_name": f"{name}\n",
        f"{folder}/info/architecture/instance_type": f"{instance}\n",
        f"{folder}/info/serial_number": f"9ff54348{number:08x}\n",
        **{
            f"{folder}/neuron_core{core}/stats/memory_usage/device_mem/total": f"{1000 * number + core}\n"
            for core in range(cores)
        },
    }


def tool_entry(number: int, kind: str, **changes: Any) -> dict[str, Any]:
    """What neuron-ls prints of one device."""
    _, _, cores, memory, size = KINDS[kind]
    entry: dict[str, Any] = {
        "neuron_device": number,
        "bdf": f"00:{0x10 + number:02x}.0",
        "cpu_affinity": "0-3" if number % 2 == 0 else "4-7",
        "numa_node": str(number % 2),
        "connected_to": None,
        "nc_count": cores // size,
        "memory_size": memory,
        "neuron_processes": [],
    }
    if size > 1:
        entry["logical_neuroncore_config"] = size
    return {**entry, **changes}


@pytest.fixture
def entry() -> Callable[..., dict[str, Any]]:
    """A factory of what neuron-ls prints of a device: number, kind (``trn2``), and what differs."""
    return tool_entry


@pytest.fixture
def make_machine() -> Callable[..., InMemoryMachine]:
    """A factory of machines with these kinds of devices (``("trn1", "trn1")``), nodes, sysfs, neuron-ls and packages.

    `tool`: what neuron-ls answers instead; `installed`: the version of torch-neuronx; `nodes`: numbers of device nodes.
    """

    def make(
        kinds: Sequence[str] = ("trn1",),
        *,
        tool: Any = "",
        installed: str | None = "2.9.0",
        nodes: Iterable[int] | None = None,
        sysfs: bool = True,
        distributions: Mapping[str, str] = MappingProxyType({}),
        files: Mapping[str, str | bytes | OSError] = MappingProxyType({}),
        **overrides: Any,
    ) -> InMemoryMachine:
        there: dict[str, Any] = {}
        for number, kind in enumerate(kinds):
            there |= sysfs_files(number, kind) if sysfs else {}
        there |= {f"/dev/neuron{number}": "" for number in (range(len(kinds)) if nodes is None else nodes)}
        answer = json.dumps([tool_entry(number, kind) for number, kind in enumerate(kinds)]) if tool == "" else tool
        return InMemoryMachine(
            files={**there, **files},
            tools={} if answer is None else {COMMAND: answer},
            distributions={**({} if installed is None else {"torch-neuronx": installed}), **distributions},
            **overrides,
        )

    return make


class RootedMachine(LiveMachine):
    """This computer, with another folder in the place of its `/dev` and `/sys`."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root

    def _under(self, path: str) -> str:
        return f"{self._root}{path}" if path.startswith(("/dev", "/sys")) else path

    def exists(self, path: str) -> bool:
        return super().exists(self._under(path))

    def list_directory(self, path: str) -> tuple[str, ...]:
        return super().list_directory(self._under(path))

    def read_bytes(self, path: str, limit: int = 1 << 20) -> bytes:
        return super().read_bytes(self._under(path), limit)

    def can_read_and_write(self, path: str) -> bool:
        return super().can_read_and_write(self._under(path))


class Host:
    """A folder with device nodes and sysfs, and one with a neuron-ls that is a program."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = folder / "root"
        self.programs = folder / "bin"
        self.programs.mkdir(parents=True)
        self.log = folder / "log"
        monkeypatch.setenv("PATH", f"{self.programs}{os.pathsep}{os.environ['PATH']}")
        for name in ("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES", "NEURON_LOGICAL_NC_CONFIG"):
            monkeypatch.delenv(name, raising=False)

    def plug(self, *kinds: str) -> None:
        """Devices of these kinds, as plain files."""
        for number, kind in enumerate(kinds):
            for path, text in {**sysfs_files(number, kind), f"/dev/neuron{number}": ""}.items():
                target = self.root / path.removeprefix("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)

    def tool(self, script: str) -> None:
        """A neuron-ls: a shell script, which writes down how it was called."""
        path = self.programs / "neuron-ls"
        path.write_text(f'#!/bin/sh\necho "$0 $*" >>"{self.log}"\n{script}\n')
        path.chmod(0o755)

    @property
    def machine(self) -> RootedMachine:
        """The computer with these folders."""
        return RootedMachine(self.root)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A live machine without devices and without neuron-ls."""
    return Host(tmp_path, monkeypatch)
