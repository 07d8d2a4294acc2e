"""Numbers for layers and plans, which an operator cannot take as they are. Keeps nothing alive."""

from __future__ import annotations

import itertools
import weakref

_known: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def register(thing: object) -> int:
    """A number for `thing`, never given twice."""
    number = next(_numbers)
    _known[number] = thing
    return number


def find(number: int) -> object:
    """What `register` gave the number to. Errors: `LookupError` where that is gone."""
    thing = _known.get(number)
    if thing is None:
        raise LookupError(f"handle {number}: the layer or plan that a compiled graph refers to is gone")
    return thing
