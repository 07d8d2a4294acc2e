"""A question of this machine among those of a recorded one, where what is private stands as placeholders."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hardpoint._private import private_facts
from hardpoint._redaction import Redactor

if TYPE_CHECKING:
    from collections.abc import Iterable

_NUMBERED = re.compile(r"<([a-z]+)-\d+>")


class Translator:
    """Writes a question as a snapshot of this machine would, and finds the recorded one of that form.

    A plugin asks for ``/tmp/vendor/node`` or for something in the user's home; in the file that is
    ``<tmp>/<folder-1>/node`` or ``<home>/…``. The numbers were given there, so any will do, as long as one recorded
    question alone fits.
    """

    def __init__(self) -> None:
        self._private = private_facts()

    def find(self, question: str, recorded: Iterable[str]) -> str | None:
        """The recorded question; None: there is none, or several."""
        shown = Redactor(self._private).text(question)
        if shown == question:
            return None
        # The same number is the same name, every time that it comes.
        seen: set[str] = set()
        form, end = "", 0
        for found in _NUMBERED.finditer(shown):
            form += re.escape(shown[end : found.start()])
            name = f"{found[1]}{found[0][len(found[1]) + 2 : -1]}"
            form += f"(?P={name})" if name in seen else f"(?P<{name}><{found[1]}-\\d+>)"
            seen.add(name)
            end = found.end()
        pattern = re.compile(form + re.escape(shown[end:]))
        fitting = [item for item in recorded if pattern.fullmatch(item)]
        return fitting[0] if len(fitting) == 1 else None
