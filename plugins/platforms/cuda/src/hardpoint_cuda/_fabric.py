"""Whether devices wait for the fabric manager.

On machines whose devices are connected by NVSwitch, CUDA cannot be initialised before NVIDIA's fabric manager has
configured the switches: error 802, ``cudaErrorSystemNotReady``. NVML works all the same. NVIDIA's fabric manager user
guide says so, and where the service keeps its pid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hardpoint.errors import NotRecorded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint import Machine
    from hardpoint_cuda._inventory import Gpu

# nvmlGpuFabricState_t in nvml.h. Devices before Hopper have no such state.
_WAITING: Final = frozenset((1, 2))  # not started, in progress
_READY: Final = 3
_SWITCHES: Final = "/dev/nvidia-nvswitchctl"
_PID: Final = "/run/nvidia-fabricmanager/nv-fabricmanager.pid"


def may_wait(machine: Machine, gpus: Sequence[Gpu]) -> bool:
    """Whether the driver should be asked: it alone knows. No wish to be certain, as asking takes a child process."""
    states = {gpu.fabric_state for gpu in gpus}
    if states & _WAITING or _READY in states:
        return bool(states & _WAITING)
    try:
        # In a container neither may be visible.
        return machine.exists(_SWITCHES) and not machine.exists(_PID)
    except NotRecorded:
        return False
