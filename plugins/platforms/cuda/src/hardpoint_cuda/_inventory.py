"""The answer of a probe, read as data that may hold anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hardpoint import Reason, ReasonCode
from hardpoint._pci import normalise_pci
from hardpoint.errors import EnvironmentFailure
from hardpoint_cuda._features import sm_count_of

if TYPE_CHECKING:
    from hardpoint._machine import Json

NVML: Final = "NVML"
DRIVER: Final = "the CUDA driver"
TORCH: Final = "torch"


class Instance(NamedTuple):
    """A MIG instance. `alias` is what drivers before R470 call it."""

    uuid: str | None
    alias: str | None
    memory_bytes: int | None
    sm_count: int | None


class Gpu(NamedTuple):
    """A whole device, by the number that its source gives it. `unified_memory`: it uses the machine's memory."""

    number: int
    name: str
    uuid: str | None
    pci_bus_id: str | None
    version: tuple[int, int] | None
    memory_bytes: int | None
    unified_memory: bool | None
    sm_count: int | None
    mig_enabled: bool
    instances: tuple[Instance, ...]
    fabric_state: int | None = None

    @property
    def model(self) -> tuple[str, tuple[int, int] | None]:
        """What must be equal for two devices to be interchangeable."""
        return self.name, self.version


class Inventory(NamedTuple):
    """All devices of a machine. `problems` are those that could not be opened."""

    source: str
    gpus: tuple[Gpu, ...]
    problems: tuple[Reason, ...]
    library: str | None
    driver_version: str | None
    cuda_version: tuple[int, int] | None


def read_inventory(answer: Json, source: str) -> Inventory:
    """Errors: `EnvironmentFailure` where the answer has no list of devices. What a device lacks, or is odd, is None."""
    devices = answer.get("devices") if isinstance(answer, dict) else None
    if not isinstance(devices, list):
        raise EnvironmentFailure(f"{source} answers without a list of devices: {answer!r:.200}", code="driver")
    problems = answer.get("problems")
    return Inventory(
        source=source,
        gpus=tuple(_gpu(item, place) for place, item in enumerate(devices) if isinstance(item, dict)),
        problems=tuple(
            Reason(code=_code(item.get("code")), message=_text(item.get("message")) or "a device cannot be opened")
            for item in (problems if isinstance(problems, list) else ())
            if isinstance(item, dict)
        ),
        library=_text(answer.get("library")),
        driver_version=_text(answer.get("driver_version")),
        cuda_version=_pair(answer.get("cuda_version")),
    )


def _gpu(item: dict[str, Json], place: int) -> Gpu:
    version = _pair(item.get("capability"))
    number = _count(item.get("index"))
    uuid = _text(item.get("uuid"))
    instances = item.get("instances")
    unified = item.get("unified_memory")
    return Gpu(
        number=place if number is None else number,
        name=_text(item.get("name")) or "NVIDIA device of unknown name",
        uuid=uuid,
        pci_bus_id=normalise_pci(_text(item.get("pci_bus_id"))),
        version=version,
        memory_bytes=_count(item.get("memory_bytes")) or None,
        unified_memory=unified if isinstance(unified, bool) else None,
        sm_count=_count(item.get("sm_count")) or sm_count_of(_count(item.get("cores")), version),
        mig_enabled=item.get("mig_enabled") is True,
        instances=tuple(
            _instance(part, uuid)
            for part in (instances if isinstance(instances, list) else ())
            if isinstance(part, dict)
        ),
        fabric_state=_count(item.get("fabric_state")),
    )


def _instance(item: dict[str, Json], parent: str | None) -> Instance:
    gpu, compute = _count(item.get("gpu_instance")), _count(item.get("compute_instance"))
    return Instance(
        uuid=_text(item.get("uuid")),
        alias=None if None in (parent, gpu, compute) else f"MIG-{parent}/{gpu}/{compute}",
        memory_bytes=_count(item.get("memory_bytes")) or None,
        sm_count=_count(item.get("sm_count")) or None,
    )


def _text(value: Json) -> str | None:
    """Text that says something."""
    return value.strip() or None if isinstance(value, str) else None


def _count(value: Json) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _pair(value: Json) -> tuple[int, int] | None:
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    major, minor = map(_count, value)
    return None if major is None or minor is None else (major, minor)


def _code(value: Json) -> ReasonCode:
    try:
        return ReasonCode(value)
    except ValueError:
        return ReasonCode.DRIVER
