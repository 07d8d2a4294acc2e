"""The grammar of the runtime's variables that choose cores. Pure: no machine.

``NEURON_RT_VISIBLE_CORES`` names logical cores, counted over all devices from 0: numbers and inclusive ranges,
separated by commas (``0-3,5``). Where it is set, ``NEURON_RT_NUM_CORES`` means nothing; alone, that says how many cores
the runtime is to take, which ones is the runtime's choice, and 0 is all. The runtime does not start with what it cannot
read, so anything malformed leaves nothing, and a core that is named twice is taken for a mistake. Source: AWS's runtime
configuration guide; what the runtime does with a repeated core is not documented.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

# Python refuses to read numbers of more than 4300 digits; no machine has so many cores.
_SPAN: Final = re.compile(r"([0-9]{1,4000})(?:-([0-9]{1,4000}))?\Z", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,4000}\Z", re.ASCII)


class Cores(NamedTuple):
    """Which cores a text names: inclusive ranges in its order. `fault`: why it names none."""

    spans: tuple[tuple[int, int], ...] = ()
    fault: str | None = None

    def numbers(self) -> Iterator[int]:
        """One after the other. A range may be as long as its numbers let it: check `fault_beyond` first."""
        for first, last in self.spans:
            yield from range(first, last + 1)

    def fault_beyond(self, count: int) -> str | None:
        """What is wrong with it on a machine with so many logical cores."""
        beyond = next((last for _, last in self.spans if last >= count), None)
        if beyond is None:
            return None
        have = "there is 1 core, number 0" if count == 1 else f"there are {count} cores, numbered from 0"
        return f"core {_shown(str(beyond))} is out of range: {have}"


def parse_cores(text: str) -> Cores:
    """Read ``NEURON_RT_VISIBLE_CORES``."""
    if not text.strip():
        return Cores(fault="empty")
    spans: list[tuple[int, int]] = []
    for entry in text.split(","):
        found = _SPAN.match(entry.strip())
        if found is None:
            return Cores(fault=f"bad entry {_shown(entry.strip())!r}" if entry.strip() else "an entry is empty")
        first = int(found[1])
        last = first if found[2] is None else int(found[2])
        if last < first:
            return Cores(fault=f"the range {_shown(entry.strip())!r} runs backwards")
        spans.append((first, last))
    ordered = sorted(spans)
    for (_, last), (first, _) in itertools.pairwise(ordered):
        if first <= last:
            return Cores(fault=f"overlap: core {_shown(str(first))} is named twice")
    return Cores(tuple(spans))


def parse_number(text: str) -> int | None:
    """Read a variable that holds a whole number; None: it does not."""
    found = _NUMBER.match(text.strip())
    return None if found is None else int(found[0])


def format_cores(numbers: tuple[int, ...]) -> str:
    """The shortest text that names these, in their order."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _shown(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}…"
