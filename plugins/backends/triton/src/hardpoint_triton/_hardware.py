"""The device that kernels are launched on, as far as the choice of tiles depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint_triton._kernel import interpreting


@dataclass(frozen=True, slots=True)
class Hardware:
    """`arch` is ``sm_90``, ``gfx942`` or ``interpreter``; `units` are the multiprocessors that programs spread over."""

    arch: str
    units: int

    @property
    def interpreted(self) -> bool:
        """Whether kernels run in Triton's interpreter."""
        return self.arch == "interpreter"


# A few, so that tests of small shapes come to split.
INTERPRETER = Hardware("interpreter", 8)


def hardware_of(device: torch.device) -> Hardware:
    """What the tensors of a device are computed on. May initialise the device, never makes it the current one."""
    if interpreting():
        return INTERPRETER
    return _hardware_of(device.type, device.index)


@lru_cache(maxsize=64)
def _hardware_of(kind: str, index: int | None) -> Hardware:
    if kind != "cuda":
        return Hardware(kind, _units(torch.device(kind, index or 0)))
    properties = torch.cuda.get_device_properties(torch.cuda.current_device() if index is None else index)
    if torch.version.hip is not None:
        arch = properties.gcnArchName.partition(":")[0]
    else:
        arch = f"sm_{properties.major}{properties.minor}"
    return Hardware(arch, properties.multi_processor_count)


def _units(device: torch.device) -> int:
    """Of a vendor's device: what its torch module says, or a guess that costs little if it is wrong."""
    properties = getattr(torch.get_device_module(device), "get_device_properties", None)
    found = None if properties is None else getattr(properties(device), "multi_processor_count", None)
    return found if isinstance(found, int) and found > 0 else 64
