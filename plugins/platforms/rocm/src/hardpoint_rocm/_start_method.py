"""How an engine should start its workers: after HIP has been initialised, a fork cannot use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint._start_method import StartMethod, forbidden_by_torch, has_open
from hardpoint_rocm._traces import NODE, WSL, is_wsl

if TYPE_CHECKING:
    from hardpoint import Machine


def recommend(machine: Machine) -> StartMethod:
    """Look at torch, if it is imported, and at what the process has open: the runtime opens its node and keeps it."""
    if (word := forbidden_by_torch("HIP")) is not None:
        return word
    node = WSL if is_wsl(machine) else NODE
    if machine.live and has_open(machine, node):
        return StartMethod("spawn", f"the ROCm runtime was initialised here or in a parent: {node} is open")
    return StartMethod("fork", "nothing has initialised the ROCm runtime")
