"""A device as any source tells of it, and what amdsmi adds to what the kernel says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from hardpoint import Reason, ReasonCode
from hardpoint._pci import normalise_pci
from hardpoint.errors import EnvironmentFailure
from hardpoint_rocm._arch import Arch, parse_arch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint._machine import Json

AMDSMI: Final = "amdsmi"

_SERIAL: Final = re.compile(r"(?:0x|GPU-)?([0-9a-f]{1,16})\Z", re.ASCII | re.IGNORECASE)


class Gpu(NamedTuple):
    """One device: a card, one of a package's, or a part of a card that is divided. `number` is its source's.

    `partition` is the part's number, `node` the kernel's in its topology and `hsa_node` the runtime's, `hive` what
    cards that XGMI connects share, `is_integrated`: it is the CPU's own.
    """

    number: int
    arch: Arch | None = None
    name: str | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None
    partition: int = 0
    node: int | None = None
    hsa_node: int | None = None
    device_id: int | None = None
    memory_bytes: int | None = None
    compute_units: int | None = None
    hive: int | None = None
    is_integrated: bool = False
    compute_partition: str | None = None
    memory_partition: str | None = None
    amdsmi_index: int | None = None
    amdsmi_uuid: str | None = None


class Inventory(NamedTuple):
    """What amdsmi answers: its devices in its own order. `problems` are those that could not be opened."""

    gpus: tuple[Gpu, ...]
    problems: tuple[Reason, ...] = ()
    driver_version: str | None = None
    library: str | None = None


def format_uuid(number: int | str | None) -> str | None:
    """As HIP and the masks write an id, ``GPU-`` and 16 digits; None for 0, which means that there is none."""
    if isinstance(number, str):
        found = _SERIAL.match(number.strip())
        number = int(found[1], 16) if found else None
    if not number or number >> 64:
        return None
    return f"GPU-{number:016x}"


def read_inventory(answer: Json) -> Inventory:
    """The answer of amdsmi's probe, which may hold anything. What a device lacks, or is odd, is None.

    Errors: `EnvironmentFailure` where it has no list of devices.
    """
    devices = answer.get("devices") if isinstance(answer, dict) else None
    if not isinstance(devices, list):
        raise EnvironmentFailure(f"{AMDSMI} answers without a list of devices: {answer!r:.200}", code="driver")
    problems = answer.get("problems")
    return Inventory(
        gpus=tuple(_gpu(item, place) for place, item in enumerate(devices) if isinstance(item, dict)),
        problems=tuple(
            Reason(code=_code(item.get("code")), message=_text(item.get("message")) or "a device cannot be opened")
            for item in (problems if isinstance(problems, list) else ())
            if isinstance(item, dict)
        ),
        driver_version=_text(answer.get("driver_version")),
        library=_text(answer.get("library")),
    )


def in_hip_order(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Amdsmi's devices, which it lists by PCI address, in the order of the kernel's nodes where it tells those."""
    nodes = [gpu.node for gpu in gpus]
    known = None not in nodes and len(set(nodes)) == len(nodes)
    ordered = sorted(gpus, key=lambda gpu: gpu.node or 0) if known else gpus
    return tuple(gpu._replace(number=place) for place, gpu in enumerate(ordered))


def merge(ours: Sequence[Gpu], theirs: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The kernel's devices, with what amdsmi knows of the same ones: matched by id or address, never by number."""
    merged = []
    for gpu in ours:
        other = next((item for item in theirs if _is_same(gpu, item)), None)
        merged.append(gpu if other is None else _join(gpu, other))
    return tuple(merged)


def _is_same(gpu: Gpu, other: Gpu) -> bool:
    if gpu.pci_bus_id is not None and other.pci_bus_id is not None:
        # amdsmi gives the parts of a divided card functions of their own, or the card's address and a number.
        if gpu.node is not None and other.node is not None:
            return gpu.node == other.node and gpu.pci_bus_id[:-1] == other.pci_bus_id[:-1]
        return gpu.pci_bus_id == other.pci_bus_id and gpu.partition == other.partition
    return gpu.uuid is not None and gpu.uuid == other.uuid


def _join(gpu: Gpu, other: Gpu) -> Gpu:
    """What the kernel says counts, since the runtime reads the same; what it does not say is taken from amdsmi."""
    filled = {name: value for name, value in other._asdict().items() if getattr(gpu, name) is None}
    return gpu._replace(**filled)


def _gpu(item: dict[str, Json], place: int) -> Gpu:
    index = _count(item.get("index"))
    megabytes = _count(item.get("memory_megabytes"))
    return Gpu(
        number=place if index is None else index,
        arch=parse_arch(item.get("arch")),
        name=_text(item.get("name")),
        uuid=format_uuid(_text(item.get("uuid"))),
        pci_bus_id=normalise_pci(_text(item.get("pci_bus_id"))),
        partition=_count(item.get("partition")) or 0,
        node=_count(item.get("node")),
        memory_bytes=(megabytes << 20) or None if megabytes is not None else None,
        compute_units=_count(item.get("compute_units")) or None,
        compute_partition=_text(item.get("compute_partition")),
        memory_partition=_text(item.get("memory_partition")),
        amdsmi_index=place if index is None else index,
        amdsmi_uuid=_text(item.get("amdsmi_uuid")),
    )


def _text(value: Json) -> str | None:
    """Text that says something: amdsmi writes ``N/A`` for nothing."""
    text = value.strip() if isinstance(value, str) else ""
    return text if text and text != "N/A" else None


def _count(value: Json) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 63 else None


def _code(value: Json) -> ReasonCode:
    try:
        return ReasonCode(value)
    except ValueError:
        return ReasonCode.DRIVER
