"""What a device can do: `DeviceCapability`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hardpoint.errors import CapabilityError


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
        """Build a ``cuda``-like capability from any form that `hardpoint.parse_compute_capability` takes."""
        from hardpoint._capability_names import parse_compute_capability

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
