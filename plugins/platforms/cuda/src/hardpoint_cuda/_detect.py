"""From traces of the hardware to devices in CUDA's order under the mask, or to the reasons why there are none."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from hardpoint import Reason, ReasonCode, log_once
from hardpoint._pci import numa_node
from hardpoint._torch_build import read_torch_build
from hardpoint.errors import NotRecorded
from hardpoint.hookspecs import Detection, Device
from hardpoint_cuda import _mask
from hardpoint_cuda._fabric import may_wait
from hardpoint_cuda._features import capability_of
from hardpoint_cuda._inventory import DRIVER, NVML, TORCH, Gpu, Instance, Inventory, read_inventory
from hardpoint_cuda._order import PROBE, TARGET, cuda_order
from hardpoint_cuda._torch_arch import without_kernels
from hardpoint_cuda._torch_build import judge
from hardpoint_cuda._traces import TEGRA, WSL
from hardpoint_cuda._untraced import hidden_from_container

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint import Machine

_log = logging.getLogger("hardpoint")

_NOT_ASKED = (ReasonCode.MISSING_LIBRARY, ReasonCode.BROKEN_IMPORT)
"""The driver's library could not be loaded. Where it could, torch would hear the same from it."""

_TORCH_SECONDS = 60.0
"""Importing torch from a cold disk alone takes longer than a probe usually may."""


class _Unit(NamedTuple):
    """What becomes one device: a whole one, or an instance of it."""

    gpu: Gpu
    instance: Instance | None = None


class _Found(NamedTuple):
    """An inventory, or the reasons why there is none; `is_masked`: whoever was asked has applied the mask already."""

    inventory: Inventory | None
    reasons: tuple[Reason, ...] = ()
    is_masked: bool = False


def detect(machine: Machine, traces: Sequence[str]) -> Detection:
    """Ask NVML, else the driver in a child process, else torch in one. No context is created in this process.

    A mask that leaves nothing whatever there is, is answered without asking anybody. A device's properties:
    `sm_count`, `integrated` (it shares the machine's memory), `mig_parent` (the whole device's id, where the device is
    an instance), `driver` (version), `cuda` (the newest version that the driver supports).
    """
    mask = _mask.parse_mask(machine.variable(_mask.VARIABLE))
    if mask.is_empty:
        return Detection.unusable(_masked(mask, mask.fault))
    inventory, failures, is_masked = _take_inventory(machine, mask, traces)
    if inventory is None:
        if _is_foreign_wsl(failures, traces):
            return Detection.absent("WSL without NVIDIA's driver", *failures)
        return Detection.unusable(*failures)
    if not inventory.gpus:
        nothing = hidden_from_container(machine) or Reason(
            code=ReasonCode.NO_DEVICE, message=f"{inventory.source} counts no device"
        )
        return Detection.unusable(*inventory.problems) if inventory.problems else Detection.absent(nothing, *failures)
    notes = [*inventory.problems, *failures]
    units, visible, problem = _visible(machine, mask, inventory, notes, is_masked=is_masked)
    devices = [
        _device(machine, index, unit, name, inventory)
        for index, (unit, name) in enumerate(zip(units, visible, strict=True))
    ]
    build = read_torch_build(machine)
    refusal, remark = judge(build, inventory.cuda_version)
    unfit, partly_unfit = without_kernels(machine, build, devices)
    refusals = (problem if not devices else None, _waiting(machine, inventory), refusal, unfit if devices else None)
    reasons = [reason for reason in refusals if reason is not None]
    if reasons:
        return Detection.unusable(*reasons, devices=devices)
    for partly in (problem, partly_unfit):
        if partly is not None:
            # Part of the mask, or of the devices, counts. Nobody else says anything about the rest.
            log_once(_log, logging.WARNING, "%s", partly.message)
            notes.append(partly)
    return Detection.usable(devices, notes=[*notes, *([] if remark is None else [remark])])


def _waiting(machine: Machine, inventory: Inventory) -> Reason | None:
    """Why the driver of devices behind NVSwitch cannot be initialised, though NVML lists them."""
    if inventory.source != NVML or not may_wait(machine, inventory.gpus):
        return None
    try:
        machine.probe(PROBE, TARGET, arguments=(False,), isolated=True)
    except NotRecorded:
        return None
    except (ImportError, OSError) as error:
        reason = _reason(error)
        return None if reason.code in _NOT_ASKED else reason
    return None


def _take_inventory(machine: Machine, mask: _mask.Mask, traces: Sequence[str]) -> _Found:
    try:
        inventory = read_inventory(machine.probe("cuda.nvml", "hardpoint_cuda._nvml:read_devices"), NVML)
    except (ImportError, OSError) as error:
        reason = _reason(error)
    else:
        # On a Jetson NVML may be there and know nothing of the integrated device.
        if inventory.gpus or inventory.problems or not set(traces) & set(TEGRA):
            return _Found(inventory)
        reason = Reason(code=ReasonCode.NO_DEVICE, message=f"{NVML} counts no device")
    # Without NVML nobody can look up a MIG instance, but the driver can apply the mask itself.
    keep_mask = mask.kind == _mask.INSTANCES
    key = f"{PROBE}.masked" if keep_mask else PROBE
    try:
        inventory = read_inventory(machine.probe(key, TARGET, arguments=(keep_mask,), isolated=True), DRIVER)
    except (ImportError, OSError) as error:
        failures = (reason, _reason(error))
        if failures[1].code in _NOT_ASKED:
            return _ask_torch(machine, failures, traces)
        return _Found(None, failures)
    if not inventory.gpus:
        return _Found(None, (reason, Reason(code=ReasonCode.NO_DEVICE, message=f"{DRIVER} counts no device")))
    if reason.code not in (ReasonCode.MISSING_LIBRARY, ReasonCode.MISSING_DEPENDENCY, ReasonCode.NO_DEVICE):
        log_once(_log, logging.WARNING, "%s; devices are taken from %s", reason.message, DRIVER)
    note = Reason(code=reason.code, message=f"no NVML: {reason.message}", remedy=reason.remedy)
    return _Found(inventory, (note,), keep_mask)


def _ask_torch(machine: Machine, failures: tuple[Reason, ...], traces: Sequence[str]) -> _Found:
    """The last resort: seconds, so only where a torch for CUDA stands beside traces of NVIDIA's own."""
    if _is_foreign_wsl(failures, traces) or read_torch_build(machine).runtime != "cuda":
        return _Found(None, failures)
    try:
        answer = machine.probe(
            "cuda.torch", "hardpoint_cuda._torch_probe:read_devices", isolated=True, timeout_seconds=_TORCH_SECONDS
        )
        inventory = read_inventory(answer, TORCH)
    except NotRecorded:
        return _Found(None, failures)
    except (ImportError, OSError) as error:
        return _Found(None, (*failures, _reason(error)))
    if not inventory.gpus:
        return _Found(None, (*failures, Reason(code=ReasonCode.NO_DEVICE, message=f"{TORCH} counts no device")))
    told = "; ".join(reason.message for reason in failures)
    log_once(_log, logging.WARNING, "%s; devices are taken from %s", told, TORCH)
    return _Found(inventory, failures, is_masked=True)


def _is_foreign_wsl(failures: Sequence[Reason], traces: Sequence[str]) -> bool:
    """Whether all there is, is WSL's door to the host's graphics card, which may be anybody's."""
    return set(traces) == {WSL} and all(reason.code is ReasonCode.MISSING_LIBRARY for reason in failures)


def _visible(
    machine: Machine, mask: _mask.Mask, inventory: Inventory, notes: list[Reason], *, is_masked: bool
) -> tuple[list[_Unit], Sequence[str | None], Reason | None]:
    """The devices under the mask, what it calls them, and what was wrong with it."""
    gpus = inventory.gpus
    if is_masked:
        units = [_Unit(gpu) for gpu in gpus]
        return units, (*mask.entries, *(None for _ in units))[: len(units)], None
    if mask.kind == _mask.INSTANCES:
        parts = [_Unit(gpu, instance) for gpu in gpus for instance in gpu.instances]
        names = [(part.uuid, part.alias) for _, part in parts if part is not None]
        choice = _mask.choose_instance(mask, names)
    else:
        # Ids mean the same in every order, and the driver's own list is in its order.
        if inventory.source == NVML and mask.kind != _mask.DEVICES:
            order = cuda_order(machine, gpus)
            gpus = order.gpus
            if order.warning is not None:
                log_once(_log, logging.WARNING, "%s", order.warning)
                notes.append(Reason(code=ReasonCode.OTHER, message=order.warning))
            if order.note is not None:
                notes.append(order.note)
        parts = [_Unit(gpu) for gpu in gpus]
        choice = _mask.choose(mask, [gpu.uuid for gpu in gpus])
    units = [parts[place] for place in choice.places]
    visible: Sequence[str | None] = choice.visible_ids
    fault = choice.fault
    if units and mask.kind != _mask.INSTANCES:
        units, visible = _divide(units, visible, notes)
        if not units:
            message = "the device is divided (MIG is on) and has no instance"
            return [], (), Reason(code=ReasonCode.NO_DEVICE, message=message, remedy="nvidia-smi mig -cgi … -C")
    return units, visible, None if fault is None else _masked(mask, fault, leaves_some=bool(units))


def _divide(
    units: list[_Unit], visible: Sequence[str | None], notes: list[Reason]
) -> tuple[list[_Unit], Sequence[str | None]]:
    """What CUDA offers of devices some of which are divided: one instance alone, or the undivided ones.

    NVIDIA's MIG user guide states both limits, and that a later driver may lift them.
    """
    if not any(unit.gpu.mig_enabled for unit in units):
        return units, visible
    for unit, name in zip(units, visible, strict=True):
        if unit.gpu.mig_enabled and unit.gpu.instances:
            count = sum(len(other.gpu.instances) for other in units)
            if count > 1 or len(units) > 1:
                message = "MIG is on: a process sees one instance, and no undivided device beside it"
                notes.append(Reason(code=ReasonCode.OTHER, message=message, remedy=f"name one in {_mask.VARIABLE}"))
            return [_Unit(unit.gpu, unit.gpu.instances[0])], (name,)
    whole = [(unit, name) for unit, name in zip(units, visible, strict=True) if not unit.gpu.mig_enabled]
    return [unit for unit, _ in whole], [name for _, name in whole]


def _device(machine: Machine, index: int, unit: _Unit, visible_id: str | None, inventory: Inventory) -> Device:
    gpu, instance = unit
    memory = gpu.memory_bytes if instance is None else instance.memory_bytes
    if memory is None and gpu.unified_memory:
        memory = machine.total_memory_bytes()
    return Device(
        index=index,
        name=gpu.name if instance is None else f"{gpu.name} (MIG instance)",
        capability=capability_of(gpu.version),
        physical_id=gpu.number,
        visible_id=visible_id,
        uuid=gpu.uuid if instance is None else instance.uuid or instance.alias,
        pci_bus_id=gpu.pci_bus_id,
        total_memory_bytes=memory,
        numa_node=numa_node(machine, gpu.pci_bus_id),
        properties={
            "sm_count": gpu.sm_count if instance is None else instance.sm_count,
            "integrated": gpu.unified_memory,
            "mig_parent": None if instance is None else gpu.uuid,
            "driver": inventory.driver_version,
            "cuda": None if inventory.cuda_version is None else ".".join(map(str, inventory.cuda_version)),
        },
    )


def _masked(mask: _mask.Mask, fault: str | None, *, leaves_some: bool = False) -> Reason:
    what = "is cut short" if leaves_some else "leaves no device"
    return Reason(
        code=ReasonCode.MASKED,
        message=f"{_mask.VARIABLE}={mask.text!r:.200} {what}: {fault or 'empty'}",
        requested=None if mask.text is None else mask.text[:200],
        accepted="numbers, ids of devices (GPU-…) or of MIG instances (MIG-…), separated by commas, each once",
        remedy=None if mask.is_wish else f"unset {_mask.VARIABLE}, or give it devices that exist",
    )


def _reason(error: ImportError | OSError) -> Reason:
    code = getattr(error, "code", None)
    if code is None:
        code = ReasonCode.MISSING_DEPENDENCY if isinstance(error, ImportError) else ReasonCode.OTHER
    if isinstance(error, PermissionError):
        code = ReasonCode.PERMISSION
    remedy = getattr(error, "remedy", None)
    return Reason(code=code, message=str(error) or type(error).__name__, remedy=remedy)
