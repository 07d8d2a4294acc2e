"""What macOS tells through ``sysctl``, in Linux's names for the features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hardpoint_cpu._architecture import ARM

if TYPE_CHECKING:
    from hardpoint import Machine

_ARM: Final = {
    "hw.optional.advsimd": "asimd",
    "hw.optional.arm.feat_bf16": "bf16",
    "hw.optional.arm.feat_dotprod": "asimddp",
    "hw.optional.arm.feat_dpb": "dcpop",
    "hw.optional.arm.feat_fcma": "fcma",
    "hw.optional.arm.feat_fhm": "asimdfhm",
    "hw.optional.arm.feat_flagm": "flagm",
    "hw.optional.arm.feat_frintts": "frint",
    "hw.optional.arm.feat_i8mm": "i8mm",
    "hw.optional.arm.feat_jscvt": "jscvt",
    "hw.optional.arm.feat_lrcpc": "lrcpc",
    "hw.optional.arm.feat_lrcpc2": "ilrcpc",
    "hw.optional.arm.feat_lse": "atomics",
    "hw.optional.arm.feat_lse2": "uscat",
    "hw.optional.arm.feat_rdm": "asimdrdm",
    "hw.optional.arm.feat_sb": "sb",
    "hw.optional.arm.feat_sme": "sme",
}
_X86: Final = {
    "hw.optional.avx1_0": "avx",
    "hw.optional.avx2_0": "avx2",
    "hw.optional.avx512bw": "avx512bw",
    "hw.optional.avx512cd": "avx512cd",
    "hw.optional.avx512dq": "avx512dq",
    "hw.optional.avx512f": "avx512f",
    "hw.optional.avx512vl": "avx512vl",
    "hw.optional.bmi1": "bmi1",
    "hw.optional.bmi2": "bmi2",
    "hw.optional.f16c": "f16c",
    "hw.optional.fma": "fma",
    "hw.optional.sse3": "pni",
    "hw.optional.sse4_1": "sse4_1",
    "hw.optional.sse4_2": "sse4_2",
    "hw.optional.supplementalsse3": "ssse3",
}
_X86_WORDS: Final = {
    "CX16": "cx16",
    "LAHF": "lahf_lm",
    "LZCNT": "abm",
    "MOVBE": "movbe",
    "OSXSAVE": "xsave",
    "POPCNT": "popcnt",
}
"""Features that only the list of CPUID words has."""


def read_sysctl(machine: Machine) -> dict[str, str]:
    """``hw.optional`` and ``machdep.cpu``, keys in lower case. Errors: `OSError` where sysctl cannot be asked."""
    # A key that this macOS lacks makes sysctl end with 1, and the rest is printed all the same.
    text = machine.run_tool(["sysctl", "hw.optional", "machdep.cpu"]).stdout
    values = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            values[key.strip().lower()] = value.strip()
    if not values:
        raise OSError("sysctl printed nothing")
    return values


def features_of(family: str, values: dict[str, str]) -> frozenset[str]:
    """The features that are switched on."""
    if family == ARM:
        features = {name for key, name in _ARM.items() if values.get(key) == "1"}
        if values.get("hw.optional.arm.feat_fp16", values.get("hw.optional.neon_fp16")) == "1":
            features |= {"fphp", "asimdhp"}
        return frozenset(features)
    words = {word for key in ("features", "extfeatures") for word in values.get(f"machdep.cpu.{key}", "").split()}
    switched = {name for key, name in _X86.items() if values.get(key) == "1"}
    return frozenset(switched | {name for word, name in _X86_WORDS.items() if word in words})
