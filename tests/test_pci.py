from __future__ import annotations

import pytest

from hardpoint import InMemoryMachine
from hardpoint._pci import nearby_cpus, normalise_pci, numa_node, read_attribute


def machine(**files: str) -> InMemoryMachine:
    """A machine with these attributes of one device; CPUs 0 to 3 are this process's."""
    return InMemoryMachine(
        files={f"/sys/bus/pci/devices/0000:01:00.0/{name}": text for name, text in files.items()}, affinity=range(4)
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:65:00.0", "0000:65:00.0"),
        ("0000:65:00.0", "0000:65:00.0"),
        ("00010000:0A:1F.0", "10000:0a:1f.0"),
        ("65:00.0", "0000:65:00.0"),
        ("0000:65:00", "0000:65:00.0"),
        ("", None),
        (None, None),
        ("[N/A]", None),
        ("0000:65", None),
    ],
)
def test_addresses(text: str | None, expected: str | None) -> None:
    """PCI addresses are written as sysfs writes them."""
    assert normalise_pci(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("1\n", 1), ("-1\n", None), ("", None), ("²", None), ("x", None)])
def test_numa_node(text: str, expected: int | None) -> None:
    """The kernel's number, or unknown where the firmware does not say or the text is none."""
    assert numa_node(machine(numa_node=text), "0000:01:00.0") == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("0-1,3,9\n", {0, 1, 3}), ("8-9", None), ("x,2-", None), ("-,2", {2}), ("", None)]
)
def test_nearby_cpus(text: str, expected: set[int] | None) -> None:
    """The nearest CPUs are the kernel's, without those that this process may not use and without what is no number."""
    near = nearby_cpus(machine(local_cpulist=text), "0000:01:00.0")
    assert (None if near is None else set(near)) == expected


def test_unknown_device() -> None:
    """A device without an address, or without such a file, has unknown answers."""
    assert read_attribute(machine(), None, "numa_node") is None
    assert (numa_node(machine(), None), nearby_cpus(machine(), "0000:01:00.0")) == (None, None)
    everywhere = InMemoryMachine(files={"/sys/bus/pci/devices/0000:01:00.0/local_cpulist": "0-1"})
    assert nearby_cpus(everywhere, "0000:01:00.0") == frozenset((0, 1))
