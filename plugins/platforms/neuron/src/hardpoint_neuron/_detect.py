"""From traces of the hardware to logical cores under the masks, or to the reasons why there are none."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hardpoint import Reason, ReasonCode, log_once
from hardpoint.hookspecs import Detection, Device
from hardpoint_neuron._cores import as_any_device, as_device, logical_cores
from hardpoint_neuron._inventory import take_inventory
from hardpoint_neuron._mask import format_cores
from hardpoint_neuron._request import masked, read_request
from hardpoint_neuron._sysfs import list_devices
from hardpoint_neuron._torch_front import judge
from hardpoint_neuron._traces import NUM_CORES, SIZE_NAMES, TORCH, VISIBLE_CORES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint import Machine
    from hardpoint_neuron._cores import Core
    from hardpoint_neuron._inventory import Inventory
    from hardpoint_neuron._request import Request
    from hardpoint_neuron._traces import Traces

_log = logging.getLogger("hardpoint")


def detect(machine: Machine, traces: Traces) -> Detection:
    """Read the masks, then the devices. Opens no device and does not touch the runtime.

    A mask that the runtime cannot read is answered without asking anybody. A device's properties: `neuron_device` (the
    chip's number), `physical_cores` (on it), `logical_core_size`, `neuroncore` (``v3``), `connected_devices` (chips
    with a direct link; None: unknown), `cpus` (near the chip), `instance_type`, `driver` (version). Of a core that the
    runtime will choose only what all have in common is known.
    """
    if not traces.nodes:
        return _without_nodes(machine)
    request = read_request(machine)
    if request.faults:
        return Detection.unusable(*request.faults)
    inventory = take_inventory(machine, traces.nodes)
    blind = [device.node for device in inventory.devices if not device.cores]
    if blind:
        message = f"how many cores {_listed(blind)} has, neither sysfs nor neuron-ls says"
        return Detection.unusable(Reason(code=ReasonCode.DRIVER, message=message), *inventory.problems)
    cores = logical_cores(inventory.devices, request.logical_size)
    chosen, fault = _choose(request, cores)
    if fault is not None:
        return Detection.unusable(fault, *inventory.problems)
    devices = _as_devices(request, cores, chosen, inventory)
    installed = machine.distribution_versions(("torch", TORCH))
    refusal, remark = judge(machine, installed, _names_by_core(chosen))
    closed = _closed(machine, cores, chosen)
    reasons = [reason for reason in (closed, refusal) if reason is not None]
    if reasons:
        return Detection.unusable(*reasons, *inventory.problems, devices=devices)
    if inventory.loss is not None:
        log_once(_log, logging.WARNING, "%s; what it would have told is unknown", inventory.loss.message)
    notes = [*inventory.problems, *_size_notes(request, inventory), *([] if remark is None else [remark])]
    return Detection.usable(devices, notes=notes)


def _without_nodes(machine: Machine) -> Detection:
    present = list_devices(machine)
    if not present:
        return Detection.absent("the Neuron driver is loaded and has no device")
    message = f"the driver has {len(present)} Neuron devices, and none of their nodes (/dev/neuron0 …) is here"
    remedy = "in a container: give it the devices (docker run --device=/dev/neuron0), or the Neuron device plugin's"
    return Detection.unusable(Reason(code=ReasonCode.PERMISSION, message=message, remedy=remedy))


def _choose(request: Request, cores: Sequence[Core]) -> tuple[Sequence[Core], Reason | None]:
    """The cores that may become this process's: those named, or all."""
    count = len(cores)
    if request.cores is not None and request.visible is not None:
        fault = request.cores.fault_beyond(count)
        if fault is not None:
            return (), masked(VISIBLE_CORES, request.visible, fault)
        return [cores[number] for number in request.cores.numbers()], None
    if request.how_many is not None and request.wanted is not None and request.how_many > count:
        return (), masked(NUM_CORES, request.wanted, f"there are {count}")
    if not cores:
        message = "the devices have fewer cores than one logical core takes"
        return (), Reason(code=ReasonCode.NO_DEVICE, message=message, remedy=f"unset {' and '.join(SIZE_NAMES)}")
    return cores, None


def _as_devices(request: Request, cores: Sequence[Core], chosen: Sequence[Core], inventory: Inventory) -> list[Device]:
    if request.how_many is not None and request.how_many < len(cores):
        return [as_any_device(index, cores, inventory) for index in range(request.how_many)]
    is_named = request.cores is not None
    return [
        as_device(index, core, str(core.number) if is_named else None, inventory) for index, core in enumerate(chosen)
    ]


def _names_by_core(cores: Sequence[Core]) -> dict[int, str]:
    names: dict[int, str] = {}
    for core in cores:
        if core.device.generation is not None:
            names.setdefault(core.device.generation.core_version, core.device.generation.name)
    return names


def _closed(machine: Machine, cores: Sequence[Core], chosen: Sequence[Core]) -> Reason | None:
    """Device nodes that may not be opened: the runtime opens every one that it needs, or does not start."""
    needed = dict.fromkeys(core.device.node for core in chosen)
    closed = [node for node in needed if not machine.can_read_and_write(node)]
    if not closed:
        return None
    remedy = "let this user read and write them"
    others = tuple(core.number for core in cores if core.device.node not in closed)
    if others and len(closed) < len(needed):
        remedy += f", or leave them out: {VISIBLE_CORES}={format_cores(others)}"
    return Reason(code=ReasonCode.PERMISSION, message=f"no permission to open {_listed(closed)}", remedy=remedy)


def _size_notes(request: Request, inventory: Inventory) -> list[Reason]:
    for note in request.notes:
        if note.remedy is not None:
            log_once(_log, logging.WARNING, "%s", note.message)
    notes = list(request.notes)
    fixed = [item.name for item in inventory.devices if item.generation and item.generation.logical_size == 1]
    if request.logical_size not in (None, 1) and fixed:
        message = f"cores of {fixed[0]} cannot be joined: a logical core of {request.logical_size} is ignored"
        notes.append(Reason(code=ReasonCode.OTHER, message=message))
    return notes


def _listed(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
