"""Why a machine without NVIDIA's device nodes has none, where something tells: another driver, a container's wish.

Imported only where `may_be_told` in `_traces` has seen one of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hardpoint import Reason, ReasonCode
from hardpoint.errors import NotRecorded
from hardpoint.hookspecs import Detection
from hardpoint_cuda._traces import CONTAINER, NOTHING, NOUVEAU, VFIO

if TYPE_CHECKING:
    from hardpoint import Machine

_NO_DEVICES: Final = frozenset(("", "void", "none"))
"""What NVIDIA's container toolkit takes as the wish to have none."""


def without_traces(machine: Machine) -> Detection:
    """Unusable where nouveau drives a card in place of NVIDIA's driver; else absent, with the cause if it shows."""
    try:
        if cards := _bound(machine, NOUVEAU):
            return Detection.unusable(_nouveau(cards))
        if cards := [card for card in _bound(machine, VFIO) if _is_nvidia(machine, card)]:
            return Detection.absent(_vfio(cards))
        return Detection.absent(hidden_from_container(machine) or _not_given(machine) or NOTHING)
    except NotRecorded:
        return Detection.absent(NOTHING)


def hidden_from_container(machine: Machine) -> Reason | None:
    """The reason where a container was started with the wish to see no device.

    Worth a look only where there is none: Docker's CDI mode says ``void`` in containers that have been given devices.
    """
    value = machine.variable(CONTAINER)
    if value is None or value.strip().lower() not in _NO_DEVICES:
        return None
    return Reason(
        code=ReasonCode.MASKED,
        message=f"no NVIDIA device: {CONTAINER}={value[:200]!r} hides them all from this container",
        requested=value[:200],
        accepted="all, or numbers or ids of devices",
        remedy=f"start the container with --gpus all, or with {CONTAINER}=all where NVIDIA's runtime is the default",
    )


def _not_given(machine: Machine) -> Reason | None:
    """The reason where an image asks for devices and the container was started without them."""
    value = machine.variable(CONTAINER)
    if value is None:
        return None
    return Reason(
        code=ReasonCode.NO_DEVICE,
        message=f"no NVIDIA device, though {CONTAINER}={value[:200]!r} asks for some: the container was given none",
        requested=value[:200],
        remedy="start the container with --gpus all, on a machine where nvidia-smi works",
    )


def _bound(machine: Machine, driver: str) -> list[str]:
    """The PCI addresses of the functions that a kernel driver has taken."""
    if not machine.exists(driver):
        return []
    try:
        return [name for name in machine.list_directory(driver) if name.count(":") == 2]
    except NotRecorded:
        raise
    except OSError:
        return []


def _is_nvidia(machine: Machine, address: str) -> bool:
    folder = f"/sys/bus/pci/devices/{address}"
    try:
        vendor, kind = (machine.read_text(f"{folder}/{name}", limit=16).strip().lower() for name in ("vendor", "class"))
    except NotRecorded:
        raise
    except OSError:
        return False
    # 0x03: a display controller. A card's sound function goes with it.
    return vendor == "0x10de" and kind.startswith("0x03")


def _nouveau(cards: list[str]) -> Reason:
    return Reason(
        code=ReasonCode.DRIVER,
        message=f"the kernel's driver nouveau has {', '.join(cards[:8])}, and CUDA needs NVIDIA's own driver",
        requested="nouveau",
        accepted="nvidia",
        remedy="install NVIDIA's driver, which blacklists nouveau, and reboot",
    )


def _vfio(cards: list[str]) -> Reason:
    return Reason(
        code=ReasonCode.DRIVER,
        message=f"no NVIDIA device: vfio-pci keeps {', '.join(cards[:8])} for virtual machines",
        requested="vfio-pci",
        accepted="nvidia",
        remedy="bind it to NVIDIA's driver (driverctl unset-override ADDRESS), or use it in the virtual machine",
    )
