"""The selections that a platform has made: a look-up for repeated questions, and the list that the report shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

    from hardpoint._reasons import Reason
    from hardpoint._selection import Selection

REMEMBERED: Final = 1024


class SelectionCache:
    """Bounded, oldest out first. Keys hold configurations and names only, never a model, an engine or an exception.

    An entry is good for one generation of the plugin set and of the kernel report. Thread-safe: single dict operations.
    """

    __slots__ = ("_entries", "_generation", "kernels", "requirements")

    def __init__(self) -> None:
        self._entries: dict[Hashable, Selection] = {}
        self._generation: tuple[int, bool] = (0, False)
        self.requirements: dict[tuple[int, str], Reason | None] = {}
        """What the machine said to a requirement, by generation of the plugin set: as many as the plugins state."""
        self.kernels: dict[tuple[int, tuple[str, ...]], Reason | None] = {}
        """The same of kernel modules that have not been imported, by the names that a backend wants."""

    def get(self, key: Hashable, generation: tuple[int, bool]) -> Selection | None:
        """The selection of this very question, if nothing has changed since."""
        if generation != self._generation:
            return None
        return self._entries.get(key)

    def put(self, key: Hashable, generation: tuple[int, bool], selection: Selection) -> None:
        """Keep a selection; what was kept of an older generation is dropped."""
        if generation != self._generation:
            self._entries = {}
            self._generation = generation
        entries = self._entries
        if len(entries) >= REMEMBERED:
            entries.pop(next(iter(entries), None), None)
        entries[key] = selection

    def made(self) -> list[Selection]:
        """Every selection that is remembered, in the order in which they were made."""
        return list(self._entries.values())
