"""Signs of NVIDIA hardware that cost a few look-ups of names: no library is loaded and no file is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hardpoint import Machine

PIN_MEMORY_ON_WSL: Final = "HARDPOINT_CUDA_PIN_MEMORY_ON_WSL"

WSL: Final = "/dev/dxg"
"""WSL's door to the graphics card of the Windows host, of whatever vendor that is."""

TEGRA: Final = ("/dev/nvhost-gpu", "/dev/nvgpu", "/etc/nv_tegra_release")
"""Jetson: the integrated device's nodes, and the file of NVIDIA's Linux for it."""

LINUX: Final = ("/dev/nvidiactl", "/proc/driver/nvidia", WSL, *TEGRA)
"""Whoever may use an NVIDIA card needs ``/dev/nvidiactl``, also in a container that has only some of the cards."""

WINDOWS: Final = ("C:/Windows/System32/nvcuda.dll",)


def find_traces(machine: Machine) -> tuple[str, ...]:
    """The paths that speak for such hardware; none: there is none."""
    system = machine.system
    paths = LINUX if system == "Linux" else WINDOWS if system == "Windows" else ()
    return tuple(path for path in paths if machine.exists(path))


def is_wsl(machine: Machine) -> bool:
    """Whether this Linux runs under Windows, in WSL."""
    return machine.system == "Linux" and "microsoft" in machine.kernel_release.lower()
