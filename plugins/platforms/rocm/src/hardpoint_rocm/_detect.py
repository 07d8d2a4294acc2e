"""From traces of the hardware to devices in HIP's order under the masks, or to the reasons why there are none."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from hardpoint import Reason, ReasonCode, log_once
from hardpoint._device_mask import parse_mask
from hardpoint._pci import numa_node, read_attribute
from hardpoint._torch_build import read_torch_build
from hardpoint.errors import NotRecorded
from hardpoint.hookspecs import Detection, Device
from hardpoint_rocm import _mask, _rocminfo
from hardpoint_rocm._arch import Arch, arch_of_override, capability_of, is_override_valid
from hardpoint_rocm._inventory import AMDSMI, Gpu, Inventory, in_hip_order, merge, read_inventory
from hardpoint_rocm._missing import explain_absence
from hardpoint_rocm._names import with_names
from hardpoint_rocm._topology import check_node, read_topology
from hardpoint_rocm._torch_build import judge
from hardpoint_rocm._traces import NODE, WSL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint import Machine

_log = logging.getLogger("hardpoint")

PROBE = "rocm.amdsmi"
TARGET = "hardpoint_rocm._amdsmi:read_devices"
OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
_VERSION = "/sys/module/amdgpu/version"


class _Found(NamedTuple):
    """Devices in the runtime's order. `refusals` make all unusable; `is_masked`: its own mask is applied already."""

    gpus: tuple[Gpu, ...]
    refusals: tuple[Reason, ...] = ()
    notes: tuple[Reason, ...] = ()
    driver: str | None = None
    is_masked: bool = False


def detect(machine: Machine, trace: str) -> Detection:
    """Read the kernel's topology and ask amdsmi, where it is installed. Neither creates a context.

    Masks that leave nothing whatever there is, are answered without asking anybody. A device's properties: `driver`
    (version), `hardware_arch` (differs from the capability's where a variable overrides it), `target_features`
    (``sramecc+`` …), `family`, `compute_units`, `integrated`, `partition` and the modes `compute_partition` and
    `memory_partition` of a card that can be divided, `kfd_node`, `xgmi_hive` (the same number: connected by XGMI),
    `amdsmi_index`, `amdsmi_uuid`.
    """
    values = {name: machine.variable(name) for name in _mask.VARIABLES}
    nothing = _mask.empty_choice(values)
    if nothing is not None:
        return Detection.unusable(_masked(nothing, values))
    found = _find_in_wsl(machine) if trace == WSL else _find(machine)
    if isinstance(found, Detection):
        return found
    choice = _mask.choose(values, [gpu.uuid for gpu in found.gpus], is_rocr_applied=found.is_masked)
    picked = with_names(machine, [found.gpus[place] for place in choice.places])
    # Its own number is unique in the world, and here it only matters which cards have the same.
    hives = list(dict.fromkeys(gpu.hive for gpu in found.gpus if gpu.hive is not None))
    overrides = [_override(machine, gpu) for gpu in found.gpus]
    devices = [
        _device(machine, index, gpu, name, found.driver, hives, arch_of_override(overrides[place][1]) or gpu.arch)
        for index, (gpu, name, place) in enumerate(zip(picked, choice.names, choice.places, strict=True))
    ]
    refusal, remark = judge(read_torch_build(machine), [gpu.arch for gpu in picked or found.gpus])
    masked = None if choice.refusal is None else _masked(choice, values)
    refusals = (*found.refusals, *_bad_overrides(overrides))
    reasons = [*refusals, *(reason for reason in (masked, refusal) if reason is not None)]
    if reasons:
        return Detection.unusable(*reasons, devices=devices)
    notes = [*found.notes]
    for warning in choice.warnings:
        # Neither HIP nor torch says anything about it, and so somebody should.
        log_once(_log, logging.WARNING, "%s", warning)
        notes.append(Reason(code=ReasonCode.MASKED, message=warning))
    return Detection.usable(devices, notes=[*notes, *([] if remark is None else [remark])])


def _find(machine: Machine) -> _Found | Detection:
    topology = read_topology(machine)
    inventory, failures = _ask_amdsmi(machine)
    theirs = () if inventory is None else inventory.gpus
    gpus = merge(topology.gpus, theirs) if topology.gpus else in_hip_order(theirs)
    problems = (*topology.problems, *(() if inventory is None else inventory.problems))
    closed = check_node(machine, NODE)
    if not gpus:
        hidden = (*(() if closed is None else (closed,)), *problems)
        return explain_absence(machine, hidden if problems else (), failures)
    driver = None if inventory is None else inventory.driver_version
    return _Found(
        gpus,
        () if closed is None else (closed,),
        (*problems, *(_without(reason) for reason in failures)),
        driver or _read_driver(machine),
    )


def _ask_amdsmi(machine: Machine) -> tuple[Inventory | None, tuple[Reason, ...]]:
    """What it says, or why it does not; neither where it is not installed."""
    if machine.distribution_version(AMDSMI) is None:
        return None, ()
    try:
        return read_inventory(machine.probe(PROBE, TARGET)), ()
    except NotRecorded as error:
        # A simulated machine, with the packages of this one.
        return None, (reason_of(error),)
    except (ImportError, OSError) as error:
        reason = reason_of(error)
    if reason.code is not ReasonCode.MISSING_LIBRARY:
        log_once(_log, logging.WARNING, "%s; devices are taken from the kernel's topology", reason.message)
    return None, (reason,)


def _without(reason: Reason) -> Reason:
    return Reason(code=reason.code, message=f"no amdsmi: {reason.message}", remedy=reason.remedy)


def _find_in_wsl(machine: Machine) -> _Found | Detection:
    tool = _rocminfo.find_tool(machine)
    if tool is None:
        # WSL has the door to the host's graphics card whatever that is.
        return Detection.absent("WSL without ROCm: there is no rocminfo")
    try:
        answer = _rocminfo.ask_tool(machine, tool)
    except OSError as error:
        answer = reason_of(error)
    if isinstance(answer, Reason):
        return Detection.unusable(answer)
    if answer:
        return _Found(answer, is_masked=True)
    rocr = machine.variable(_mask.ROCR)
    if rocr is not None:
        choice = _mask.Choice((), (), f"{_mask.ROCR}={rocr!r:.200} leaves no device", is_wish=parse_mask(rocr).is_wish)
        return Detection.unusable(_masked(choice, {_mask.ROCR: rocr}))
    return Detection.absent(Reason(code=ReasonCode.NO_DEVICE, message=f"{tool} lists no device of AMD's"))


def _read_driver(machine: Machine) -> str | None:
    """The version of the vendor's driver; the kernel's own has none."""
    try:
        return machine.read_text(_VERSION, limit=256).strip() or None
    except OSError:
        return None


def _device(
    machine: Machine,
    index: int,
    gpu: Gpu,
    visible_id: str | None,
    driver: str | None,
    hives: Sequence[int],
    arch: Arch | None,
) -> Device:
    memory = gpu.memory_bytes
    if memory is None and gpu.is_integrated:
        memory = machine.total_memory_bytes()
    can_be_divided = gpu.arch is not None and gpu.arch.matches("gfx94 gfx95")
    compute, shared = gpu.compute_partition, gpu.memory_partition
    if can_be_divided:
        compute = compute or read_attribute(machine, gpu.pci_bus_id, "current_compute_partition", limit=64)
        shared = shared or read_attribute(machine, gpu.pci_bus_id, "current_memory_partition", limit=64)
    return Device(
        index=index,
        name=gpu.name or "AMD device",
        capability=capability_of(arch),
        physical_id=gpu.number,
        visible_id=visible_id,
        uuid=gpu.uuid,
        pci_bus_id=gpu.pci_bus_id,
        total_memory_bytes=memory,
        numa_node=numa_node(machine, gpu.pci_bus_id),
        properties={
            "driver": driver,
            "hardware_arch": None if gpu.arch is None else gpu.arch.name,
            "target_features": None if gpu.arch is None else ":".join(sorted(gpu.arch.options)) or None,
            "family": None if arch is None else arch.family,
            "compute_units": gpu.compute_units,
            "integrated": gpu.is_integrated,
            "partition": gpu.partition if can_be_divided else None,
            "compute_partition": compute,
            "memory_partition": shared,
            "kfd_node": gpu.node,
            "xgmi_hive": None if gpu.hive is None else hives.index(gpu.hive),
            "amdsmi_index": gpu.amdsmi_index,
            "amdsmi_uuid": gpu.amdsmi_uuid,
        },
    )


def _override(machine: Machine, gpu: Gpu) -> tuple[str, str | None]:
    """The variable that overrides the device's architecture, and its value: that of its node before that of all."""
    own = f"{OVERRIDE}_{gpu.hsa_node}"
    value = machine.variable(own) if gpu.hsa_node is not None else None
    return (own, value) if value is not None else (OVERRIDE, machine.variable(OVERRIDE))


def _bad_overrides(overrides: Sequence[tuple[str, str | None]]) -> list[Reason]:
    """Of all devices, masked ones too: the runtime reads them all, and one that it cannot read ends it."""
    return [
        Reason(
            code=ReasonCode.OTHER,
            message=f"{name}={value[:200]!r} is no version, and with it ROCm's runtime finds no device",
            requested=value[:200],
            accepted="three decimal numbers, such as 10.3.0, and nothing after them",
            remedy=f"correct {name}, or unset it",
        )
        for name, value in dict(overrides).items()
        if value is not None and not is_override_valid(value)
    ]


def _masked(choice: _mask.Choice, values: dict[str, str | None]) -> Reason:
    given = [name for name, text in values.items() if text is not None]
    remedy = f"unset {' or '.join(given)}, or give it devices that exist"
    return Reason(
        code=ReasonCode.MASKED,
        message=choice.refusal or "",
        requested=tuple(f"{name}={text:.200}" for name, text in values.items() if text is not None),
        accepted=f"numbers or ids ({'GPU-'} and 16 digits), separated by commas, each once",
        remedy=None if choice.is_wish else remedy,
    )


def reason_of(error: ImportError | OSError) -> Reason:
    """A failure as a reason. Its text is never left out."""
    code = getattr(error, "code", None)
    message = str(error)
    if code is None:
        code = ReasonCode.PERMISSION if isinstance(error, PermissionError) else ReasonCode.OTHER
        if isinstance(error, ImportError):
            is_missing = isinstance(error, ModuleNotFoundError)
            code = ReasonCode.MISSING_DEPENDENCY if is_missing else ReasonCode.BROKEN_IMPORT
        message = f"{type(error).__name__}: {error}"
    return Reason(code=code, message=message, remedy=getattr(error, "remedy", None))
