"""The doctor's section about the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint.hookspecs import ReportSection
from hardpoint_cpu._detect import detect

if TYPE_CHECKING:
    from hardpoint import Machine


def report(machine: Machine) -> tuple[ReportSection, ...]:
    """What the doctor shows of the CPU."""
    detection = detect(machine)
    device = detection.devices[0]
    shown = device.properties
    capability = device.capability
    lines = [
        ("processor", f"{device.name} ({shown['vendor']})"),
        ("architecture", "unknown" if capability is None else capability.arch),
        ("features", "unknown" if capability is None else " ".join(sorted(capability.features)) or "none known"),
        ("CPUs of the affinity mask", str(shown["cpus"] or "the system does not say")),
        ("CPU quota", "none" if shown["cpu_quota"] is None else f"{shown['cpu_quota']:.2f} CPUs"),
        ("usable CPUs", str(shown["usable_cpus"])),
        ("usable NUMA nodes", str(shown["numa_nodes"] or "unknown")),
        ("usable memory", "unknown" if device.total_memory_bytes is None else f"{device.total_memory_bytes} bytes"),
        *(("note", note.message) for note in detection.notes),
    ]
    return (ReportSection(title="CPU", lines=tuple(lines)),)
