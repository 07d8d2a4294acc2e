"""``CUDA_VISIBLE_DEVICES``, which may also name MIG instances. Pure: no machine, no driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hardpoint._device_mask import DEVICES as DEVICES
from hardpoint._device_mask import INSTANCES as INSTANCES
from hardpoint._device_mask import NUMBERS as NUMBERS
from hardpoint._device_mask import Choice as Choice
from hardpoint._device_mask import Mask as Mask
from hardpoint._device_mask import choose as choose
from hardpoint._device_mask import parse_mask as parse_mask

if TYPE_CHECKING:
    from collections.abc import Sequence

VARIABLE: Final = "CUDA_VISIBLE_DEVICES"


def choose_instance(mask: Mask, names: Sequence[tuple[str | None, ...]]) -> Choice:
    """Apply a mask of MIG instances, given by all the ids that each has: the first one named, if it exists.

    A process sees one instance, however many are named.
    """
    entry = mask.entries[0]
    for place, known in enumerate(names):
        if entry in known:
            rest = len(mask.entries) - 1
            fault = f"a process sees one MIG instance: {rest} more named here are left out" if rest else mask.fault
            return Choice((place,), (entry,), fault)
    listed = ", ".join(known[0] for known in names if known and known[0]) or "none"
    return Choice((), (), f"{entry!r:.80} is no MIG instance of this machine; there are {listed}")
