"""How an engine should start its workers: after the driver has been initialised, a fork cannot use CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hardpoint._start_method import StartMethod, forbidden_by_torch, has_open
from hardpoint_cuda._traces import is_wsl

if TYPE_CHECKING:
    from hardpoint import Machine

# CUDA keeps it open from its initialisation on, and a forked child inherits it; NVML never opens it.
_NODE: Final = "/dev/nvidia-uvm"


def recommend(machine: Machine) -> StartMethod:
    """Look at torch, if it is imported, at the driver, if it is loaded, and at what the process has open."""
    if is_wsl(machine):
        return StartMethod("spawn", "on WSL the driver does not survive a fork")
    if machine.system == "Windows":
        return StartMethod("spawn", "Windows has no fork")
    if (word := forbidden_by_torch("CUDA")) is not None:
        return word
    if not machine.live:
        return StartMethod("fork", "nothing has initialised the CUDA driver")
    state = machine.probe("cuda.initialised", "hardpoint_cuda._driver:is_initialised", isolated=False)
    if state is not False and state is not None:
        return StartMethod("spawn", "something other than torch has initialised the CUDA driver in this process")
    if has_open(machine, _NODE):
        return StartMethod("spawn", f"the CUDA driver was initialised here or in a parent: {_NODE} is open")
    if state is None:
        return StartMethod("spawn", "the CUDA driver is loaded and does not say whether it is initialised")
    return StartMethod("fork", "nothing has initialised the CUDA driver")
