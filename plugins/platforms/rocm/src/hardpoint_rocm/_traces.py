"""Signs of AMD hardware that cost a few look-ups of names: no library is loaded and no file is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hardpoint import Machine

WSL: Final = "/dev/dxg"
"""WSL's door to the graphics card of the Windows host, of whatever vendor that is."""

KFD: Final = "/sys/class/kfd"
"""There as soon as the kernel's driver is loaded, and in every container of such a machine."""

NODE: Final = "/dev/kfd"
"""What every program that computes opens. A container has it only where it was given one."""

ROCM: Final = "/opt/rocm"
"""The vendor's software: where it is installed, a driver that is not loaded is worth a reason."""


def find_traces(machine: Machine) -> tuple[str, ...]:
    """The first of the paths that speaks for such hardware; none: there is none."""
    if machine.system != "Linux":
        return ()
    for path in (KFD, NODE, WSL if is_wsl(machine) else ROCM):
        if machine.exists(path):
            return (path,)
    return ()


def is_wsl(machine: Machine) -> bool:
    """Whether this Linux runs under Windows, in WSL."""
    return machine.system == "Linux" and "microsoft" in machine.kernel_release.lower()
