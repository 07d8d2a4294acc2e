"""``torch.wherrow``: the device module, as torch asks for one. Importing this gives torch the device, and opens none.

Torch has one key, PrivateUse1, for devices that it does not know; the first to come has it for the whole process.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch
from torch.utils import backend_registration

from hardpoint import EnvironmentFailure
from wherrow import _memory, _operators
from wherrow._device import (
    all_open,
    current_device,
    device,
    device_count,
    is_in_bad_fork,
    is_initialized,
    opened,
    set_device,
)
from wherrow._streams import Event, Stream, current_stream, stream, synchronize

if TYPE_CHECKING:
    from wherrow._streams import Where

__all__ = [
    "Event",
    "Stream",
    "current_device",
    "current_stream",
    "device_count",
    "empty_cache",
    "get_device_name",
    "is_available",
    "is_initialized",
    "manual_seed_all",
    "max_memory_allocated",
    "mem_get_info",
    "memory_allocated",
    "set_device",
    "stream",
    "synchronize",
]

_is_in_bad_fork = is_in_bad_fork


def is_available() -> bool:
    """Whether this process sees a device. Opens none."""
    try:
        return device_count() > 0
    except OSError:
        return False


def get_device_name(where: Where = None) -> str:
    """The torch name of a device: its market name is the platform's to say."""
    return device(where).name


def memory_allocated(index: int = 0) -> int:
    """Bytes that this process has allocated; 0 where the device is not open."""
    found = opened(index)
    return 0 if found is None else found.memory().allocated


def max_memory_allocated(index: int = 0) -> int:
    """The most bytes that were allocated at once."""
    found = opened(index)
    return 0 if found is None else found.memory().most_allocated


def mem_get_info(where: Where = None) -> tuple[int, int]:
    """Bytes that are free, and bytes in all."""
    memory = device(where).memory()
    return memory.total - memory.allocated, memory.total


def empty_cache() -> None:
    """Nothing to give back: memory goes to the driver as soon as nobody has it."""


def manual_seed_all(seed: int) -> None:
    """Seed the generator of every open device, behind what draws from it already."""
    for found in all_open():
        synchronize(found.index)
        found.generator.manual_seed(seed)


def _register() -> tuple[torch.library.Library, ...]:
    try:
        # Torch's only way for a backend in Python, and marked as an experiment there.
        backend_registration._setup_privateuseone_for_python_backend(_memory.TYPE, sys.modules[__name__])  # noqa: SLF001
    except RuntimeError as error:
        raise EnvironmentFailure(f"torch cannot take the device wherrow: {error}", code="duplicate") from error
    except AttributeError as error:
        raise EnvironmentFailure(
            f"torch {torch.__version__} has no way to take the device wherrow: {error}",
            code="incompatible_dependency",
            remedy="install torch 2.13 or newer",
        ) from error
    return _operators.register()


_libraries = _register()
