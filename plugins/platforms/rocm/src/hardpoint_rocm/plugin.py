"""The light module: what the entry point names.

What is imported from here counts in the start of every process, also where there is no AMD hardware. So `_traces` is
all that detection loads before it has seen some.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint.hookspecs import Detection, PlatformSpec, Rank, Setting, hookimpl
from hardpoint_rocm._traces import find_traces

if TYPE_CHECKING:
    from hardpoint import Machine
    from hardpoint.hookspecs import ReportSection


class RocmPlugin:
    """The plugin of the platform ``rocm``."""

    @hookimpl
    def hardpoint_platform(self) -> PlatformSpec:
        """Describe the platform and the variables that its answers depend on."""
        return PlatformSpec(
            api=(1, 0),
            target="hardpoint_rocm.platform:RocmPlatform",
            rank=Rank.IN_TREE,
            settings=(
                Setting("ROCR_VISIBLE_DEVICES", "the runtime's own: which devices it shows to HIP, in which order"),
                Setting("HIP_VISIBLE_DEVICES", "HIP's own: which of those this process sees, in which order"),
                Setting("CUDA_VISIBLE_DEVICES", "HIP's own: the same, where HIP_VISIBLE_DEVICES is not set"),
                Setting("HSA_OVERRIDE_GFX_VERSION", "the runtime's own: the architecture that devices are taken for"),
            ),
            profiles="hardpoint_rocm:profiles",
        )

    @hookimpl
    def hardpoint_detect(self, machine: Machine) -> Detection:
        """Look for traces of the hardware; only where there are some, read the kernel's files and ask amdsmi."""
        traces = find_traces(machine)
        if not traces:
            return Detection.absent("no AMD device: the kernel has no driver for one loaded")
        from hardpoint_rocm._detect import detect

        return detect(machine, traces[0])

    @hookimpl
    def hardpoint_report(self, machine: Machine) -> tuple[ReportSection, ...]:
        """Show to the doctor what was found."""
        from hardpoint_rocm._doctor import report

        return report(machine)


plugin = RocmPlugin()
