"""In which order CUDA numbers the devices, which is not NVML's where they differ.

NVML numbers by PCI address. CUDA does with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``; by default it puts the fastest first, by
a rule that NVIDIA does not publish. So where models differ the driver itself is asked, in a process of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hardpoint import Reason, ReasonCode
from hardpoint_cuda._inventory import DRIVER, Gpu, read_inventory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint import Machine

VARIABLE: Final = "CUDA_DEVICE_ORDER"
_BY_ADDRESS: Final = "PCI_BUS_ID"

PROBE: Final = "cuda.driver"
TARGET: Final = "hardpoint_cuda._driver:read_devices"


class Order(NamedTuple):
    """The devices as CUDA numbers them; `warning` where that is a guess, `note` where some are left out."""

    gpus: tuple[Gpu, ...]
    warning: str | None = None
    note: Reason | None = None


def cuda_order(machine: Machine, gpus: Sequence[Gpu]) -> Order:
    """Put NVML's devices into CUDA's order."""
    by_address = tuple(sorted(gpus, key=_address))
    if machine.variable(VARIABLE) == _BY_ADDRESS or len({gpu.model for gpu in gpus}) < 2:
        return Order(by_address)
    try:
        answer = machine.probe(PROBE, TARGET, arguments=(False,), isolated=True)
        theirs = read_inventory(answer, DRIVER).gpus
    except (ImportError, OSError) as error:
        return Order(by_address, warning=_warning(by_address, str(error)))
    places = [_place_of(gpu, by_address) for gpu in theirs]
    known = list(dict.fromkeys(place for place in places if place is not None))
    if not known or None in places:
        return Order(by_address, warning=_warning(by_address, "its devices cannot be told from NVML's by id"))
    rest = [place for place in range(len(by_address)) if place not in known]
    if any(gpu.mig_enabled for gpu in gpus):
        # Of devices that are divided the driver shows one instance and hides the whole ones.
        return Order(tuple(by_address[place] for place in (*known, *rest)))
    left_out = ", ".join(f"{by_address[place].name} ({by_address[place].uuid})" for place in rest)
    message = f"CUDA does not offer {left_out}, which NVML lists"
    note = Reason(code=ReasonCode.OTHER, message=message) if rest else None
    return Order(tuple(by_address[place] for place in known), note=note)


def _address(gpu: Gpu) -> tuple[bool, tuple[int, ...], int]:
    text = gpu.pci_bus_id
    parts = () if text is None else tuple(int(part, 16) for part in text.replace(".", ":").split(":"))
    return text is None, parts, gpu.number


def _place_of(gpu: Gpu, gpus: Sequence[Gpu]) -> int | None:
    """By id or, where that is unknown, by address; never by number."""
    for place, other in enumerate(gpus):
        if gpu.uuid is not None and gpu.uuid == other.uuid:
            return place
    for place, other in enumerate(gpus):
        if gpu.pci_bus_id is not None and gpu.pci_bus_id == other.pci_bus_id:
            return place
    return None


def _warning(gpus: Sequence[Gpu], why: str) -> str:
    models = " and ".join(dict.fromkeys(gpu.name for gpu in gpus))
    if len({gpu.name for gpu in gpus}) < 2:
        models = " and ".join(f"{gpu.name} {gpu.version}" for gpu in gpus)
    return (
        f"this machine has devices of several models ({models}), and the order in which CUDA numbers them is unknown: "
        f"{why}; they are taken in the order of their PCI addresses, which {VARIABLE}={_BY_ADDRESS} makes certain"
    )
