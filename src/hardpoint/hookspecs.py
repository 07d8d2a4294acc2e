"""What a plugin hands to Hardpoint: the hooks, and the descriptors they return.

A platform plugin is two files and an entry point, ``my_device = "my_vendor.plugin:plugin"`` in the group
``hardpoint.platforms``. `plugin.py` is light: standard library and `hardpoint` only. ::

    from hardpoint import DeviceCapability
    from hardpoint.hookspecs import Detection, Device, PlatformSpec, hookimpl

    class Plugin:
        @hookimpl
        def hardpoint_platform(self):
            return PlatformSpec(api=(1, 0), target="my_vendor.platform:MyPlatform")

        @hookimpl
        def hardpoint_detect(self, machine):
            if not machine.exists("/dev/my_device0"):
                return Detection.absent("no device node /dev/my_device0")
            capability = DeviceCapability(runtime="my_device", arch="md1", features=frozenset({"bf16"}))
            return Detection.usable([Device(index=0, physical_id=0, name="My Device", capability=capability)])

    plugin = Plugin()

`platform.py` holds the class named by `target`, a subclass of `hardpoint.platforms.Platform` whose `name` is the entry
point's; it may import torch. A backend plugin is the same in the group ``hardpoint.backends``. What its support does
not mention is accepted in its neutral value alone (no window, no sinks, …), so a short support is a true one. ::

    from hardpoint.attention import ANYTHING, AttentionSupport, AttentionVariant, Integers, OneOf
    from hardpoint.hookspecs import BackendSpec, hookimpl

    class Plugin:
        @hookimpl
        def hardpoint_backend(self):
            variant = AttentionVariant(
                head_size=Integers(multiple_of=8, maximum=256),
                num_kv_heads=ANYTHING,
                dtype=OneOf("bfloat16"),
                block_size=OneOf(16, 32),
            )
            return BackendSpec(
                api=(1, 0),
                kind="attention",
                platforms=("my_device",),
                target="my_vendor.attention:MyBackend",
                support=AttentionSupport((variant,)),
                requires=("torch>=2.6",),
            )

    plugin = Plugin()

`attention.py` holds that subclass of `hardpoint.attention.AttentionBackend`. Hook functions are called one at a time;
wrappers are refused. `examples/vendor_plugin` in the repository is a whole vendor, both plugins, to copy from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pluggy

from hardpoint._reasons import Reason, ReasonCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hardpoint._backend_spec import BackendSpec as BackendSpec
    from hardpoint._backend_spec import Order as Order
    from hardpoint._backend_spec import ReportSection as ReportSection
    from hardpoint._capability import DeviceCapability
    from hardpoint._machine import Machine

API_VERSION: Final = (1, 0)
"""The plugin contract's version. A plugin of an equal major and a minor not newer than this is taken."""

PROJECT: Final = "hardpoint"
hookspec: Final = pluggy.HookspecMarker(PROJECT)
hookimpl: Final = pluggy.HookimplMarker(PROJECT)


class Rank(IntEnum):
    """Who wins among usable platforms: the lowest number. Two usable ones of the same rank are an error."""

    VENDOR = 0
    IN_TREE = 1
    CPU = 2
    """Always usable, never a rival of an accelerator."""


class Setting(NamedTuple):
    """An environment variable that a plugin owns, under its own prefix; the doctor lists it."""

    name: str
    description: str
    default: str | None = None


class PlatformSpec(NamedTuple):
    """A platform's descriptor.

    `api` is the contract version it was written for; `target` the lazy ``"package.module:Class"``; `replaces` the name
    of the distribution whose plugin of the same name this one supersedes; `profiles` a resource folder
    ``"package:folder"`` with device profiles for `hardpoint.simulate`: JSON files in the format of
    `hardpoint._profile_format`. The package is not imported to read them.
    """

    target: str
    api: tuple[int, int] | None = None
    rank: Rank = Rank.VENDOR
    settings: tuple[Setting, ...] = ()
    replaces: str | None = None
    profiles: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One detected device. Unknown is None, never 0 or a made-up constant.

    `index` is the logical number under the current mask, `visible_id` how the mask names it, `physical_id` the
    machine's own number or id for it.
    """

    index: int
    name: str
    capability: DeviceCapability | None = None
    physical_id: int | str | None = None
    visible_id: str | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None
    total_memory_bytes: int | None = None
    numa_node: int | None = None
    properties: Mapping[str, str | int | float | bool | None] = field(default_factory=dict, hash=False)

    def as_dict(self) -> dict[str, Any]:  # Any: JSON
        """Everything known about the device, for the report."""
        data = {
            name: getattr(self, name)
            for name in (
                "index",
                "name",
                "physical_id",
                "visible_id",
                "uuid",
                "pci_bus_id",
                "total_memory_bytes",
                "numa_node",
            )
        }
        data["capability"] = None if self.capability is None else self.capability.as_dict()
        data["properties"] = dict(sorted(self.properties.items()))
        return data


class DetectionStatus(StrEnum):
    """What a platform plugin says about a machine."""

    ABSENT = "absent"
    UNUSABLE = "unusable"
    USABLE = "usable"


class Detection(NamedTuple):
    """A platform plugin's answer about a machine. Use the class methods `absent`, `unusable`, `usable`.

    `notes` are observations about a usable machine that the report shows (``no NVML``).
    """

    status: DetectionStatus
    devices: tuple[Device, ...] = ()
    reasons: tuple[Reason, ...] = ()
    notes: tuple[Reason, ...] = ()

    @classmethod
    def absent(cls, reason: str | Reason, *more: str | Reason) -> Detection:
        """No such hardware here, and why that is believed."""
        reasons = tuple(as_reason(item, ReasonCode.NO_DEVICE) for item in (reason, *more))
        return cls(status=DetectionStatus.ABSENT, reasons=reasons)

    @classmethod
    def unusable(cls, *reasons: str | Reason, devices: Sequence[Device] = ()) -> Detection:
        """Hardware is there and cannot be used, for these reasons (at least one).

        Losing it to another platform is a WARNING, unless each reason is ``masked`` and has no remedy: then hiding all
        of it was the user's wish. A mask that is a mistake has one.
        """
        if not reasons:
            raise ValueError("Detection.unusable needs at least one reason")
        return cls(
            status=DetectionStatus.UNUSABLE,
            devices=tuple(devices),
            reasons=tuple(as_reason(item, ReasonCode.OTHER) for item in reasons),
        )

    @classmethod
    def usable(cls, devices: Sequence[Device], *, notes: Sequence[str | Reason] = ()) -> Detection:
        """These devices, at least one, numbered 0, 1, … in logical order."""
        devices = tuple(devices)
        if [device.index for device in devices] != list(range(len(devices))) or not devices:
            found = [device.index for device in devices]
            raise ValueError(f"Detection.usable needs devices numbered 0, 1, … in order; got {found}")
        return cls(
            status=DetectionStatus.USABLE,
            devices=devices,
            notes=tuple(as_reason(item, ReasonCode.OTHER) for item in notes),
        )


def as_reason(item: str | Reason, code: ReasonCode = ReasonCode.OTHER) -> Reason:
    """A plain sentence as a `Reason` of that code; a `Reason` as it is."""
    return item if isinstance(item, Reason) else Reason(code=code, message=str(item))


class HookSpecs:
    """The hooks. Everything but `hardpoint_report` is mandatory for a plugin of its kind."""

    @hookspec
    def hardpoint_platform(self) -> PlatformSpec:
        """Describe the platform. Called once, at load; may not touch the machine."""
        raise NotImplementedError

    @hookspec
    def hardpoint_detect(self, machine: Machine) -> Detection:
        """Ask the machine. Queries only, never a compute context; environment failures may be raised."""
        raise NotImplementedError

    @hookspec
    def hardpoint_backend(self) -> BackendSpec:
        """Describe the backend. Called once, at load; may not touch the machine."""
        raise NotImplementedError

    @hookspec
    def hardpoint_report(self, machine: Machine) -> Sequence[ReportSection]:
        """Sections for the doctor. Optional."""
        raise NotImplementedError


_LATE: Final = ("BackendSpec", "Order", "ReportSection")


def __getattr__(name: str) -> object:
    # Resolving a platform needs none of these, and every class costs a fraction of a millisecond of start-up.
    if name in _LATE:
        from hardpoint import _backend_spec

        value: object = getattr(_backend_spec, name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
