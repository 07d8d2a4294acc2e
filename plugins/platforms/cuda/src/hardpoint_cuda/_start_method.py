"""How an engine should start its workers: after the driver has been initialised, a fork cannot use CUDA."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from hardpoint_cuda._traces import is_wsl

if TYPE_CHECKING:
    from hardpoint import Machine

# CUDA keeps it open from its initialisation on, and a forked child inherits it; NVML never opens it.
_NODE: Final = "/dev/nvidia-uvm"
_OPEN_FILES: Final = "/proc/self/fd"


class StartMethod(NamedTuple):
    """``fork`` or ``spawn``, as `multiprocessing` calls them, and why."""

    name: str
    reason: str


def recommend(machine: Machine) -> StartMethod:
    """Look at torch, if it is imported, at the driver, if it is loaded, and at what the process has open."""
    if is_wsl(machine):
        return StartMethod("spawn", "on WSL the driver does not survive a fork")
    if machine.system == "Windows":
        return StartMethod("spawn", "Windows has no fork")
    if (reason := _torch_says()) is not None:
        return StartMethod("spawn", reason)
    if not machine.live:
        return StartMethod("fork", "nothing has initialised the CUDA driver")
    state = machine.probe("cuda.initialised", "hardpoint_cuda._driver:is_initialised", isolated=False)
    if state is not False and state is not None:
        return StartMethod("spawn", "something other than torch has initialised the CUDA driver in this process")
    if _has_open(machine, _NODE):
        return StartMethod("spawn", f"the CUDA driver was initialised here or in a parent: {_NODE} is open")
    if state is None:
        return StartMethod("spawn", "the CUDA driver is loaded and does not say whether it is initialised")
    return StartMethod("fork", "nothing has initialised the CUDA driver")


def _torch_says() -> str | None:
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None:
        return None
    if getattr(cuda, "_is_in_bad_fork", bool)():
        return "this process was forked from one in which torch had initialised CUDA"
    if getattr(cuda, "is_initialized", bool)():
        return "torch has initialised CUDA in this process"
    return None


def _has_open(machine: Machine, node: str) -> bool:
    try:
        names = machine.list_directory(_OPEN_FILES)
    except OSError:
        return False
    return any(machine.real_path(f"{_OPEN_FILES}/{name}") == node for name in names)
