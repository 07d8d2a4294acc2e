"""The devices of the machine: nodes, sysfs and ``neuron-ls`` put together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hardpoint import Reason, ReasonCode
from hardpoint_neuron._generations import Generation, generation_of_instance
from hardpoint_neuron._instance import read_instance_type
from hardpoint_neuron._sysfs import SysfsDevice, read_device, read_driver_version
from hardpoint_neuron._tool import ToolDevice, ask_tool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint import Machine


class NeuronDevice(NamedTuple):
    """One device (a chip), by the number of its node. Unknown is None. `cores`: physical ones.

    `logical_size`: what ``neuron-ls`` says of it.
    """

    number: int
    name: str
    generation: Generation | None
    cores: int | None
    memory_bytes: int | None
    pci_bus_id: str | None
    numa_node: int | None
    cpus: str | None
    connected: tuple[int, ...] | None
    logical_size: int | None
    problem: str | None = None

    @property
    def node(self) -> str:
        """Its device node."""
        return f"/dev/neuron{self.number}"


class Inventory(NamedTuple):
    """All devices that have a node, in the order of their numbers, and what could not be found out.

    `loss`: why neuron-ls, which is there, did not tell everything.
    """

    devices: tuple[NeuronDevice, ...]
    instance_type: str | None = None
    driver: str | None = None
    problems: tuple[Reason, ...] = ()
    loss: Reason | None = None


def take_inventory(machine: Machine, nodes: Sequence[int]) -> Inventory:
    """Ask sysfs about every node, then run ``neuron-ls``, which also knows memory and addresses.

    The device is opened by neither; the runtime is not touched.
    """
    published = {number: read_device(machine, number) for number in nodes}
    answer = ask_tool(machine)
    problems = [] if answer.problem is None else [answer.problem]
    problems += _contradictions(published, answer.devices)
    strangers = sorted(set(answer.devices) - set(nodes))
    if strangers:
        listed = ", ".join(map(str, strangers))
        problems.append(Reason(code=ReasonCode.OTHER, message=f"neuron-ls lists devices without a node: {listed}"))
    said = next((item.instance_type for item in answer.devices.values() if item.instance_type), None)
    instance = said or read_instance_type(machine)
    devices = tuple(
        _merge(machine, number, published[number], answer.devices.get(number, ToolDevice()), instance)
        for number in nodes
    )
    hidden = [device for device in devices if device.problem is not None]
    if hidden:
        more = f" (and {len(hidden) - 1} more)" if len(hidden) > 1 else ""
        problems.append(Reason(code=ReasonCode.DRIVER, message=f"{hidden[0].node}: {hidden[0].problem}{more}"))
    is_there = answer.problem is not None and answer.problem.code is not ReasonCode.NOT_INSTALLED
    loss = answer.problem if is_there else None
    return Inventory(devices, instance, read_driver_version(machine), tuple(problems), loss)


def _contradictions(published: dict[int, SysfsDevice], told: dict[int, ToolDevice]) -> list[Reason]:
    """Where the two count differently, sysfs is believed: it is the driver's own."""
    found = []
    for number, device in published.items():
        cores = _physical(told.get(number))
        if cores is not None and device.cores is not None and cores != device.cores:
            message = f"/dev/neuron{number} has {device.cores} cores by sysfs and {cores} by neuron-ls: sysfs counts"
            found.append(Reason(code=ReasonCode.OTHER, message=message))
    return found


def _physical(told: ToolDevice | None) -> int | None:
    return None if told is None or told.cores is None else told.cores * (told.logical_size or 1)


def _merge(
    machine: Machine, number: int, published: SysfsDevice, told: ToolDevice, instance: str | None
) -> NeuronDevice:
    generation = published.generation
    if generation is None and published.name is None:
        # One that bears a name which nobody here knows is newer than this table, whatever the instance is called.
        generation = generation_of_instance(told.instance_type or instance)
    return NeuronDevice(
        number=number,
        name=published.name or (generation.name if generation is not None else "AWS Neuron device"),
        generation=generation,
        cores=_physical(told) if published.cores is None else published.cores,
        memory_bytes=told.memory_bytes,
        pci_bus_id=told.pci_bus_id,
        numa_node=_numa_node(machine, told.pci_bus_id) if told.numa_node is None else told.numa_node,
        cpus=told.cpus,
        connected=published.connected if told.connected is None else told.connected,
        logical_size=told.logical_size,
        problem=published.problem,
    )


def _numa_node(machine: Machine, address: str | None) -> int | None:
    if address is None:
        return None
    try:
        text = machine.read_text(f"/sys/bus/pci/devices/{address}/numa_node", limit=64).strip()
    except OSError:
        return None
    # -1 where the firmware does not say.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 5 else None
