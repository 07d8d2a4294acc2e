"""Why a machine with traces of AMD hardware has no device of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hardpoint import Reason, ReasonCode
from hardpoint._pci import DEVICES, read_attribute
from hardpoint.hookspecs import Detection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint import Machine

MODULE: Final = "/sys/module/amdgpu"

_VENDOR: Final = "0x1002"
# Classes of PCI: display controllers, processing accelerators.
_CLASSES: Final = ("0x03", "0x12")


def explain_absence(machine: Machine, hidden: Sequence[Reason], failures: Sequence[Reason]) -> Detection:
    """Unusable where devices are there and `hidden` from this process, or wait for a driver; else absent.

    `failures` are those of asking, which say nothing of what is there.
    """
    if hidden:
        return Detection.unusable(*hidden, *failures)
    cards = find_cards(machine)
    if not cards:
        nothing = Reason(code=ReasonCode.NO_DEVICE, message="the driver has no device, and the PCI bus none of AMD's")
        return Detection.absent(nothing, *failures)
    listed = ", ".join(cards)
    if not machine.exists(MODULE):
        loaded = Reason(
            code=ReasonCode.DRIVER,
            message=f"the kernel module amdgpu is not loaded, and there is an AMD device at {listed}",
            remedy="modprobe amdgpu; what fails there is in the kernel's log",
        )
        return Detection.unusable(loaded, *failures)
    message = f"the driver does not compute on the AMD device at {listed}: its topology has no node for it"
    return Detection.absent(Reason(code=ReasonCode.NO_DEVICE, message=message), *failures)


def find_cards(machine: Machine) -> tuple[str, ...]:
    """The PCI addresses of AMD's display controllers and accelerators, whatever driver they have."""
    try:
        addresses = machine.list_directory(DEVICES)
    except OSError:
        return ()
    return tuple(
        address
        for address in addresses
        if read_attribute(machine, address, "vendor", limit=16) == _VENDOR
        and (read_attribute(machine, address, "class", limit=16) or "").startswith(_CLASSES)
    )
