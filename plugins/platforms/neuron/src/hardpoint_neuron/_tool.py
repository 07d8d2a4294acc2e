"""``neuron-ls --json-output``: run within the time limit, and read as data that may hold anything.

It prints a list with one object per device. What is read of one: ``neuron_device`` (a number), ``nc_count`` (cores:
logical ones where ``logical_neuroncore_config`` stands beside it, else physical ones), ``memory_size`` (bytes),
``bdf``, ``numa_node`` (a text, -1: unknown), ``cpu_affinity``, ``connected_to`` (null: none) and ``instance_type``.
Source: AWS's neuron-ls guide, and what it prints on real instances.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hardpoint import Reason, ReasonCode
from hardpoint_neuron._instance import as_instance_type
from hardpoint_neuron._sysfs import MAX_CORES

if TYPE_CHECKING:
    from collections.abc import Callable

    from hardpoint import Machine
    from hardpoint._machine import Json

NAMES: Final = ("neuron-ls", "/opt/aws/neuron/bin/neuron-ls")
"""On the search path, and where aws-neuronx-tools installs it: only login shells have that folder on their path."""
ARGUMENT: Final = "--json-output"

_PCI: Final = re.compile(r"(?:([0-9a-f]{4}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\Z", re.ASCII)
_CPUS: Final = re.compile(r"[0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9]{1,5}(?:-[0-9]{1,5})?)*\Z", re.ASCII)
_NODE: Final = re.compile(r"-?[0-9]{1,4}\Z", re.ASCII)
_MAX_DEVICES: Final = 9999
_MAX_BYTES: Final = 1 << 50


class ToolDevice(NamedTuple):
    """What it says of one device. Unknown is None; `connected` is empty where there are no neighbours."""

    cores: int | None = None
    logical_size: int | None = None
    memory_bytes: int | None = None
    pci_bus_id: str | None = None
    numa_node: int | None = None
    cpus: str | None = None
    connected: tuple[int, ...] | None = None
    instance_type: str | None = None


class ToolAnswer(NamedTuple):
    """Devices by number. `problem`: why it says nothing, or what in it cannot be read."""

    devices: dict[int, ToolDevice]
    problem: Reason | None = None


def find_tool(machine: Machine) -> str | None:
    """What to run; None: it is not installed."""
    return next((name for name in NAMES if machine.find_tool(name) is not None), None)


def ask_tool(machine: Machine) -> ToolAnswer:
    """Run it. Whatever goes wrong is the answer's `problem`."""
    name = find_tool(machine)
    if name is None:
        message = "neuron-ls is not installed: memory, PCI addresses and NUMA nodes of the devices are unknown"
        return _failed(ReasonCode.NOT_INSTALLED, message, "install aws-neuronx-tools")
    command = f"{name} {ARGUMENT}"
    try:
        result = machine.run_tool((name, ARGUMENT))
    except OSError as error:
        code = getattr(error, "code", None)
        if code is None:
            code = ReasonCode.PERMISSION if isinstance(error, PermissionError) else ReasonCode.OTHER
        message = str(error) or type(error).__name__
        return _failed(code, message if command in message else f"{command}: {message}")
    if result.returncode < 0:
        return _failed(ReasonCode.CRASHED, f"{command} crashed with {_signal(-result.returncode)}")
    if result.returncode:
        said = (result.stderr.strip() or result.stdout.strip()).partition("\n")[0]
        return _failed(ReasonCode.OTHER, f"{command} exited with code {result.returncode}: {said[:300] or 'no words'}")
    if result.truncated:
        return _failed(ReasonCode.OTHER, f"{command} printed more than is read")
    return parse_answer(result.stdout, command)


def parse_answer(text: str, command: str) -> ToolAnswer:
    """Read what it printed."""
    try:
        data: Json = json.loads(text)
    except (ValueError, RecursionError) as error:
        # Also a number of thousands of digits, and brackets without end.
        return _failed(ReasonCode.OTHER, f"{command} printed no JSON ({type(error).__name__}): {text.strip()!r:.80}")
    if not isinstance(data, list):
        shown = f"the error {data['error']!r:.200}" if isinstance(data, dict) and "error" in data else f"{data!r:.80}"
        return _failed(ReasonCode.OTHER, f"{command} printed {shown} and no list of devices")
    devices: dict[int, ToolDevice] = {}
    complaints: list[str] = []
    for position, entry in enumerate(data):
        number = entry.get("neuron_device") if isinstance(entry, dict) else None
        if type(number) is not int or not 0 <= number <= _MAX_DEVICES:
            complaints.append(f"entry {position} is no device with a number: {entry!r:.80}")
        elif number in devices:
            complaints.append(f"device {number} stands twice in it")
        else:
            devices[number] = _parse_device(entry, number, complaints)
    if not data:
        complaints.append("it lists no device")
    if not complaints:
        return ToolAnswer(devices)
    more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
    return ToolAnswer(devices, Reason(code=ReasonCode.OTHER, message=f"{command}: {complaints[0]}{more}"))


def _parse_device(entry: dict[str, Any], number: int, complaints: list[str]) -> ToolDevice:
    def take(key: str, read: Callable[[Any], Any]) -> Any:  # noqa: ANN401  # JSON
        value = entry.get(key)
        found = None if value is None else read(value)
        if value is not None and found is None:
            complaints.append(f"{key} of device {number} is {value!r:.80}")
        return found

    return ToolDevice(
        cores=take("nc_count", lambda value: _whole(value, 1, MAX_CORES)),
        logical_size=take("logical_neuroncore_config", lambda value: _whole(value, 1, MAX_CORES)),
        memory_bytes=take("memory_size", lambda value: _whole(value, 1, _MAX_BYTES)),
        pci_bus_id=take("bdf", _pci_address),
        numa_node=_not_negative(take("numa_node", _node)),
        cpus=take("cpu_affinity", lambda value: value if isinstance(value, str) and _CPUS.match(value) else None),
        connected=() if "connected_to" in entry and entry["connected_to"] is None else take("connected_to", _numbers),
        instance_type=take("instance_type", as_instance_type),
    )


def _whole(value: object, lowest: int, highest: int) -> int | None:
    return value if type(value) is int and lowest <= value <= highest else None


def _pci_address(value: object) -> str | None:
    found = _PCI.match(value.lower()) if isinstance(value, str) else None
    return None if found is None else f"{found[1] or '0000'}:{found[2]}"


def _node(value: object) -> int | None:
    text = str(value) if type(value) is int and abs(value) < 10_000 else value
    return int(text) if isinstance(text, str) and _NODE.match(text) else None


def _not_negative(value: int | None) -> int | None:
    return value if value is not None and value >= 0 else None


def _numbers(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list) or any(_whole(item, 0, _MAX_DEVICES) is None for item in value):
        return None
    return tuple(sorted(set(value)))


def _signal(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _failed(code: ReasonCode | str, message: str, remedy: str | None = None) -> ToolAnswer:
    return ToolAnswer({}, Reason(code=ReasonCode(code), message=message, remedy=remedy))
