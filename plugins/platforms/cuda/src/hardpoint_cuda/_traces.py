"""Signs of NVIDIA hardware that cost a few look-ups of names: no library is loaded and no file is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hardpoint.errors import NotRecorded

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


NOTHING: Final = "no NVIDIA device: neither device nodes nor a driver"

NOUVEAU: Final = "/sys/bus/pci/drivers/nouveau"
VFIO: Final = "/sys/bus/pci/drivers/vfio-pci"
"""What drives cards in the place of NVIDIA's driver: the kernel's own, and what hands them to virtual machines."""

CONTAINER: Final = "NVIDIA_VISIBLE_DEVICES"
"""Read by NVIDIA's container toolkit when a container starts. Inside it only says what was asked for then."""


def find_traces(machine: Machine) -> tuple[str, ...]:
    """The paths that speak for such hardware; none: there is none."""
    system = machine.system
    paths = LINUX if system == "Linux" else WINDOWS if system == "Windows" else ()
    return tuple(path for path in paths if machine.exists(path))


def may_be_told(machine: Machine) -> bool:
    """Whether something may say why there are no traces: another driver of the kernel's, or a container's variable."""
    if machine.system != "Linux":
        return False
    try:
        return machine.exists(NOUVEAU) or machine.exists(VFIO) or machine.variable(CONTAINER) is not None
    except NotRecorded:
        return False


def is_wsl(machine: Machine) -> bool:
    """Whether this Linux runs under Windows, in WSL."""
    return machine.system == "Linux" and "microsoft" in machine.kernel_release.lower()
