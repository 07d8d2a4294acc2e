"""Open devices: which there are, which is current, and their memory."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, NamedTuple

import torch
import torch.utils.dlpack

from hardpoint import LiveMachine
from wherrow._driver import OUT_OF_MEMORY, Driver
from wherrow._nodes import root, visible

_capsule: Any = ctypes.pythonapi.PyCapsule_New  # Any: ctypes' functions are untyped
_capsule.restype, _capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

_lock = threading.RLock()
_here = threading.local()
_found: tuple[Driver, tuple[int, ...]] | None = None
_open: dict[int, OpenDevice] = {}


class Memory(NamedTuple):
    """Bytes of a device's memory."""

    allocated: int
    most_allocated: int
    total: int


class OpenDevice:
    """One device of this process, by its logical number. Made by `device`, which opens it."""

    def __init__(self, driver: Driver, number: int, index: int) -> None:
        self.driver, self.number, self.index = driver, number, index
        self.name = f"wherrow:{index}"
        self.base = driver.make("open", driver.root.encode(), number)
        # The simulated processor's own sight of the memory. A host has none: it copies.
        region = (ctypes.c_uint8 * self.memory().total).from_address(self.base)
        self._region = torch.frombuffer(region, dtype=torch.uint8)
        self._typed: dict[torch.dtype, torch.Tensor] = {}
        self.generator = torch.Generator()

    def memory(self) -> Memory:
        """What the driver counts."""
        used, most, total = (ctypes.c_uint64() for _ in range(3))
        self.driver.call("memory", self.number, *map(ctypes.byref, (used, most, total)))
        return Memory(used.value, most.value, total.value)

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """So many bytes, as a tensor of this device, which gives them back. Errors: `torch.OutOfMemoryError`."""
        made = ctypes.c_void_p()
        error = self.driver.ask("allocate", self.number, self.index, num_bytes, ctypes.byref(made))
        if error == OUT_OF_MEMORY:
            known = self.memory()
            raise torch.OutOfMemoryError(
                f"{self.name} is out of memory: {num_bytes} bytes were asked for, {known.allocated} of {known.total}"
                " are allocated"
            )
        if error:
            raise RuntimeError(f"{self.name}: {self.driver.error_text(error)}")
        # DLPack is how torch takes memory that is not its own; the driver filled in how to give it back.
        tensor: torch.Tensor = torch.utils.dlpack.from_dlpack(_capsule(made, b"dltensor", None))
        return tensor

    def processors_view(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of this device as the simulated processor sees it, which is another part of this computer."""
        if not tensor.numel():
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        typed = self._typed.get(tensor.dtype)
        if typed is None:
            size = tensor.dtype.itemsize
            whole = self._region[: len(self._region) // size * size]
            typed = self._typed[tensor.dtype] = whole.view(tensor.dtype)
        start = (tensor.data_ptr() - self.base) // tensor.dtype.itemsize
        return torch.as_strided(typed, tensor.shape, tensor.stride(), start)


def _find() -> tuple[Driver, tuple[int, ...]]:
    global _found  # noqa: PLW0603  # a process has one driver, and sees the same devices to its end
    with _lock:
        if _found is None:
            machine = LiveMachine()
            _found = Driver(root(machine)), visible(machine)
        return _found


def device_count() -> int:
    """How many devices this process sees. Opens none."""
    return len(_find()[1])


def device(where: int | str | torch.device | None = None) -> OpenDevice:
    """A device, opened if it was not; by default the current one. Errors: `EnvironmentFailure`, `RuntimeError`."""
    index = where if isinstance(where, int) else None if where is None else torch.device(where).index
    if index is None:
        index = current_device()
    known = _open.get(index)
    if known is not None:
        if known.driver.ask("is_forked"):
            raise RuntimeError(f"{known.name} was opened before this process was forked; start it with spawn")
        return known
    driver, shown = _find()
    if not 0 <= index < len(shown):
        raise RuntimeError(f"there is no device wherrow:{index}: there are {len(shown)}")
    with _lock:
        return _open.setdefault(index, OpenDevice(driver, shown[index], index))


def opened(index: int) -> OpenDevice | None:
    """A device, if it is open."""
    return _open.get(index)


def is_initialized() -> bool:
    """Whether a device is open, here or in the process that this one was forked from."""
    return bool(_open)


def is_in_bad_fork() -> bool:
    """Whether a device was open when this process was forked."""
    return any(item.driver.ask("is_forked") for item in _open.values())


def current_device() -> int:
    """This thread's device."""
    return getattr(_here, "index", 0)


def set_device(where: int | str | torch.device) -> None:
    """Make a device this thread's current one, and open it."""
    _here.index = device(where).index


def all_open() -> tuple[OpenDevice, ...]:
    """The open devices."""
    return tuple(_open.values())
