"""The light module: what the entry point names.

What is imported from here counts in the start of every process, also where there is no NVIDIA hardware. So `_traces` is
all that detection loads before it has seen some.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint.hookspecs import Detection, PlatformSpec, Rank, Setting, hookimpl
from hardpoint_cuda._traces import CONTAINER, NOTHING, PIN_MEMORY_ON_WSL, find_traces, may_be_told

if TYPE_CHECKING:
    from hardpoint import Machine
    from hardpoint.hookspecs import ReportSection


class CudaPlugin:
    """The plugin of the platform ``cuda``."""

    @hookimpl
    def hardpoint_platform(self) -> PlatformSpec:
        """Describe the platform and the variables that its answers depend on."""
        return PlatformSpec(
            api=(1, 0),
            target="hardpoint_cuda.platform:CudaPlatform",
            rank=Rank.IN_TREE,
            profiles="hardpoint_cuda:profiles",
            settings=(
                Setting("CUDA_VISIBLE_DEVICES", "the driver's own: which devices this process sees, in which order"),
                Setting("CUDA_DEVICE_ORDER", "the driver's own: FASTEST_FIRST or PCI_BUS_ID", "FASTEST_FIRST"),
                Setting(CONTAINER, "the container runtime's own: which devices a container was given"),
                Setting(PIN_MEMORY_ON_WSL, "1: use page-locked memory on WSL too, where the kernel can", "0"),
            ),
        )

    @hookimpl
    def hardpoint_detect(self, machine: Machine) -> Detection:
        """Look for traces of the hardware; only where there are some, ask NVML or, failing that, the driver."""
        traces = find_traces(machine)
        if not traces:
            if not may_be_told(machine):
                return Detection.absent(NOTHING)
            from hardpoint_cuda._untraced import without_traces

            return without_traces(machine)
        from hardpoint_cuda._detect import detect

        return detect(machine, traces)

    @hookimpl
    def hardpoint_report(self, machine: Machine) -> tuple[ReportSection, ...]:
        """Show to the doctor what was found."""
        from hardpoint_cuda._doctor import report

        return report(machine)


plugin = CudaPlugin()
