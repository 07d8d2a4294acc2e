"""The library's wrappers and their scratch memory, kept between steps: making one takes 8 MB and pinned memory."""

from __future__ import annotations

import weakref
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import torch  # noqa: TID253  # imported only with a chosen backend

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_SCRATCH_BYTES: Final = 128 << 20
"""What the library recommends for the partial results of split keys."""

_scratch: dict[torch.device, torch.Tensor] = {}
_idle: defaultdict[Hashable, list[Any]] = defaultdict(list)


def scratch_of(device: torch.device) -> torch.Tensor:
    """One for all wrappers of a device: calls on one stream use it one after another. Zeroed, as decoding asks."""
    found = _scratch.get(device)
    if found is None:
        found = _scratch[device] = torch.zeros(_SCRATCH_BYTES, dtype=torch.uint8, device=device)
    return found


class Wrappers:
    """The wrappers that one plan has borrowed; they go back when the plan is gone."""

    def __init__(self, owner: object) -> None:
        self._borrowed: dict[Hashable, tuple[Hashable, Any]] = {}  # Any: the library is not typed for us
        weakref.finalize(owner, _give_back, self._borrowed)

    def get(self, kind: Hashable, purpose: Hashable, make: Callable[[], Any]) -> Any:  # noqa: ANN401  # as above
        """The plan's own wrapper for a purpose. Those of equal `kind` may stand for one another."""
        found = self._borrowed.get((kind, purpose))
        if found is None:
            try:
                # One operation: two threads never get the same.
                wrapper = _idle[kind].pop()
            except IndexError:
                wrapper = make()
            found = self._borrowed[kind, purpose] = (kind, wrapper)
        return found[1]


def _give_back(borrowed: dict[Hashable, tuple[Hashable, Any]]) -> None:
    for kind, wrapper in borrowed.values():
        _idle[kind].append(wrapper)


def forget() -> None:
    """Drop what is idle, and the scratch memory."""
    _idle.clear()
    _scratch.clear()
