"""The processor, as the operating system shows it: what it is called, and which instructions may be used.

Only what the system has switched on counts, never the model's name: a virtual machine hides instructions, a kernel
without support for a register file does too, and an instruction that is not there ends the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hardpoint import Reason, ReasonCode
from hardpoint_cpu._architecture import ARM, BASELINE, X86, family_of, level_of, with_meanings
from hardpoint_cpu._cpuinfo import READ_LIMIT_BYTES, CpuInfo, common_words, parse_cpuinfo

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from hardpoint import Machine


_VENDORS: Final = {
    "GenuineIntel": "Intel",
    "AuthenticAMD": "AMD",
    "HygonGenuine": "Hygon",
    "CentaurHauls": "Zhaoxin",
    "Shanghai": "Zhaoxin",
    "IBM/S390": "IBM",
    # Arm's "CPU implementer".
    "0x41": "Arm",
    "0x46": "Fujitsu",
    "0x48": "HiSilicon",
    "0x4e": "NVIDIA",
    "0x51": "Qualcomm",
    "0x61": "Apple",
    "0xc0": "Ampere",
}

_FEATURE_KEYS: Final = {X86: "flags", "i386": "flags", "i686": "flags", "s390x": "features", "riscv64": "isa"}
"""Where cpuinfo has the features; Arm's kernels write ``Features``. A family that is not here shows none (POWER)."""


class Processor(NamedTuple):
    """`features` are Linux's flags and the names that mean the same everywhere; `notes` are for the report.

    `amx_refusal` says why AMX is left out though the silicon has it.
    """

    family: str
    arch: str
    features: frozenset[str]
    vendor: str
    name: str
    amx_refusal: str | None = None
    notes: tuple[Reason, ...] = ()


def read_processor(machine: Machine, cpus: AbstractSet[int] | None) -> Processor:
    """Ask the machine about the processor that has these CPUs (None: all of them).

    Where CPUs differ, a feature counts if all of these have it; others do not matter, as no thread may run there. Where
    nobody can be asked, the family's baseline is assumed, with one WARNING.
    """
    family = family_of(machine.architecture)
    notes: list[Reason] = []
    vendor = name = unknown = None
    flags: frozenset[str] = frozenset()
    try:
        if machine.system == "Darwin":
            flags, vendor, name = _ask_darwin(machine, family)
        elif machine.system == "Windows":
            name = machine.variable("PROCESSOR_IDENTIFIER")
            notes.append(
                _note("Windows does not list instruction sets: only what every CPU of the family has is assumed")
            )
        else:
            info = parse_cpuinfo(machine.read_text("/proc/cpuinfo", READ_LIMIT_BYTES))
            vendor, name = _names_of(info)
            key = _feature_key(family)
            words = None if key is None else common_words(info, key, cpus)
            if words is not None:
                flags = _riscv_extensions(words[0]) if key == "isa" else words[0]
                if words[1] and key != "isa":
                    notes.append(_note(f"not on every usable CPU, so left out: {', '.join(sorted(words[1]))}"))
            elif key is not None and family in BASELINE:
                unknown = f"/proc/cpuinfo has no line '{key}'"
    except OSError as error:
        unknown = f"{type(error).__name__}: {error}"
    if unknown is not None:
        message = f"the CPU's instruction sets cannot be read ({unknown}): only what every {family} has is assumed"
        # The logging package costs a tenth of a resolution: it is imported where there is something to say.
        import logging

        from hardpoint import log_once

        log_once(logging.getLogger("hardpoint.cpu"), logging.WARNING, "%s", message)
        notes.append(_note(message))
    refusal = _amx_refusal(machine) if "amx_tile" in flags else None
    if refusal is not None:
        flags = frozenset(flag for flag in flags if not flag.startswith("amx_"))
        notes.append(Reason(code=ReasonCode.PERMISSION, message=refusal))
    features = with_meanings(family, flags)
    return Processor(
        family=family,
        arch=level_of(family, features),
        features=features,
        vendor=_VENDORS.get(vendor or "", vendor) or "unknown",
        name=name or f"{family} CPU",
        amx_refusal=refusal,
        notes=tuple(notes),
    )


def _note(message: str) -> Reason:
    return Reason(code=ReasonCode.OTHER, message=message)


def _ask_darwin(machine: Machine, family: str) -> tuple[frozenset[str], str | None, str | None]:
    from hardpoint_cpu._darwin import features_of, read_sysctl

    values = read_sysctl(machine)
    vendor = values.get("machdep.cpu.vendor") or ("0x61" if family == ARM else None)
    return features_of(family, values), vendor, values.get("machdep.cpu.brand_string")


def _feature_key(family: str) -> str | None:
    return "features" if family.startswith(("arm", ARM)) else _FEATURE_KEYS.get(family)


def _riscv_extensions(words: frozenset[str]) -> frozenset[str]:
    """``rv64imafdcv_zicsr_zvfh``: the letters, of which ``v`` goes by its usual name ``rvv``, and the words."""
    extensions: set[str] = set()
    for word in words:
        letters, *longer = word.lower().split("_")
        if letters.startswith(("rv32", "rv64")):
            extensions.update("rvv" if letter == "v" else letter for letter in letters[4:])
            extensions.update(longer)
    return frozenset(item for item in extensions if item)


def _names_of(info: CpuInfo) -> tuple[str | None, str | None]:
    vendor = info.first("vendor_id", "cpu implementer")
    name = info.first("model name", "cpu", "uarch")
    part = info.first("cpu part")
    if name is None and part is not None:
        # Arm's kernels write no name.
        name = f"{_VENDORS.get(vendor or '', vendor or 'Arm')} CPU part {part}"
    return vendor, name


def _amx_refusal(machine: Machine) -> str | None:
    """Why tiles may not be used; None: they may be asked for, which happens when the kernels are imported."""
    try:
        offered = machine.probe("cpu.amx", "hardpoint_cpu._amx:supported_tiles")
    except (ImportError, OSError) as error:
        text = str(error)
        return text if text.startswith("AMX not permitted") else f"AMX not permitted: {type(error).__name__}: {text}"
    return None if offered is True else "AMX not permitted: the kernel offers no tile state to processes"
