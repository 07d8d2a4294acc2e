"""The doctor's section about AMD devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint._report_sections import variable_text
from hardpoint._torch_build import read_torch_build
from hardpoint.hookspecs import ReportSection
from hardpoint_rocm import _mask
from hardpoint_rocm._detect import OVERRIDE, detect
from hardpoint_rocm._missing import MODULE, find_cards
from hardpoint_rocm._traces import find_traces, is_wsl

if TYPE_CHECKING:
    from hardpoint import Machine
    from hardpoint.hookspecs import Device


def report(machine: Machine) -> tuple[ReportSection, ...]:
    """What speaks for such hardware, driver and torch, the masks, the devices, and all reasons and notes."""
    traces = find_traces(machine)
    lines = [
        ("traces", ", ".join(traces) or "none"),
        ("driver", "amdgpu is loaded" if machine.exists(MODULE) else "amdgpu is not loaded"),
        # Also where there is no trace: then a card on the bus is what a driver is missing for.
        ("PCI", ", ".join(find_cards(machine)) or "no AMD device"),
        ("amdsmi", machine.distribution_version("amdsmi") or "not installed"),
        ("torch", str(read_torch_build(machine))),
        *((name, variable_text(machine, name)) for name in (*_mask.VARIABLES, OVERRIDE)),
    ]
    if is_wsl(machine):
        lines.append(("WSL", machine.kernel_release))
    if traces:
        detection = detect(machine, traces[0])
        lines.append(("outcome", str(detection.status)))
        lines += ((f"device {device.index}", _line(device)) for device in detection.devices)
        for label, items in (("reason", detection.reasons), ("note", detection.notes)):
            lines += ((label, f"{item.message} ({item.remedy})" if item.remedy else item.message) for item in items)
    return (ReportSection(title="ROCm", lines=tuple(lines)),)


def _line(device: Device) -> str:
    memory = "unknown memory" if device.total_memory_bytes is None else f"{device.total_memory_bytes >> 20} MiB"
    arch = "unknown architecture" if device.capability is None else device.capability.arch
    return ", ".join((device.name, arch, memory, device.uuid or "no id", device.pci_bus_id or "no PCI address"))
