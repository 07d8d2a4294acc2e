"""From the machine's facts to the one device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint import DeviceCapability
from hardpoint.hookspecs import Detection, Device
from hardpoint_cpu._cgroup import Limits, read_limits
from hardpoint_cpu._cpu_list import format_cpu_list
from hardpoint_cpu._processor import read_processor
from hardpoint_cpu._topology import read_numa_nodes, usable_cpus

if TYPE_CHECKING:
    from hardpoint import Machine


def detect(machine: Machine) -> Detection:
    """Always usable. What the machine does not tell is None.

    The device's properties: `family`, `vendor`, `cpus` (the affinity mask as the kernel writes lists), `cpu_quota`
    (CPUs' worth of time that cgroups allow), `usable_cpus` (the smaller of the two, rounded down, at least 1),
    `numa_nodes` (a list as well), `amx_refusal` (why AMX is left out though the silicon has it).
    """
    cpus = usable_cpus(machine)
    limits = read_limits(machine)
    processor = read_processor(machine, cpus)
    nodes = read_numa_nodes(machine, cpus)
    device = Device(
        index=0,
        name=processor.name,
        capability=DeviceCapability(runtime="cpu", arch=processor.arch, features=processor.features),
        total_memory_bytes=_memory(machine, limits),
        numa_node=nodes[0].id if len(nodes) == 1 else None,
        properties={
            "family": processor.family,
            "vendor": processor.vendor,
            "cpus": None if cpus is None else format_cpu_list(cpus),
            "cpu_quota": limits.cpus,
            "usable_cpus": _usable(machine, cpus, limits),
            "numa_nodes": format_cpu_list(node.id for node in nodes) or None,
            "amx_refusal": processor.amx_refusal,
        },
    )
    return Detection.usable([device], notes=processor.notes)


def _usable(machine: Machine, cpus: frozenset[int] | None, limits: Limits) -> int:
    count = len(cpus) if cpus is not None else (machine.cpu_count() or 1)
    return max(1, count if limits.whole_cpus is None else min(count, limits.whole_cpus))


def _memory(machine: Machine, limits: Limits) -> int | None:
    known = [size for size in (machine.total_memory_bytes(), limits.memory_bytes) if size]
    return min(known, default=None)
