"""The one parser of compute capabilities (``sm_90a``), and the one of AMD architecture names (``gfx90a:xnack-``)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hardpoint.errors import CapabilityError

_DOTTED = re.compile(r"(\d+)\.(\d+)([a-z]?)\Z", re.ASCII)
_COMPACT = re.compile(r"(?:sm_|compute_)?(\d{2,})([a-z]?)\Z", re.ASCII)
_GFX = re.compile(r"gfx(?:\d{1,2}-(?:\d-)?generic|[0-9a-f]{3,})\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class ComputeCapability:
    """A parsed CUDA compute capability: ``sm_103a`` is major 10, minor 3, suffix ``a``."""

    major: int
    minor: int
    suffix: str = ""

    def as_int(self) -> int:
        """The two-digit encoding, ``9.0`` as 90. It has no room for a minor of 10: that raises `CapabilityError`."""
        if self.minor > 9:
            raise CapabilityError(
                f"compute capability {self.major}.{self.minor} has no two-digit form: the minor number is above 9"
            )
        return self.major * 10 + self.minor

    @property
    def arch(self) -> str:
        """``sm_90a``."""
        return f"sm_{self.as_int()}{self.suffix}"

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}{self.suffix}"


def parse_compute_capability(value: object) -> ComputeCapability:
    """Parse ``'7.5'``, ``'sm_90a'``, ``'121'``, ``120`` or ``(9, 0)``; anything else raises `CapabilityError`.

    In the compact form the last digit is the minor number (NVIDIA's ``sm_`` names), so ``120`` is 12.0, never 1.20.
    """
    if isinstance(value, ComputeCapability):
        return value
    if isinstance(value, tuple) and len(value) == 2 and all(type(part) is int and part >= 0 for part in value):
        return ComputeCapability(*value)
    if type(value) is int and value >= 0:
        value = str(value)
    if isinstance(value, str):
        text = value.strip().lower()
        if match := _DOTTED.match(text):
            return ComputeCapability(int(match[1]), int(match[2]), match[3])
        if match := _COMPACT.match(text):
            return ComputeCapability(int(match[1][:-1]), int(match[1][-1]), match[2])
    raise CapabilityError(f"{value!r} is not a compute capability; write it like '9.0', 'sm_90a', 90 or (9, 0)")


def normalise_gfx(name: object) -> tuple[str, frozenset[str]]:
    """Split an AMD target id: ``gfx90a:sramecc+:xnack-`` is ``('gfx90a', {'sramecc+', 'xnack-'})``.

    Generic targets (``gfx9-4-generic``) pass; anything that is no gfx name raises `CapabilityError`.
    """
    if isinstance(name, str):
        base, *options = name.strip().lower().split(":")
        if _GFX.match(base) and all(option[:-1].isalnum() and option[-1:] in "+-" for option in options):
            return base, frozenset(options)
    raise CapabilityError(f"{name!r} is not an AMD architecture; write it like 'gfx942' or 'gfx90a:sramecc+:xnack-'")
