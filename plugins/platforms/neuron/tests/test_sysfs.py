from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardpoint import InMemoryMachine
from hardpoint_neuron._sysfs import list_devices, memory_in_use, read_device, read_driver_version

if TYPE_CHECKING:
    from collections.abc import Callable

SYSFS = "/sys/devices/virtual/neuron_device"
DEVICE = f"{SYSFS}/neuron0"
DENIED = PermissionError(13, "Permission denied")


@pytest.mark.parametrize(
    ("kind", "name", "cores"),
    [("inf1", "Inferentia", 4), ("inf2", "Inferentia2", 2), ("trn1", "Trainium1", 2), ("trn2", "Trainium2", 8)],
)
def test_generations(make_machine: Callable[..., InMemoryMachine], kind: str, name: str, cores: int) -> None:
    """The driver names the device; its cores are the folders that it has for them."""
    found = read_device(make_machine([kind]), 0)
    assert (found.name, found.cores) == (name, cores)
    assert found.generation is not None
    assert found.generation.family == kind


def test_cores_without_being_root() -> None:
    """The files that only root may read are not needed: cores are counted by their folders."""
    files: dict[str, str | bytes | OSError] = {
        f"{DEVICE}/core_count": DENIED,
        f"{DEVICE}/connected_devices": DENIED,
        f"{DEVICE}/neuron_core0/info/architecture/arch_type": "NCv2\n",
        f"{DEVICE}/neuron_core1/info/architecture/arch_type": "NCv2\n",
        f"{DEVICE}/neuron_core07/x": "",
    }
    found = read_device(InMemoryMachine(files=files), 0)
    assert (found.cores, found.connected, found.problem) == (2, None, None)


def test_count_where_there_are_no_folders() -> None:
    """Without folders the driver's count is taken, which it writes without an end of line."""
    assert read_device(InMemoryMachine(files={f"{DEVICE}/core_count": "4"}), 0).cores == 4


@pytest.mark.parametrize(
    ("text", "links"),
    [("12, 3, 4, 1\n", (1, 3, 4, 12)), ("1\n", (1,)), ("\n", None), ("", None), ("x, 1", None), ("-1", None)],
)
def test_connected_devices(text: str, links: tuple[int, ...] | None) -> None:
    """The driver's list; an empty one says nothing, since it looks the same where the driver could not find out."""
    assert read_device(InMemoryMachine(files={f"{DEVICE}/connected_devices": text}), 0).connected == links


@pytest.mark.parametrize(
    ("name", "instance", "family"),
    [
        ("Trainium2", "Inf2", "trn2"),
        ("", "Trn1", "trn1"),
        ("Trainium9", "Trn2", "trn2"),
        ("", "", None),
        ("Trainium9", "Trn9", None),
    ],
)
def test_name_of_the_generation(name: str, instance: str, family: str | None) -> None:
    """By the device's name, else by the instance's; an unknown one is kept as a name and has no generation."""
    folder = f"{DEVICE}/info/architecture"
    machine = InMemoryMachine(files={f"{folder}/device_name": name, f"{folder}/instance_type": instance})
    found = read_device(machine, 0)
    assert (None if found.generation is None else found.generation.family) == family
    if family is None:
        assert found.name == (name or None)


def test_device_that_sysfs_does_not_show() -> None:
    """A device without a folder is a problem in words, and nothing is known."""
    found = read_device(InMemoryMachine(directories=[SYSFS]), 0)
    assert found.problem == f"sysfs: FileNotFoundError: [Errno 2] No such file or directory: '{DEVICE}'"
    assert found.cores is None


def test_devices_of_the_driver() -> None:
    """Only numbered folders count."""
    names = ("neuron0", "neuron12", "neuron007", "neuron", "neuronx", "power", "neuron²")
    machine = InMemoryMachine(directories=[f"{SYSFS}/{name}" for name in names])
    assert list_devices(machine) == (0, 12)
    assert list_devices(InMemoryMachine()) == ()


def test_driver_version() -> None:
    """The module's version; garbage is none."""
    assert read_driver_version(InMemoryMachine(files={"/sys/module/neuron/version": "2.26.5.0\n"})) == "2.26.5.0"
    assert read_driver_version(InMemoryMachine(files={"/sys/module/neuron/version": "\x00\x01"})) is None
    assert read_driver_version(InMemoryMachine()) is None


GARBAGE = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"2", b"8\n", b"-1", b"1" * 5000, "²".encode(), b"2 cores", b"Trainium2", b"NDv3", b"\xff\xfe"]),
)


@given(files=st.fixed_dictionaries({}, optional={
    "core_count": GARBAGE, "connected_devices": GARBAGE,
    "info/architecture/device_name": GARBAGE, "info/architecture/instance_type": GARBAGE,
    "neuron_core0/stats/memory_usage/device_mem/total": GARBAGE,
}))  # fmt: skip
def test_garbage(files: dict[str, bytes]) -> None:
    """Whatever the files hold, an answer is unknown or in its bounds."""
    machine = InMemoryMachine(files={f"{DEVICE}/{name}": content for name, content in files.items()})
    found = read_device(machine, 0)
    assert found.cores is None or 1 <= found.cores <= 128
    assert found.connected is None or all(0 <= number < 10_000 for number in found.connected)
    assert found.name is None or found.name.isprintable()
    used = memory_in_use(machine, 0, 0)
    assert used is None or used >= 0
