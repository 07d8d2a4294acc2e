"""What the environment asks of the runtime: which cores, how many, and how large a logical core is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hardpoint import Reason, ReasonCode
from hardpoint_neuron._generations import LOGICAL_SIZES
from hardpoint_neuron._mask import Cores, parse_cores, parse_number
from hardpoint_neuron._traces import NUM_CORES, SIZE_NAMES, VISIBLE_CORES

if TYPE_CHECKING:
    from hardpoint import Machine

CORE_LIST = "numbers of logical cores and ranges of them, separated by commas, each core once (0-3,5)"


class Request(NamedTuple):
    """What was asked for, with the texts that ask for it.

    `cores`: those named, in the text `visible`; None: none are. `how_many`: by the text `wanted`, and which ones is the
    runtime's choice; None: all. `logical_size`: None where nobody says. `faults`: why the runtime would not start.
    """

    cores: Cores | None = None
    visible: str | None = None
    how_many: int | None = None
    wanted: str | None = None
    logical_size: int | None = None
    faults: tuple[Reason, ...] = ()
    notes: tuple[Reason, ...] = ()


def read_request(machine: Machine) -> Request:
    """Read the four variables. Asks nothing else."""
    size, faults, notes = _read_size(machine)
    visible = machine.variable(VISIBLE_CORES)
    wanted = machine.variable(NUM_CORES)
    if visible is not None:
        cores = parse_cores(visible)
        if cores.fault is not None:
            faults.append(masked(VISIBLE_CORES, visible, cores.fault))
        elif wanted is not None and parse_number(wanted) != sum(last - first + 1 for first, last in cores.spans):
            message = f"{NUM_CORES}={wanted!r:.60} means nothing beside {VISIBLE_CORES}={visible!r:.60}, which wins"
            notes.append(Reason(code=ReasonCode.OTHER, message=message))
        return Request(cores, visible, None, None, size, tuple(faults), tuple(notes))
    count = None if wanted is None else parse_number(wanted)
    if wanted is not None and count is None:
        fault = "it is no whole number" if wanted.strip() else "empty"
        faults.append(masked(NUM_CORES, wanted, fault))
    return Request(None, None, count or None, wanted, size, tuple(faults), tuple(notes))


def masked(variable: str, text: str, fault: str) -> Reason:
    """The reason of a variable that leaves no core."""
    return Reason(
        code=ReasonCode.MASKED,
        message=f"{variable}={text!r:.200} leaves no core: {fault}",
        requested=text[:200],
        accepted=CORE_LIST if variable == VISIBLE_CORES else "a number of logical cores; 0 is all",
        # An empty one is a wish, as elsewhere.
        remedy=f"correct {variable}, or unset it" if text.strip() else None,
    )


def _read_size(machine: Machine) -> tuple[int | None, list[Reason], list[Reason]]:
    """How many cores form a logical one, by both of its names; the first one that is set counts."""
    said = [(name, text) for name in SIZE_NAMES if (text := machine.variable(name)) is not None]
    if not said:
        return None, [], []
    name, text = said[0]
    size = parse_number(text)
    notes = []
    if len(said) > 1 and parse_number(said[1][1]) != size:
        message = f"{name}={text!r:.60} and {said[1][0]}={said[1][1]!r:.60} contradict each other: the first one counts"
        notes.append(Reason(code=ReasonCode.OTHER, message=message, remedy=f"unset {said[1][0]}"))
    if size in LOGICAL_SIZES:
        return size, [], notes
    fault = Reason(
        code=ReasonCode.MASKED,
        message=f"{name}={text!r:.200} is no size of a logical core" + ("" if text.strip() else ": empty"),
        requested=text[:200],
        accepted=" or ".join(map(str, LOGICAL_SIZES)),
        remedy=f"unset {name}",
    )
    return None, [fault], notes
