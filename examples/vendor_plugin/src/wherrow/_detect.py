"""From device nodes to devices, or to the reasons why there are none; and the doctor's section."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hardpoint import DeviceCapability, EnvironmentFailure, Reason
from hardpoint.hookspecs import Detection, Device
from wherrow._nodes import VISIBLE, node, numbers, root, visible

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hardpoint import Machine
    from hardpoint.hookspecs import ReportSection

FEATURES: Final[Mapping[str, frozenset[str]]] = {"w1": frozenset({"fp32", "bf16", "paged_attention"})}
"""What each architecture can do. Of one that is not here nothing is certain but that it computes in float32."""


def detect(machine: Machine) -> Detection:
    """Ask the driver. A device that has a node and cannot be used is a reason, never an exception."""
    try:
        return _usable(machine)
    except EnvironmentFailure as error:
        message = f"{node(machine, 0)} is there, and the device cannot be used: {error.message}"
        return Detection.unusable(Reason(code=error.code, message=message, remedy=error.remedy))


def _usable(machine: Machine) -> Detection:
    known, shown = numbers(machine), visible(machine)
    answer = machine.probe("wherrow.devices", "wherrow._driver:read_devices", arguments=(root(machine), len(known)))
    by_number = {found["number"]: found for found in answer["devices"]}
    if lost := [number for number in shown if number not in by_number]:
        raise EnvironmentFailure(f"the driver does not know {node(machine, lost[0])}", code="no_device")
    masked = machine.variable(VISIBLE) is not None
    return Detection.usable(
        [_device(index, by_number[number], masked=masked, answer=answer) for index, number in enumerate(shown)]
    )


def _device(index: int, found: Mapping[str, Any], *, masked: bool, answer: Mapping[str, Any]) -> Device:  # Any: JSON
    number, arch = found["number"], found["arch"]
    return Device(
        index=index,
        name=found["name"],
        capability=DeviceCapability(runtime="wherrow", arch=arch, features=FEATURES.get(arch, frozenset({"fp32"}))),
        physical_id=number,
        visible_id=str(number) if masked else None,
        uuid=found["uuid"] or None,
        total_memory_bytes=found["memory_bytes"],
        properties={"driver": answer["version"]},
    )


def report(machine: Machine) -> tuple[ReportSection, ...]:
    """Where the driver was looked for, the mask, the devices, and what speaks against them."""
    from hardpoint.hookspecs import ReportSection

    lines = [("driver folder", root(machine) or "/"), ("mask", repr(machine.variable(VISIBLE)))]
    if numbers(machine):
        detection = detect(machine)
        lines.append(("outcome", str(detection.status)))
        lines += (
            (f"device {item.index}", f"{item.name}, {item.capability}, {item.uuid}") for item in detection.devices
        )
        lines += (("reason", f"{item.message} ({item.remedy})") for item in detection.reasons)
    return (ReportSection(title="Wherrow", lines=tuple(lines)),)
