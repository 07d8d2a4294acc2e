"""What the driver publishes about a device in sysfs, read as text that may hold anything.

``core_count`` and ``connected_devices`` are for root alone (mode 0400 in the driver), so cores are counted by their
folders, which everybody may list. Source: the driver's ``neuron_cdev.c`` and ``neuron_sysfs_metrics.c``, and AWS's
sysfs guide. Driver 2.31 moved files about, and a later one may: what is not found is unknown.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from hardpoint_neuron._generations import Generation, generation_of_instance, generation_of_name
from hardpoint_neuron._traces import SYSFS, number_of

if TYPE_CHECKING:
    from hardpoint import Machine

MAX_CORES: Final = 128
_CORE: Final = "neuron_core"
_LIMIT: Final = 4096
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9 ._-]{0,63}\Z", re.ASCII)
_VERSION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}\Z", re.ASCII)


class SysfsDevice(NamedTuple):
    """Unknown is None. `cores`: physical ones. `problem`: why nothing is known at all."""

    cores: int | None = None
    name: str | None = None
    generation: Generation | None = None
    connected: tuple[int, ...] | None = None
    problem: str | None = None


def list_devices(machine: Machine) -> tuple[int, ...]:
    """The numbers of the devices that the driver has."""
    try:
        names = machine.list_directory(SYSFS)
    except OSError:
        return ()
    return tuple(sorted(number for name in names if (number := number_of(name, "neuron")) is not None))


def read_device(machine: Machine, number: int) -> SysfsDevice:
    """Everything about one device: three questions, one more each where it has no folders of cores or no known name."""
    folder = f"{SYSFS}/neuron{number}"
    try:
        names = machine.list_directory(folder)
    except OSError as error:
        return SysfsDevice(problem=f"sysfs: {type(error).__name__}: {error}")
    folders = sum(number_of(name, _CORE) is not None for name in names)
    cores = folders or _as_count(_read(machine, f"{folder}/core_count"))
    name, generation = _read_name(machine, folder)
    return SysfsDevice(
        cores=cores if cores is not None and cores <= MAX_CORES else None,
        name=name,
        generation=generation,
        connected=_as_numbers(_read(machine, f"{folder}/connected_devices")),
    )


def read_driver_version(machine: Machine) -> str | None:
    """The version of the loaded driver (``2.26.5.0``)."""
    text = _read(machine, "/sys/module/neuron/version")
    return text if _VERSION.match(text) else None


def memory_in_use(machine: Machine, device: int, core: int) -> int | None:
    """Bytes of device memory that all processes use through one physical core: ``total``, as AWS's guide defines it."""
    text = _read(machine, f"{SYSFS}/neuron{device}/{_CORE}{core}/stats/memory_usage/device_mem/total")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _read_name(machine: Machine, folder: str) -> tuple[str | None, Generation | None]:
    name = _read(machine, f"{folder}/info/architecture/device_name")
    generation = generation_of_name(name)
    if generation is None:
        generation = generation_of_instance(_read(machine, f"{folder}/info/architecture/instance_type"))
    shown = name if _NAME.match(name) else None
    return (shown if generation is None else generation.name), generation


def _read(machine: Machine, path: str) -> str:
    """A file's text without its end of line; empty where it cannot be read."""
    try:
        return machine.read_text(path, limit=_LIMIT).strip()
    except OSError:
        return ""


def _as_count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and 0 < len(text) < 5 and int(text) > 0 else None


def _as_numbers(text: str) -> tuple[int, ...] | None:
    """``12, 3, 4, 1``. An empty file is an unreadable one, or a device without neighbours: nobody can tell."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts):
        return None
    return tuple(sorted({int(part) for part in parts}))
