"""Which CPUs this process may use, and where they are: memory nodes and physical cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hardpoint_cpu._cpu_list import parse_cpu_list

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from hardpoint import Machine

_NODES = "/sys/devices/system/node"


class NumaNode(NamedTuple):
    """A memory node with at least one CPU that this process may use; `cpus` are those."""

    id: int
    cpus: frozenset[int]
    total_memory_bytes: int | None = None


def usable_cpus(machine: Machine) -> frozenset[int] | None:
    """The CPUs of the affinity mask; None where the system does not say (macOS, Windows)."""
    return machine.cpu_affinity() or None


def read_numa_nodes(machine: Machine, cpus: AbstractSet[int] | None) -> tuple[NumaNode, ...]:
    """The nodes with usable CPUs, by id; none where the system does not say.

    Nodes of memory alone (CXL, HBM in flat mode) have no CPU to bind a rank to, and nodes outside the mask none that
    may be used: both are left out.
    """
    nodes = []
    for name in _names(machine):
        number = name.removeprefix("node")
        if not (name.startswith("node") and number.isascii() and number.isdigit() and len(number) < 10):
            continue
        listed = parse_cpu_list(_read(machine, f"{_NODES}/{name}/cpulist"))
        usable = listed if cpus is None else listed.intersection(cpus)
        if usable:
            memory = _total_memory(_read(machine, f"{_NODES}/{name}/meminfo"))
            nodes.append(NumaNode(id=int(number), cpus=usable, total_memory_bytes=memory))
    return tuple(sorted(nodes, key=lambda node: node.id))


def _names(machine: Machine) -> tuple[str, ...]:
    try:
        return machine.list_directory(_NODES)
    except OSError:
        return ()


def _read(machine: Machine, path: str) -> str:
    try:
        return machine.read_text(path)
    except OSError:
        return ""


def _total_memory(text: str) -> int | None:
    # A line reads "Node 0 MemTotal:       131072000 kB".
    for line in text.splitlines():
        words = line.split()
        if "MemTotal:" in words[:-1]:
            number = words[words.index("MemTotal:") + 1]
            return int(number) * 1024 or None if number.isascii() and number.isdigit() and len(number) < 20 else None
    return None


def read_cores(machine: Machine, cpus: AbstractSet[int]) -> tuple[tuple[int, ...], ...]:
    """The usable CPUs, grouped by physical core. A CPU of which nothing is known is a core of its own."""
    cores = []
    left = set(cpus)
    for cpu in sorted(cpus):
        if cpu in left:
            folder = f"/sys/devices/system/cpu/cpu{cpu}/topology"
            # The second name is that of kernels before 5.7.
            text = _read(machine, f"{folder}/core_cpus_list") or _read(machine, f"{folder}/thread_siblings_list")
            core = (parse_cpu_list(text) & left) | {cpu}
            left -= core
            cores.append(tuple(sorted(core)))
    return tuple(cores)
