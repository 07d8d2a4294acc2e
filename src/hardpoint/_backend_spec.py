"""The descriptor of a backend plugin, and a section of the doctor's report; public through `hardpoint.hookspecs`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hardpoint.attention import AttentionSupport
    from hardpoint.hookspecs import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Where a backend wants to stand that a platform's own table does not know: before or after named ones.

    `platforms` limits the wish to these platforms (empty: all).
    """

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec:
    """A backend's descriptor.

    - `kind`: ``attention`` or ``mla_attention``.
    - `platforms`: names of platforms, or ``torch-device``: any platform that declares `torch_features` (see
    `Platform`).
    - `target`: the lazy ``"package.module:Class"`` of an `AttentionBackend`.
    - `requires`: requirement specifiers of packages, checked from metadata before anything is imported.
    - `kernel_modules`: names or groups of the platform's kernel modules that it needs.
    - `kernel_architectures`: architectures its binaries were built for (``sm_90a``, ``gfx942``; a trailing ``*`` is a
      prefix); empty: not stated.
    - `support`: the declared support.
    """

    kind: str
    platforms: tuple[str, ...]
    target: str
    support: AttentionSupport
    api: tuple[int, int] | None = None
    requires: tuple[str, ...] = ()
    kernel_modules: tuple[str, ...] = ()
    kernel_architectures: tuple[str, ...] = ()
    torch_features: tuple[str, ...] = ()
    order: Order = field(default_factory=Order)
    settings: tuple[Setting, ...] = ()
    replaces: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSection:
    """A section that a plugin adds to the doctor's report: a title and lines of ``(label, value)``."""

    title: str
    lines: tuple[tuple[str, str], ...]
