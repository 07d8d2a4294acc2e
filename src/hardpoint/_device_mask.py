"""The grammar of ``CUDA_VISIBLE_DEVICES``, which torch reads HIP's variables by too. Pure: no machine, no driver.

It is a list in the order in which the process is to number the devices. The first entry decides whether they are
numbers, ids of devices (``GPU-``) or ids of MIG instances (``MIG-``). Reading stops at the first entry that means
nothing, and what stood before counts. An entry that comes twice voids it all. A number is what the entry begins with,
so ``1gpu2`` is 1.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

ALL: Final = "all"
NUMBERS: Final = "numbers"
DEVICES: Final = "devices"
INSTANCES: Final = "instances"

_DEVICE: Final = "GPU-"
_INSTANCE: Final = "MIG-"
_NUMBER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_HIDING: Final = re.compile(r"(?:-[0-9]+|none|void|nodevfiles)\s*(?:,|\Z)", re.ASCII)
# Python refuses to read longer numbers; no machine has so many devices.
_DIGITS: Final = 4000


class Mask(NamedTuple):
    """What the variable says. `fault`: why reading ended before its end; it may have named devices before that."""

    text: str | None
    kind: str
    entries: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    fault: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it leaves nothing, whatever devices there are."""
        return self.kind != ALL and not self.entries

    @property
    def is_wish(self) -> bool:
        """Whether it hides every device in one of the usual ways: what leaves none in another way is a mistake."""
        text = (self.text or "").strip().lower()
        return self.text is not None and (not text or _HIDING.match(text) is not None)


class Choice(NamedTuple):
    """Which of a machine's devices a mask leaves: their places, what the mask calls each, and why it ended early."""

    places: tuple[int, ...]
    visible_ids: tuple[str | None, ...]
    fault: str | None = None


def parse_mask(text: str | None) -> Mask:
    """Read the variable's text; None: it is not set."""
    if text is None:
        return Mask(text, ALL)
    for prefix, kind in ((_DEVICE, DEVICES), (_INSTANCE, INSTANCES)):
        if text.startswith(prefix):
            return _parse_ids(text, prefix, kind)
    return _parse_numbers(text)


def _parse_ids(text: str, prefix: str, kind: str) -> Mask:
    entries: list[str] = []
    for entry in text.split(","):
        if entry in entries:
            return Mask(text, kind, fault=f"repeated entry {entry!r:.80}")
        if not entry.startswith(prefix):
            return Mask(text, kind, tuple(entries), fault=f"bad entry {entry!r:.80}: it does not start with {prefix}")
        entries.append(entry)
    return Mask(text, kind, tuple(entries))


def _parse_numbers(text: str) -> Mask:
    entries: list[str] = []
    numbers: list[int] = []
    fault: str | None = None
    for entry in text.split(","):
        found = _NUMBER.match(entry.strip())
        number = int(found[0]) if found and len(found[0]) < _DIGITS else -1
        if number in numbers:
            return Mask(text, NUMBERS, fault=f"repeated entry {entry.strip()!r:.80}")
        if number < 0:
            fault = f"bad entry {entry.strip()!r:.80}" if text.strip() else "empty"
            break
        numbers.append(number)
        entries.append(entry.strip())
    return Mask(text, NUMBERS, tuple(entries), tuple(numbers), fault)


def choose(mask: Mask, uuids: Sequence[str | None]) -> Choice:
    """Apply a mask of numbers or of devices' ids to the devices, given in the driver's order.

    An id may be abbreviated as long as it means one device.
    """
    if mask.kind == ALL:
        return Choice(tuple(range(len(uuids))), (None,) * len(uuids))
    places: list[int] = []
    fault = mask.fault
    for position, entry in enumerate(mask.entries):
        if mask.kind == NUMBERS:
            number = mask.numbers[position]
            if number >= len(uuids):
                fault = f"{entry!r:.80} is out of range: there are {len(uuids)} devices, numbered from 0"
                break
        else:
            meant = [place for place, uuid in enumerate(uuids) if uuid is not None and uuid.startswith(entry)]
            if len(meant) != 1:
                known = ", ".join(uuid for uuid in uuids if uuid) or "none"
                what = "means several devices" if meant else "is no device of this machine"
                fault = f"{entry!r:.80} {what}; there are {known}"
                break
            number = meant[0]
        if number in places:
            return Choice((), (), f"repeated entry {entry!r:.80}: the device has been named before")
        places.append(number)
    return Choice(tuple(places), tuple(mask.entries[: len(places)]), fault)
