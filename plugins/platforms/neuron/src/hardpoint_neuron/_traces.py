"""Signs of Neuron hardware, and of a host that only compiles for it: no file of a device is read, nothing is run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hardpoint.hookspecs import Detection

if TYPE_CHECKING:
    from hardpoint import Machine

VISIBLE_CORES: Final = "NEURON_RT_VISIBLE_CORES"
NUM_CORES: Final = "NEURON_RT_NUM_CORES"
SIZE_NAMES: Final = ("NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE")
"""How many physical cores form a logical one: the documented name, and what earlier releases called it."""

SYSFS: Final = "/sys/devices/virtual/neuron_device"
"""There while the driver is loaded, with one folder for each device."""
PRODUCT: Final = "/sys/devices/virtual/dmi/id/product_name"
"""On EC2 the instance's type (``trn2.48xlarge``)."""

COMPILER: Final = "neuronx-cc"
TORCH: Final = "torch-neuronx"
PACKAGES: Final = (COMPILER, TORCH)
_NODE: Final = "neuron"
_HIGHEST: Final = 9999


class Traces(NamedTuple):
    """The numbers of the device nodes ``/dev/neuron0`` …, and whether the driver is loaded."""

    nodes: tuple[int, ...] = ()
    driver: bool = False


def find_traces(machine: Machine) -> Traces:
    """Look. A container may have any of the nodes, so the names are listed; the driver is for Linux alone."""
    if machine.system != "Linux":
        return Traces()
    try:
        names = machine.list_directory("/dev")
    except OSError:
        names = ()
    nodes = (number_of(name, _NODE) for name in names if name.startswith(_NODE))
    return Traces(tuple(sorted(number for number in nodes if number is not None)), machine.exists(SYSFS))


def number_of(name: str, prefix: str) -> int | None:
    """``12`` of ``neuron12``; None for anything else, ``neuron07`` too."""
    text = name.removeprefix(prefix)
    # isdigit alone takes '²', and a number of a million digits would take a while.
    if text == name or not text.isascii() or not text.isdigit() or len(text) > 4:
        return None
    return int(text) if text == str(int(text)) and int(text) <= _HIGHEST else None


def compile_only(machine: Machine) -> Detection | None:
    """What to say of a host with Neuron's packages and no device; None: it has no such package.

    A package says nothing about hardware: it never makes the platform usable. On a live machine only a compiler on the
    search path counts, where torch-neuronx looks for it too: to look through thousands of packages takes milliseconds,
    and this is asked on every host without such hardware.
    """
    if machine.system != "Linux" or (machine.live and machine.find_tool(COMPILER) is None):
        return None
    try:
        versions = machine.distribution_versions(PACKAGES)
    except OSError:
        # Not recorded: the live machine had no reason to ask.
        return None
    installed = {name: version for name, version in versions.items() if version}
    if not installed:
        return None
    from hardpoint_neuron._absent import judge

    return Detection.unusable(judge(machine, installed))
