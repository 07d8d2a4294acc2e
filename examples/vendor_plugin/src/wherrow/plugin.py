"""The light module: what both entry points name. Standard library and `hardpoint` only.

What is imported at the top here counts in the start of every process, also where there is no such device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint.hookspecs import Detection, PlatformSpec, Setting, hookimpl
from wherrow._nodes import ROOT, VISIBLE, node, numbers

if TYPE_CHECKING:
    from hardpoint import BackendSpec, Machine
    from hardpoint.hookspecs import ReportSection

API = (1, 0)


class WherrowPlugin:
    """The platform ``wherrow``."""

    @hookimpl
    def hardpoint_platform(self) -> PlatformSpec:
        """Describe the platform, and the variables that its answers depend on."""
        return PlatformSpec(
            api=API,
            target="wherrow.platform:WherrowPlatform",
            settings=(
                Setting(ROOT, "the folder in which the driver is installed, with dev/ and lib/", "/"),
                Setting(VISIBLE, "numbers of the devices that this process sees, in this order", "all"),
            ),
            profiles="wherrow:profiles",
        )

    @hookimpl
    def hardpoint_detect(self, machine: Machine) -> Detection:
        """Look for device nodes; only where there are some, ask the driver."""
        if not numbers(machine):
            return Detection.absent(f"no device node {node(machine, 0)}")
        from wherrow._detect import detect

        return detect(machine)

    @hookimpl
    def hardpoint_report(self, machine: Machine) -> tuple[ReportSection, ...]:
        """Show to the doctor what was found."""
        from wherrow._detect import report

        return report(machine)


class WherrowAttentionPlugin:
    """The backend ``wherrow_attention``. A plugin is one object with the hooks of its kind."""

    @hookimpl
    def hardpoint_backend(self) -> BackendSpec:
        """What it runs on, what it needs, what it can do."""
        from hardpoint.attention import ANYTHING, AttentionSupport, AttentionVariant, Integers, OneOf
        from hardpoint.hookspecs import BackendSpec

        return BackendSpec(
            api=API,
            kind="attention",
            platforms=("wherrow",),
            target="wherrow.attention:WherrowAttention",
            requires=("torch>=2.13",),
            kernel_modules=("wherrow.kernels",),
            support=AttentionSupport(
                (
                    AttentionVariant(
                        runtimes=("wherrow",),
                        features=("paged_attention",),
                        head_size=Integers(multiple_of=8),
                        num_kv_heads=ANYTHING,
                        dtype=OneOf("float32", "bfloat16"),
                        kv_cache_dtype=OneOf("auto", "float32", "bfloat16"),
                        block_size=Integers(multiple_of=8),
                    ),
                )
            ),
        )


platform_plugin = WherrowPlugin()
backend_plugin = WherrowAttentionPlugin()
