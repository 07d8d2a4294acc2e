"""Asking torch which devices it can use: the last resort, where neither NVML nor the driver's library answers us.

Torch brings the CUDA runtime along, and may find a driver where the loader's own search does not. It is asked in a
child process, where it may create what contexts it likes; also for what it has kernels for.
"""

from __future__ import annotations

from typing import Any

from hardpoint._importing import import_library
from hardpoint.errors import EnvironmentFailure


def read_devices() -> dict[str, Any]:  # Any: JSON
    """Every device under the present mask, in CUDA's order, with what this release of torch tells of each.

    Errors: `EnvironmentFailure`; `ImportError`, `OSError` where torch cannot be imported.
    """
    torch: Any = import_library("torch")  # its functions here have no types
    try:
        torch.cuda.init()
        devices = [_read_device(torch.cuda.get_device_properties(index)) for index in range(torch.cuda.device_count())]
    except (RuntimeError, AssertionError, AttributeError) as error:
        # What CUDA does not like is one of the first two; the last is a torch of which a part is missing.
        text = " ".join(str(error).split())
        version = getattr(torch, "__version__", "of unknown version")
        raise EnvironmentFailure(f"torch {version} cannot use CUDA: {text}", code="driver") from error
    return {"library": getattr(torch, "__file__", None), "cuda_version": None, "devices": devices}


def read_archs() -> list[str]:
    """What this build of torch has kernels for: ``sm_90``, ``compute_120``; nothing where it can use no device.

    Errors: `EnvironmentFailure`; `ImportError`, `OSError` where torch cannot be imported.
    """
    torch: Any = import_library("torch")
    try:
        return [str(arch) for arch in torch.cuda.get_arch_list()]
    except (RuntimeError, AssertionError, AttributeError) as error:
        text = " ".join(str(error).split())
        raise EnvironmentFailure(f"torch does not say what it has kernels for: {text}", code="other") from error


def _read_device(properties: Any) -> dict[str, Any]:  # noqa: ANN401  # torch has no public type for it
    uuid = getattr(properties, "uuid", None)
    return {
        "name": properties.name,
        "uuid": None if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}",
        "pci_bus_id": _address(properties),
        "capability": [properties.major, properties.minor],
        "memory_bytes": properties.total_memory,
        "unified_memory": _flag(getattr(properties, "is_integrated", None)),
        "sm_count": properties.multi_processor_count,
    }


def _address(properties: Any) -> str | None:  # noqa: ANN401  # as above
    parts = [getattr(properties, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
    numbers = [part for part in parts if isinstance(part, int)]
    return None if len(numbers) != 3 else f"{numbers[0]:04x}:{numbers[1]:02x}:{numbers[2]:02x}.0"


def _flag(value: object) -> bool | None:
    return bool(value) if isinstance(value, int) else None
