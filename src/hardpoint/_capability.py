"""What a device can do: `DeviceCapability`, and the one parser of compute capabilities and of gfx names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCapability:
    """What a device can do. Features decide; numbers serve for floors only, inside one runtime.

    `runtime` is ``cuda``, ``rocm``, ``cpu``, ``neuron`` or a vendor's; `arch` is ``sm_90a``, ``gfx942``, ``x86-64-v4``;
    `major` and `minor` exist where the runtime has an ordered version; `features` are names such as ``bf16``, ``fp8``,
    ``amx_tile``. Comparing the versions of two runtimes, or where one has none, raises `CapabilityError`.
    """

    runtime: str
    arch: str
    major: int | None = None
    minor: int | None = None
    features: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", frozenset(self.features))
        if (self.major is None) != (self.minor is None):
            raise CapabilityError(f"{self.arch}: give both major and minor, or neither")

    @classmethod
    def parse(cls, value: object, *, runtime: str = "cuda", features: frozenset[str] = frozenset()) -> DeviceCapability:
        """Build a ``cuda``-like capability from any form that `parse_compute_capability` takes."""
        parsed = parse_compute_capability(value)
        return cls(runtime=runtime, arch=parsed.arch, major=parsed.major, minor=parsed.minor, features=features)

    @property
    def version(self) -> tuple[int, int] | None:
        """``(major, minor)``, or None where the runtime has no ordered version."""
        return None if self.major is None or self.minor is None else (self.major, self.minor)

    def _comparable(self, other: object) -> tuple[tuple[int, int], tuple[int, int]]:
        if not isinstance(other, DeviceCapability):
            raise CapabilityError(f"a device capability cannot be compared with {other!r}; use at_least(major, minor)")
        if self.runtime != other.runtime:
            raise CapabilityError(
                f"{self.runtime} {self.arch} and {other.runtime} {other.arch} are of different runtimes; "
                "compare features"
            )
        mine, theirs = self.version, other.version
        if mine is None or theirs is None:
            raise CapabilityError(f"capabilities of {self.runtime} have no order; compare architecture and features")
        return mine, theirs

    def __lt__(self, other: object) -> bool:
        mine, theirs = self._comparable(other)
        return mine < theirs

    def __le__(self, other: object) -> bool:
        mine, theirs = self._comparable(other)
        return mine <= theirs

    def __gt__(self, other: object) -> bool:
        mine, theirs = self._comparable(other)
        return mine > theirs

    def __ge__(self, other: object) -> bool:
        mine, theirs = self._comparable(other)
        return mine >= theirs

    def at_least(self, major: int, minor: int = 0) -> bool:
        """Whether the version reaches a floor. A runtime without versions raises `CapabilityError`."""
        if self.version is None:
            raise CapabilityError(f"{self.runtime} {self.arch} has no version to compare with {major}.{minor}")
        return self.version >= (major, minor)

    def __str__(self) -> str:
        return self.arch if self.version is None else f"{self.major}.{self.minor}"

    def as_dict(self) -> dict[str, Any]:  # Any: JSON
        return {
            "runtime": self.runtime,
            "arch": self.arch,
            "version": None if self.version is None else list(self.version),
            "features": sorted(self.features),
        }
