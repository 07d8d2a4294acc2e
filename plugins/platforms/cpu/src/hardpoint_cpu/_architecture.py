"""Instruction-set architectures: families, what each guarantees, and the levels inside one."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

X86: Final = "x86_64"
ARM: Final = "aarch64"

_FAMILIES: Final = {"amd64": X86, "x64": X86, "x86-64": X86, "arm64": ARM}
"""What other systems call them; every other name is its own family."""

BASELINE: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        X86: frozenset(["cmov", "cx8", "fpu", "fxsr", "lm", "mmx", "sse", "sse2", "syscall"]),
        # Armv8-A without them exists on paper; no Linux, macOS or Windows runs on it.
        ARM: frozenset(("asimd", "fp")),
        # The little-endian ABI begins at POWER8.
        "ppc64le": frozenset(("altivec", "vsx")),
    }
)
"""Features that every CPU of a family has: what is assumed where nobody can be asked."""

_V2: Final = frozenset(["cx16", "lahf_lm", "pni", "popcnt", "sse4_1", "sse4_2", "ssse3"])
_V3: Final = _V2 | frozenset(["abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"])
_V4: Final = _V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])
_V8_1: Final = frozenset(("atomics", "asimdrdm"))
_V8_2: Final = _V8_1 | {"dcpop"}
_V8_4: Final = _V8_2 | frozenset(["asimddp", "fcma", "flagm", "ilrcpc", "jscvt", "lrcpc", "uscat"])
_V8_6: Final = _V8_4 | frozenset(["bf16", "frint", "i8mm", "sb"])
_V9: Final = _V8_4 | frozenset(["frint", "sb", "sve2"])

_LEVELS: Final[Mapping[str, tuple[tuple[str, frozenset[str]], ...]]] = MappingProxyType(
    {
        # The x86-64 psABI's levels, in Linux's names (pni: SSE3, abm: LZCNT, xsave: OSXSAVE).
        X86: (("x86-64-v4", _V4), ("x86-64-v3", _V3), ("x86-64-v2", _V2), ("x86-64", frozenset())),
        # Arm's versions, by those of their mandatory features that Linux shows.
        ARM: (
            ("armv9-a", _V9),
            ("armv8.6-a", _V8_6),
            ("armv8.4-a", _V8_4),
            ("armv8.2-a", _V8_2),
            ("armv8.1-a", _V8_1),
            ("armv8-a", frozenset()),
        ),
    }
)

_MEANINGS: Final[Mapping[str, tuple[tuple[str, frozenset[str]], ...]]] = MappingProxyType(
    {
        X86: (
            ("bf16", frozenset(("avx512_bf16",))),
            ("bf16", frozenset(("amx_tile", "amx_bf16"))),
            ("fp16", frozenset(("avx512_fp16",))),
        ),
        ARM: (("fp16", frozenset(("fphp", "asimdhp"))),),
    }
)
"""Names that mean the same on every family, and the flags that stand for them. Arm's own flag is already ``bf16``."""


def family_of(architecture: str) -> str:
    """The family of what `platform.machine` says; ``unknown`` where it says nothing."""
    name = architecture.strip().lower()
    return _FAMILIES.get(name, name) or "unknown"


def with_meanings(family: str, flags: frozenset[str]) -> frozenset[str]:
    """The flags, with what the family guarantees and the names that mean the same everywhere."""
    meanings = (name for name, needed in _MEANINGS.get(family, ()) if needed <= flags)
    return flags | BASELINE.get(family, frozenset()) | frozenset(meanings)


def level_of(family: str, features: frozenset[str]) -> str:
    """The highest level whose features are all there (``x86-64-v3``, ``armv8.2-a``); without levels, the family."""
    return next((name for name, needed in _LEVELS.get(family, ()) if needed <= features), family)
