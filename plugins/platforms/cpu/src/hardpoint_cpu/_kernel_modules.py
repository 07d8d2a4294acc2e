"""The native kernel modules: what each is built with, and which of them this CPU can run.

A module whose instructions are not switched on would end the process with SIGILL at its first call, which nobody can
catch. So each says here what it needs, and one that needs more than there is, or is built for another family, is listed
with that reason and never loaded. They come with the distribution ``hardpoint-cpu-native``, which has to export from
each module the operators that are promised here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hardpoint import Reason, ReasonCode
from hardpoint_cpu._architecture import ARM, X86

if TYPE_CHECKING:
    from hardpoint import KernelModule
    from hardpoint.hookspecs import Device

GROUP: Final = "cpu_native"
"""Alternatives: the first that imports is taken, and backends name the group."""

DISTRIBUTION: Final = "hardpoint-cpu-native"

OPERATORS: Final = ("write_kv_cache", "attention")
"""What every module of the group has to export."""


class _Build(NamedTuple):
    name: str
    family: str
    features: tuple[str, ...]
    setup: str | None = None


_AVX2: Final = ("avx2", "fma", "f16c")
_AVX512: Final = (*_AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl")
_AVX512_BF16: Final = (*_AVX512, "avx512_bf16")

BUILDS: Final = (
    # Widest first. Tiles multiply; around them is AVX-512, whose bfloat16 conversions feed them.
    _Build(
        name="hardpoint_cpu_native._amx",
        family=X86,
        features=(*_AVX512_BF16, "avx512vbmi", "amx_tile", "amx_bf16", "amx_int8"),
        setup="hardpoint_cpu._amx:request_permission",
    ),
    _Build(name="hardpoint_cpu_native._avx512_bf16", family=X86, features=_AVX512_BF16),
    _Build(name="hardpoint_cpu_native._avx512", family=X86, features=_AVX512),
    _Build(name="hardpoint_cpu_native._avx2", family=X86, features=_AVX2),
    # Built for Armv8.2-A, whose atomics and rounding products the compiler uses, with half precision and BF16.
    _Build(
        name="hardpoint_cpu_native._neon",
        family=ARM,
        features=("asimd", "atomics", "asimdrdm", "fphp", "asimdhp", "bf16"),
    ),
)


def kernel_modules(device: Device) -> tuple[KernelModule, ...]:
    """All of them, those that cannot run here with the reason."""
    from hardpoint import KernelModule

    return tuple(
        KernelModule(
            name=build.name,
            operators=OPERATORS,
            group=GROUP,
            distribution=DISTRIBUTION,
            unsupported=_why_not(build, device),
            setup=build.setup,
        )
        for build in BUILDS
    )


def _why_not(build: _Build, device: Device) -> Reason | None:
    family = device.properties.get("family")
    capability = device.capability
    if family is None or capability is None:
        return Reason(
            code=ReasonCode.CAPABILITY,
            message=f"{build.name} is built for {build.family}; what this CPU is, is unknown",
            accepted=build.family,
        )
    if family != build.family:
        return Reason(
            code=ReasonCode.KERNEL_ARCH,
            message=f"{build.name} is built for {build.family}; this CPU is {family}",
            requested=str(family),
            accepted=build.family,
        )
    missing = tuple(name for name in build.features if name not in capability.features)
    if not missing:
        return None
    refusal = device.properties.get("amx_refusal")
    if refusal is not None and all(name.startswith("amx_") for name in missing):
        return Reason(code=ReasonCode.PERMISSION, message=str(refusal), requested=missing)
    return Reason(
        code=ReasonCode.CAPABILITY,
        message=f"{build.name} needs {', '.join(missing)}, which the system does not show on every usable CPU",
        requested=missing,
        accepted=f"a CPU with {', '.join(build.features)}",
    )
