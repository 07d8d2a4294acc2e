"""Names of AMD architectures, and what a device of each can do. Numbers appear here and nowhere else."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from hardpoint import DeviceCapability, normalise_gfx
from hardpoint.errors import CapabilityError

_GENERIC: Final = re.compile(r"gfx(\d{1,2})(?:-(\d))?-generic\Z", re.ASCII)
_EXACT: Final = re.compile(r"gfx([1-9]|[1-9]\d)([0-9a-f])([0-9a-f])\Z", re.ASCII)

_OVERRIDE: Final = re.compile(r"\s*(\d{1,3})\.\s*(\d{1,3})\.\s*(\d{1,3})\Z", re.ASCII)


class Arch(NamedTuple):
    """A parsed name. `name` is bare (``gfx942``), `options` what followed it (``sramecc+``).

    Of a generic target (``gfx9-4-generic``) stepping, and where it has none minor, are None.
    """

    name: str
    major: int
    minor: int | None
    stepping: int | None
    options: frozenset[str] = frozenset()

    @property
    def family(self) -> str | None:
        """What AMD calls its kind: ``CDNA3``, ``RDNA4``; None: neither, or not known here."""
        return next((name for name, arches in _FAMILIES.items() if self.matches(arches)), None)

    def matches(self, arches: str) -> bool:
        """Whether the name begins with one of those, given as in ``gfx94 gfx950``; a generic one by what it has."""
        bare = self.name.removesuffix("-generic").replace("-", "")
        return any(bare.startswith(prefix) for prefix in arches.split())


_FAMILIES: Final = {
    # LLVM's user guide for AMDGPU, "Processors", and AMD's table of GPUs in ROCm's documentation.
    "CDNA1": "gfx908",
    "CDNA2": "gfx90a",
    "CDNA3": "gfx94",
    "CDNA4": "gfx95",
    "CDNA5": "gfx125",
    "RDNA1": "gfx101",
    "RDNA2": "gfx103",
    "RDNA3.5": "gfx115",
    "RDNA3": "gfx11",
    "RDNA4": "gfx12",
}

_FEATURES: Final = {
    # By feature the architectures that have it (LLVM's subtarget features; AMD's guides to the instruction sets).
    "fp16": "gfx9 gfx10 gfx11 gfx12",
    "fp64": "gfx9 gfx10 gfx11 gfx12",
    "wave64": "gfx9",
    "wave32": "gfx10 gfx11 gfx12",
    "bf16": "gfx908 gfx90a gfx94 gfx95 gfx11 gfx12",
    "mfma": "gfx908 gfx90a gfx94 gfx95",
    "wmma": "gfx11 gfx12",
    "xf32": "gfx94",
    "int8_matrix": "gfx908 gfx90a gfx94 gfx95 gfx11 gfx12",
    # The older encoding of 8 bits, without negative zero and infinity, is of one generation; OCP's of those after it.
    "fp8": "gfx94 gfx95 gfx12",
    "fp8_fnuz": "gfx94",
    "fp8_ocp": "gfx95 gfx12",
    "fp6": "gfx95 gfx125",
    "fp4": "gfx95 gfx125",
    "mx": "gfx95 gfx125",
}


def parse_arch(value: object) -> Arch | None:
    """``gfx942:sramecc+:xnack-``, ``GFX90A``, ``gfx11-generic``; None for what is no such name.

    ``gfx000``, which tools print for a CPU, is none.
    """
    try:
        name, options = normalise_gfx(value)
    except CapabilityError:
        return None
    if found := _EXACT.match(name):
        return Arch(name, int(found[1]), int(found[2], 16), int(found[3], 16), options)
    if found := _GENERIC.match(name):
        return Arch(name, int(found[1]), None if found[2] is None else int(found[2]), None, options)
    return None


def arch_of_version(number: object) -> Arch | None:
    """By the kernel's ``gfx_target_version``: two decimal digits each for minor and stepping, 90402 is gfx942.

    In a name each of the two is one hexadecimal digit, so 90010 is gfx90a. None: a CPU's 0, or no such number.
    """
    if type(number) is not int or number < 10000:
        return None
    return _named(number // 10000, number // 100 % 100, number % 100)


def arch_of_override(text: str | None) -> Arch | None:
    """By ``HSA_OVERRIDE_GFX_VERSION``, ``10.3.0``; None where it names no architecture."""
    found = _OVERRIDE.match(text) if text else None
    return None if found is None else _named(*(int(part) for part in found.groups()))


def is_override_valid(text: str) -> bool:
    """Whether the runtime takes it: three decimal numbers up to 63, 255 and 255, and nothing after them, no space.

    Where it does not, ROCr's thunk ends the reading of that node with an error, and HIP finds no device at all; it says
    so only with ``HSAKMT_DEBUG_LEVEL=3``. Source: ``libhsakmt/src/topology.c`` of ROCm.
    """
    found = _OVERRIDE.match(text)
    return found is not None and all(int(part) <= top for part, top in zip(found.groups(), (63, 255, 255), strict=True))


def _named(major: int, minor: int, stepping: int) -> Arch | None:
    if minor > 15 or stepping > 15:
        return None
    return parse_arch(f"gfx{major}{minor:x}{stepping:x}")


def capability_of(arch: Arch | None) -> DeviceCapability | None:
    """Architecture and named features; no version, since AMD's have no order. None: unknown."""
    if arch is None:
        return None
    features = frozenset(name for name, arches in _FEATURES.items() if arch.matches(arches))
    return DeviceCapability(runtime="rocm", arch=arch.name, features=features)
