"""The doctor's section about Neuron devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint._report_sections import variable_text
from hardpoint.hookspecs import Detection, ReportSection
from hardpoint_neuron._instance import read_instance_type
from hardpoint_neuron._mask import format_cores
from hardpoint_neuron._sysfs import read_driver_version
from hardpoint_neuron._tool import find_tool
from hardpoint_neuron._traces import NUM_CORES, PACKAGES, SIZE_NAMES, VISIBLE_CORES, compile_only, find_traces

if TYPE_CHECKING:
    from hardpoint import Machine
    from hardpoint.hookspecs import Device


def report(machine: Machine) -> tuple[ReportSection, ...]:
    """Nodes, driver, tool, packages, the variables, every core, and all reasons and notes."""
    traces = find_traces(machine)
    lines = [
        ("device nodes", f"/dev/neuron{{{format_cores(traces.nodes)}}}" if traces.nodes else "none"),
        ("driver", (read_driver_version(machine) or "loaded, of unknown version") if traces.driver else "not loaded"),
        ("instance type", read_instance_type(machine) or "unknown"),
        ("neuron-ls", machine.find_tool(find_tool(machine) or "neuron-ls") or "not installed"),
        *((name, version or "not installed") for name, version in machine.distribution_versions(PACKAGES).items()),
        *((name, variable_text(machine, name)) for name in (VISIBLE_CORES, NUM_CORES, *SIZE_NAMES)),
    ]
    detection: Detection | None = None
    if traces.nodes or traces.driver:
        from hardpoint_neuron._detect import detect

        detection = detect(machine, traces)
    else:
        detection = compile_only(machine)
    if detection is not None:
        lines.append(("outcome", str(detection.status)))
        lines += ((f"core {device.index}", _line(device)) for device in detection.devices)
        for label, items in (("reason", detection.reasons), ("note", detection.notes)):
            lines += ((label, f"{item.message} ({item.remedy})" if item.remedy else item.message) for item in items)
    return (ReportSection(title="Neuron", lines=tuple(lines)),)


def _line(device: Device) -> str:
    properties = device.properties
    chip = properties.get("neuron_device")
    place = "chosen by the runtime"
    if properties.get("physical_cores") is not None:
        place = f"physical cores {properties['physical_cores']} of device {chip}"
    memory = "unknown memory" if device.total_memory_bytes is None else f"{device.total_memory_bytes >> 20} MiB"
    core = f"NeuronCore-{properties['neuroncore']}" if properties.get("neuroncore") else "unknown capability"
    return ", ".join((device.name, core, place, memory, device.pci_bus_id or "no PCI address"))
