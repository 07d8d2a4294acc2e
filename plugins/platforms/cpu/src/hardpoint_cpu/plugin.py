"""The light module: what the entry point names. Every machine has a CPU, so it is always usable, with one device.

That device is what torch calls ``cpu``: all that this process may use of the machine. NUMA nodes are data about it, not
devices of their own, since memory and threads may cross them.

What is imported from here counts in the start of every process. So the records inside this package are named tuples: a
frozen dataclass costs a millisecond to define, a named tuple a fifth of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint.hookspecs import Detection, PlatformSpec, Rank, hookimpl
from hardpoint_cpu._detect import detect

if TYPE_CHECKING:
    from hardpoint import Machine
    from hardpoint.hookspecs import ReportSection


class CpuPlugin:
    """The plugin of the platform ``cpu``."""

    @hookimpl
    def hardpoint_platform(self) -> PlatformSpec:
        """Describe the platform; it owns no settings."""
        return PlatformSpec(
            api=(1, 0), target="hardpoint_cpu.platform:CpuPlatform", rank=Rank.CPU, profiles="hardpoint_cpu:profiles"
        )

    @hookimpl
    def hardpoint_detect(self, machine: Machine) -> Detection:
        """Count what this process may use."""
        return detect(machine)

    @hookimpl
    def hardpoint_report(self, machine: Machine) -> tuple[ReportSection, ...]:
        """Show it to the doctor."""
        from hardpoint_cpu._doctor import report

        return report(machine)


plugin = CpuPlugin()
