"""What an NVIDIA device can do, by name. Numbers appear here and nowhere else, as floors."""

from __future__ import annotations

from typing import Final

from hardpoint import DeviceCapability
from hardpoint.errors import CapabilityError

_SINCE: Final = (
    # Compute capability, and what a device of at least that has (CUDA C++ programming guide, PTX instruction set).
    ((6, 0), ("fp16", "fp64")),
    ((7, 0), ("tensor_cores",)),
    ((7, 5), ("int8_tensor_cores",)),
    ((8, 0), ("bf16", "tf32", "async_copy")),
    ((8, 9), ("fp8",)),
    ((9, 0), ("tma", "pdl", "clusters")),
    ((10, 0), ("fp4", "mx")),
)
_ONLY: Final = {
    # Matrix instructions of one generation: a later one does not have them.
    9: ("wgmma",),
    10: ("tcgen05",),
    11: ("tcgen05",),
}
_CORES_PER_SM: Final = {
    (5, 0): 128, (5, 2): 128, (5, 3): 128,
    (6, 0): 64, (6, 1): 128, (6, 2): 128,
    (7, 0): 64, (7, 2): 64, (7, 5): 64,
    (8, 0): 64, (8, 6): 128, (8, 7): 128, (8, 9): 128,
    (9, 0): 128,
    (10, 0): 128, (10, 3): 128, (11, 0): 128,
    (12, 0): 128, (12, 1): 128,
}  # fmt: skip


def capability_of(version: tuple[int, int] | None) -> DeviceCapability | None:
    """The capability of a compute capability; None where it is unknown or has no architecture's name."""
    if version is None:
        return None
    features = {name for floor, names in _SINCE if version >= floor for name in names}
    features.update(_ONLY.get(version[0], ()))
    try:
        return DeviceCapability.parse(version, features=frozenset(features))
    except CapabilityError:
        return None


def sm_count_of(cores: int | None, version: tuple[int, int] | None) -> int | None:
    """Multiprocessors by the number of CUDA cores, which is what NVML counts; None for a generation not known here."""
    per_sm = None if version is None else _CORES_PER_SM.get(version)
    if not cores or per_sm is None or cores % per_sm:
        return None
    return cores // per_sm
