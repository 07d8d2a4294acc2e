"""Which devices three variables leave, and in which order. Pure: no machine, no driver.

``ROCR_VISIBLE_DEVICES`` comes first: the runtime under HIP shows those devices, numbered anew. HIP then picks of what
is left by ``HIP_VISIBLE_DEVICES`` or, where that is not set, by ``CUDA_VISIBLE_DEVICES``.

The runtime's grammar is that of ROCR's `RvdFilter` (`amd_filter_device.cpp`): numbers as C reads them, ids in any case,
each as much as means one device; reading stops at the first entry that is bad or comes again. HIP's variables have two
readers, torch, which counts devices by them, and HIP itself (`rocdevice.cpp` of CLR). What torch reads counts here;
where HIP reads something else, the choice says so.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from hardpoint import _device_mask as device_mask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROCR: Final = "ROCR_VISIBLE_DEVICES"
HIP: Final = "HIP_VISIBLE_DEVICES"
CUDA: Final = "CUDA_VISIBLE_DEVICES"
VARIABLES: Final = (ROCR, HIP, CUDA)

_ID: Final = "GPU-"
_C_NUMBER: Final = re.compile(r"([+-]?)(?:0[xX]([0-9a-fA-F]{1,15})|0([0-7]{0,15})|([1-9][0-9]{0,15}))\Z", re.ASCII)


class Reading(NamedTuple):
    """What one variable leaves of a list: places in it, what it calls each, and why it ended early."""

    places: tuple[int, ...]
    names: tuple[str | None, ...]
    fault: str | None = None


class Choice(NamedTuple):
    """What all variables leave: places in the driver's list, and what the last mask calls each.

    `refusal`: why nothing is left; `is_wish`: that is what a variable asks for. `warnings`: what somebody should know.
    """

    places: tuple[int, ...]
    names: tuple[str | None, ...]
    refusal: str | None = None
    warnings: tuple[str, ...] = ()
    is_wish: bool = False


def choose(values: Mapping[str, str | None], uuids: Sequence[str | None], *, is_rocr_applied: bool = False) -> Choice:
    """Apply the variables to the devices, given by their ids (``GPU-`` and 16 digits) in the driver's order.

    `is_rocr_applied`: the list is what the runtime shows under its own variable already.
    """
    shown = Reading(tuple(range(len(uuids))), (None,) * len(uuids))
    rocr = None if is_rocr_applied else values.get(ROCR)
    warnings: list[str] = []
    if rocr is not None:
        shown = read_rocr(rocr, uuids)
        if not shown.places:
            why = f"{ROCR}={rocr!r:.200} leaves no device: {shown.fault}"
            return Choice((), (), why, is_wish=device_mask.parse_mask(rocr).is_wish)
        if shown.fault is not None:
            warnings.append(f"{ROCR}={rocr!r:.200} is cut short: {shown.fault}")
    name, text, conflict = _second(values)
    if text is None:
        return Choice(shown.places, shown.names, None, tuple(warnings))
    left = [uuids[place] for place in shown.places]
    picked = read_torch(text, left)
    refusal = None if picked.places else f"{name}={text!r:.200} leaves no device: {picked.fault}"
    if rocr is not None:
        count = len(device_mask.parse_mask(text).entries)
        if count > len(left):
            refusal = f"{name}={text!r:.200} asks for {count} devices, and {ROCR}={rocr!r:.200} leaves {len(left)}"
        elif refusal is not None:
            refusal += f", after {ROCR}={rocr!r:.200}"
    if conflict is not None:
        warnings.append(conflict)
    if refusal is not None:
        is_wish = conflict is None and device_mask.parse_mask(text).is_wish
        return Choice((), (), "; ".join((refusal, *warnings)), is_wish=is_wish)
    if picked.fault is not None:
        warnings.append(f"{name}={text!r:.200} is cut short: {picked.fault}")
    theirs = read_hip(text, left)
    if theirs != picked.places:
        meant = ",".join(map(str, picked.places))
        warnings.append(
            f"{name}={text!r:.200} means {meant} to torch and {','.join(map(str, theirs)) or 'no device'} to HIP; "
            f"write {name}={meant}"
        )
    return Choice(tuple(shown.places[place] for place in picked.places), picked.names, None, tuple(warnings))


def empty_choice(values: Mapping[str, str | None]) -> Choice | None:
    """The choice where the variables leave nothing whatever devices there are; None: it depends on those."""
    if values.get(ROCR) == "":
        return choose(values, ())
    _, text, _ = _second(values)
    if text is not None and device_mask.parse_mask(text).is_empty:
        return choose({name: values.get(name) for name in (HIP, CUDA)}, ())
    return None


def _second(values: Mapping[str, str | None]) -> tuple[str, str | None, str | None]:
    """The variable that HIP reads, its text, and what is wrong with having both of them."""
    hip, cuda = values.get(HIP), values.get(CUDA)
    if hip is None:
        return CUDA, cuda, None
    if cuda is None or _meaning(cuda) == _meaning(hip):
        return HIP, hip, None
    return HIP, hip, f"{HIP}={hip!r:.200} and {CUDA}={cuda!r:.200} disagree, and {HIP} is taken; unset one of them"


def _meaning(text: str) -> tuple[object, ...]:
    """What two texts have in common that leave the same devices in the same order, whatever spaces are in them."""
    mask = device_mask.parse_mask(text)
    return mask.kind, mask.numbers or mask.entries, mask.fault is None


def read_rocr(text: str, uuids: Sequence[str | None]) -> Reading:
    """As the runtime reads its variable. One that is set to nothing leaves nothing."""
    if not text:
        return Reading((), (), "empty")
    known = [None if uuid is None else uuid.upper() for uuid in uuids]
    places: list[int] = []
    names: list[str] = []
    fault: str | None = None
    for entry in (part.strip() for part in text.removesuffix(",").split(",")):
        place, fault = _rocr_place(entry, known)
        if place in places:
            fault = f"repeated entry {entry!r:.80}"
        if fault is not None or place is None:
            break
        places.append(place)
        names.append(entry)
    return Reading(tuple(places), tuple(names), fault)


def _rocr_place(entry: str, uuids: Sequence[str | None]) -> tuple[int | None, str | None]:
    """The place that an entry means, or what is wrong with it."""
    if entry.upper().startswith("G"):
        wanted = entry.upper()
        meant = [place for place, uuid in enumerate(uuids) if uuid is not None and uuid.startswith(wanted)]
        if len(meant) == 1 and len(wanted) > len(_ID):
            return meant[0], None
        what = "means several devices" if len(meant) > 1 else "is no device of this machine"
        return None, f"{entry!r:.80} {what}; there are {', '.join(uuid for uuid in uuids if uuid) or 'none with an id'}"
    found = _C_NUMBER.match(entry)
    if found is None:
        return None, f"bad entry {entry!r:.80}"
    sign, hexadecimal, octal, decimal = found.groups()
    number = int(hexadecimal, 16) if hexadecimal else int(decimal or octal or "0", 10 if decimal else 8)
    if sign == "-" or number >= len(uuids):
        return None, f"{entry!r:.80} is out of range: there are {len(uuids)} devices, numbered from 0"
    return number, None


def read_torch(text: str, uuids: Sequence[str | None]) -> Reading:
    """As torch reads HIP's variable."""
    mask = device_mask.parse_mask(text)
    if mask.kind == device_mask.INSTANCES:
        return Reading((), (), f"bad entry: AMD's devices have numbers, and ids that start with {_ID}")
    return Reading(*device_mask.choose(mask, uuids))


def read_hip(text: str, uuids: Sequence[str | None]) -> tuple[int, ...]:
    """As HIP itself reads it: exact numbers, any part of an id, repetitions left out, up to the first bad entry."""
    places: list[int] = []
    for entry in text.split(","):
        known = {str(place): place for place in range(len(uuids))}
        place = known.get(entry)
        if _ID in entry:
            place = next((at for at, uuid in enumerate(uuids) if uuid is not None and entry in uuid), None)
        if place is None:
            break
        if place not in places:
            places.append(place)
    return tuple(places)
