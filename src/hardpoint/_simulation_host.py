"""The processor of a simulated machine whose profiles are of accelerators only: what any server of the kind has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hardpoint._machine import Json

_CPU_COUNT: Final = 16
_MEMORY_BYTES: Final = 128 << 30

# The x86-64-v3 level of the psABI, in Linux's names: no accelerator's host of the last ten years has less.
_X86: Final = (
    "fpu cx8 cmov mmx fxsr sse sse2 syscall nx lm pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm "
    "fma movbe xsave avx f16c abm bmi1 avx2 bmi2"
)
# Armv8.2-A, with what every server core of that age has on top.
_ARM: Final = "fp asimd aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"


def generic_host(machine: Mapping[str, Json]) -> dict[str, dict[str, Json]]:
    """Facts for a machine of that system and architecture. Empty where nothing can be said: not Linux."""
    if machine.get("system", "Linux") != "Linux":
        return {}
    architecture = machine.get("architecture", "x86_64")
    records = {"x86_64": _x86_record, "aarch64": _arm_record}
    facts: dict[str, dict[str, Json]] = {
        "machine": {"cpu_count": _CPU_COUNT, "total_memory_bytes": _MEMORY_BYTES},
    }
    if architecture in records:
        count = machine.get("cpu_count", _CPU_COUNT)
        facts["files"] = {"/proc/cpuinfo": "".join(map(records[architecture], range(count)))}
    return facts


def _x86_record(number: int) -> str:
    return (
        f"processor\t: {number}\nvendor_id\t: unknown\nmodel name\t: generic x86-64 processor (simulated)\n"
        f"flags\t\t: {_X86}\n\n"
    )


def _arm_record(number: int) -> str:
    return (
        f"processor\t: {number}\nmodel name\t: generic Arm processor (simulated)\nFeatures\t: {_ARM}\n"
        "CPU architecture: 8\n\n"
    )
