"""What the kernel says of a PCI device."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hardpoint._machine import Machine

DEVICES: Final = "/sys/bus/pci/devices"

_ADDRESS: Final = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?\Z", re.ASCII)


def normalise_pci(text: str | None) -> str | None:
    """``00000000:65:00.0`` as sysfs writes it, ``0000:65:00.0``; None for what is no PCI address."""
    found = _ADDRESS.match(text.strip().lower()) if text else None
    if found is None:
        return None
    domain, bus, device, function = (int(part or "0", 16) for part in found.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def read_attribute(machine: Machine, address: str | None, name: str, limit: int = 4096) -> str | None:
    """The text of one of the device's files in sysfs; None where it is not there, cannot be read or is empty."""
    if address is None:
        return None
    try:
        return machine.read_text(f"{DEVICES}/{address}/{name}", limit=limit).strip() or None
    except OSError:
        return None


def numa_node(machine: Machine, address: str | None) -> int | None:
    """The NUMA node nearest to the device; None: unknown."""
    text = read_attribute(machine, address, "numa_node", limit=64)
    # -1 where the firmware does not say.
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def nearby_cpus(machine: Machine, address: str | None) -> frozenset[int] | None:
    """The CPUs nearest to the device that this process may use; None: the kernel does not say, or none is."""
    text = read_attribute(machine, address, "local_cpulist")
    if text is None:
        return None
    near = _parse_cpu_list(text)
    usable = machine.cpu_affinity()
    return (near if usable is None else near & usable) or None


def _parse_cpu_list(text: str) -> frozenset[int]:
    """``0-3,8`` as the kernel writes it. What is malformed counts for nothing."""
    cpus: set[int] = set()
    for part in text.split(","):
        found = re.match(r"(\d{1,5})(?:-(\d{1,5}))?\Z", part.strip(), re.ASCII)
        if found:
            cpus.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return frozenset(cpus)
