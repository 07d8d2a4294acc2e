"""The light module: what the entry point names.

What is imported from here counts in the start of every process, also where there is no Neuron hardware. So `_traces` is
all that detection loads before it has seen some.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint.hookspecs import Detection, PlatformSpec, Rank, Setting, hookimpl
from hardpoint_neuron._traces import NUM_CORES, SIZE_NAMES, VISIBLE_CORES, compile_only, find_traces

if TYPE_CHECKING:
    from hardpoint import Machine
    from hardpoint.hookspecs import ReportSection


class NeuronPlugin:
    """The plugin of the platform ``neuron``."""

    @hookimpl
    def hardpoint_platform(self) -> PlatformSpec:
        """Describe the platform and the variables that its answers depend on."""
        return PlatformSpec(
            api=(1, 0),
            target="hardpoint_neuron.platform:NeuronPlatform",
            rank=Rank.IN_TREE,
            settings=(
                Setting(VISIBLE_CORES, "the runtime's own: which cores this process uses (0-3,5)"),
                Setting(
                    NUM_CORES, "the runtime's own: how many cores it takes where none are named", "0, which is all"
                ),
                *(Setting(name, "the runtime's own: how many cores form a logical one") for name in SIZE_NAMES),
            ),
            profiles="hardpoint_neuron:profiles",
        )

    @hookimpl
    def hardpoint_detect(self, machine: Machine) -> Detection:
        """Look for device nodes and the driver; only where there is one of them, read sysfs and run ``neuron-ls``."""
        traces = find_traces(machine)
        if not traces.nodes and not traces.driver:
            return compile_only(machine) or Detection.absent("no Neuron device: neither device nodes nor a driver")
        from hardpoint_neuron._detect import detect

        return detect(machine, traces)

    @hookimpl
    def hardpoint_report(self, machine: Machine) -> tuple[ReportSection, ...]:
        """Show to the doctor what was found."""
        from hardpoint_neuron._doctor import report

        return report(machine)


plugin = NeuronPlugin()
