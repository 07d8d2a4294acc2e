"""The kernel driver's topology: what KFD tells in sysfs of every device, with no library at all.

The files are those of the kernel's `kfd_topology.c`: a folder for each node, CPUs among them, with ``properties``
(lines of a name and a decimal number), ``mem_banks`` and ``io_links``. The runtime lists devices in the order of the
nodes, and leaves out a node that it may not read or whose render node is not there (libhsakmt's `topology.c`), as a
container's limits make it; so do we.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from hardpoint import Reason, ReasonCode
from hardpoint_rocm._arch import arch_of_version
from hardpoint_rocm._inventory import Gpu, format_uuid

if TYPE_CHECKING:
    from hardpoint import Machine

NODES: Final = "/sys/class/kfd/kfd/topology/nodes"

_LINE: Final = re.compile(r"([a-z0-9_]{1,64})[ \t]+(\d{1,20})\Z", re.ASCII)
_LIMIT: Final = 1 << 16
# Of the kernel's kfd_crat.h: memory on the device, that the host sees or does not.
_OWN_MEMORY: Final = (1, 2)
_GROUPS: Final = "add this user to the groups that own it (render, video), or give it to the container"


class Topology(NamedTuple):
    """The devices in the runtime's order, and why others are none. `nodes`: how many nodes there are, CPUs too."""

    gpus: tuple[Gpu, ...] = ()
    problems: tuple[Reason, ...] = ()
    nodes: int = 0


def read_topology(machine: Machine) -> Topology:
    """Every device that this process may use. What a file lacks, or is odd, is None."""
    try:
        names = machine.list_directory(NODES)
    except FileNotFoundError:
        return Topology()
    except OSError as error:
        code = ReasonCode.PERMISSION if isinstance(error, PermissionError) else ReasonCode.DRIVER
        return Topology(problems=(Reason(code=code, message=f"the driver's topology cannot be read: {error}"),))
    numbers = sorted(int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 7)
    gpus: list[Gpu] = []
    problems: list[Reason] = []
    shown = 0
    for number in numbers:
        found = _read_node(machine, number, len(gpus))
        if isinstance(found, Reason):
            problems.append(found)
            continue
        if found is not None:
            gpus.append(found._replace(hsa_node=shown))
        shown += 1
    return Topology(tuple(gpus), tuple(problems), len(numbers))


def read_properties(machine: Machine, path: str) -> dict[str, int]:
    """The lines of such a file; those that are none are left out. Errors: `OSError`."""
    lines = machine.read_text(path, limit=_LIMIT).splitlines()
    return {found[1]: int(found[2]) for found in map(_LINE.match, map(str.strip, lines)) if found}


def _read_node(machine: Machine, number: int, place: int) -> Gpu | Reason | None:
    """A device, why it is none for this process, or None for a CPU."""
    folder = f"{NODES}/{number}"
    try:
        values = read_properties(machine, f"{folder}/properties")
    except OSError as error:
        # A device that this container was not given: the kernel says EPERM.
        code = ReasonCode.PERMISSION if isinstance(error, PermissionError) else ReasonCode.DRIVER
        message = f"node {number} of the driver's topology cannot be read: {error}"
        return Reason(code=code, message=message, remedy="give the device to the container")
    if not values.get("simd_count") and not values.get("gfx_target_version"):
        return None
    minor = values.get("drm_render_minor")
    if minor:
        node = f"/dev/dri/renderD{minor}"
        if not machine.exists(node):
            message = f"the device of node {number} has no {node} here"
            return Reason(code=ReasonCode.NO_DEVICE, message=message, remedy=f"give {node} to the container")
        if not machine.can_read_and_write(node):
            return Reason(code=ReasonCode.PERMISSION, message=f"{node} may not be opened", remedy=_GROUPS)
    location = values.get("location_id", 0)
    simds, per_unit = values.get("simd_count"), values.get("simd_per_cu")
    return Gpu(
        number=place,
        arch=arch_of_version(values.get("gfx_target_version")),
        uuid=format_uuid(values.get("unique_id")),
        pci_bus_id=_address(values.get("domain", 0), location) if "location_id" in values else None,
        # Of a card that is divided each part has its number in the four highest bits.
        partition=location >> 28 & 0xF,
        node=number,
        device_id=values.get("device_id") or None,
        memory_bytes=_memory(machine, folder) or values.get("local_mem_size") or None,
        compute_units=simds // per_unit if simds and per_unit else None,
        hive=values.get("hive_id") or None,
        is_integrated=bool(values.get("cpu_cores_count")),
    )


def _address(domain: int, location: int) -> str:
    """The kernel's 16 bits: 8 of the bus, 5 of the device, 3 of the function."""
    return f"{domain & 0xFFFFFFFF:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def _memory(machine: Machine, folder: str) -> int:
    """Bytes of memory on the device."""
    total = 0
    try:
        for bank in machine.list_directory(f"{folder}/mem_banks"):
            values = read_properties(machine, f"{folder}/mem_banks/{bank}/properties")
            if values.get("heap_type") in _OWN_MEMORY:
                total += values.get("size_in_bytes", 0)
    except OSError:
        return 0
    return total


def check_node(machine: Machine, path: str) -> Reason | None:
    """Why this process cannot open the driver's own node, if so."""
    if not machine.exists(path):
        message = f"the driver is loaded, and there is no {path} here"
        return Reason(code=ReasonCode.NO_DEVICE, message=message, remedy=f"give {path} and /dev/dri to the container")
    if not machine.can_read_and_write(path):
        return Reason(code=ReasonCode.PERMISSION, message=f"{path} may not be opened", remedy=_GROUPS)
    return None
