"""From devices to the logical cores that this process may use. A core is what Hardpoint calls a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hardpoint.hookspecs import Device
from hardpoint_neuron._mask import format_cores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint_neuron._inventory import Inventory, NeuronDevice


class Core(NamedTuple):
    """One logical core: its number among all of the machine, its device, and its physical cores there."""

    number: int
    device: NeuronDevice
    physical: tuple[int, ...]

    @property
    def memory_bytes(self) -> int | None:
        """Its share of the device's memory: cores have none of their own."""
        memory, cores = self.device.memory_bytes, self.device.cores
        return None if memory is None or not cores else memory // cores * len(self.physical)


def logical_cores(devices: Sequence[NeuronDevice], wanted_size: int | None) -> list[Core]:
    """All logical cores, numbered as the runtime does: through the devices in their order."""
    cores: list[Core] = []
    for device in devices:
        size = logical_size(device, wanted_size)
        for place in range((device.cores or 0) // size):
            cores.append(Core(len(cores), device, tuple(range(place * size, (place + 1) * size))))
    return cores


def logical_size(device: NeuronDevice, wanted: int | None) -> int:
    """How many physical cores form a logical one: what the environment says, else the tool, else the default.

    Where a generation cannot join cores it is 1, whatever anybody says.
    """
    default = 1 if device.generation is None else device.generation.logical_size
    if device.generation is not None and default == 1:
        return 1
    return wanted or device.logical_size or default


def as_device(index: int, core: Core, visible_id: str | None, inventory: Inventory) -> Device:
    """The core as the platform's device. Its `physical_id` is its number among all logical cores of the machine.

    It has no id of its own, and the serial number of its chip is nobody's business: no mask takes it.
    """
    device = core.device
    return Device(
        index=index,
        name=device.name,
        capability=None if device.generation is None else device.generation.capability,
        physical_id=core.number,
        visible_id=visible_id,
        pci_bus_id=device.pci_bus_id,
        total_memory_bytes=core.memory_bytes,
        numa_node=device.numa_node,
        properties={
            **_common(core, inventory),
            "neuron_device": device.number,
            "physical_cores": format_cores(core.physical),
            "connected_devices": None if device.connected is None else format_cores(device.connected),
            "cpus": device.cpus,
        },
    )


def as_any_device(index: int, cores: Sequence[Core], inventory: Inventory) -> Device:
    """A core that the runtime will choose among these: only what all of them have in common is known."""
    first = cores[0]
    generations = {core.device.generation for core in cores}
    generation = first.device.generation if len(generations) == 1 else None
    memory = {core.memory_bytes for core in cores}
    nodes = {core.device.numa_node for core in cores}
    only = len({core.device.number for core in cores}) == 1
    return Device(
        index=index,
        name=first.device.name if len({core.device.name for core in cores}) == 1 else "AWS Neuron device",
        capability=None if generation is None else generation.capability,
        total_memory_bytes=memory.pop() if len(memory) == 1 else None,
        pci_bus_id=first.device.pci_bus_id if only else None,
        numa_node=nodes.pop() if len(nodes) == 1 else None,
        properties={
            **(_common(first, inventory) if generation is not None else {"instance_type": inventory.instance_type}),
            "neuron_device": first.device.number if only else None,
        },
    )


def _common(core: Core, inventory: Inventory) -> dict[str, str | int | None]:
    generation = core.device.generation
    return {
        "neuroncore": None if generation is None else f"v{generation.core_version}",
        "logical_core_size": len(core.physical),
        "instance_type": inventory.instance_type,
        "driver": inventory.driver,
    }
