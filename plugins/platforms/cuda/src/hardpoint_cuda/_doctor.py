"""The doctor's section about NVIDIA devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint._report_sections import variable_text
from hardpoint._torch_build import read_torch_build
from hardpoint.hookspecs import ReportSection
from hardpoint_cuda import _mask, _order
from hardpoint_cuda._detect import detect
from hardpoint_cuda._traces import CONTAINER, find_traces, is_wsl, may_be_told
from hardpoint_cuda._untraced import without_traces

if TYPE_CHECKING:
    from hardpoint import Machine
    from hardpoint.hookspecs import Device


def report(machine: Machine) -> tuple[ReportSection, ...]:
    """What speaks for such hardware, what torch is built for, the mask, the devices, and all reasons and notes."""
    traces = find_traces(machine)
    lines = [
        ("traces", ", ".join(traces) or "none"),
        ("torch", str(read_torch_build(machine))),
        *((name, variable_text(machine, name)) for name in (_mask.VARIABLE, _order.VARIABLE, CONTAINER)),
    ]
    if is_wsl(machine):
        lines.append(("WSL", machine.kernel_release))
    if traces or may_be_told(machine):
        detection = detect(machine, traces) if traces else without_traces(machine)
        lines.append(("outcome", str(detection.status)))
        lines += ((f"device {device.index}", _line(device)) for device in detection.devices)
        for label, items in (("reason", detection.reasons), ("note", detection.notes)):
            lines += ((label, f"{item.message} ({item.remedy})" if item.remedy else item.message) for item in items)
    return (ReportSection(title="CUDA", lines=tuple(lines)),)


def _line(device: Device) -> str:
    memory = "unknown memory" if device.total_memory_bytes is None else f"{device.total_memory_bytes >> 20} MiB"
    capability = "unknown capability" if device.capability is None else f"compute capability {device.capability}"
    facts = (device.name, capability, memory, device.uuid or "no UUID", device.pci_bus_id or "no PCI address")
    return ", ".join(facts)
