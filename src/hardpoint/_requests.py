"""A request: the names that somebody asked for, in order, and who it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hardpoint._names import normalise_name
from hardpoint._say import WARNING, say_once
from hardpoint.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

AUTO: Final = "auto"


class Request(NamedTuple):
    """Names in order of preference. A last ``auto`` opens the automatic order; no names at all is automatic."""

    names: tuple[str, ...] = ()
    source: str = "automatic"

    @property
    def explicit(self) -> tuple[str, ...]:
        """The names without ``auto``."""
        return tuple(name for name in self.names if name != AUTO)

    @property
    def open(self) -> bool:
        """Whether candidates outside the list may be taken."""
        return not self.names or self.names[-1] == AUTO

    @property
    def single(self) -> bool:
        """Whether exactly one name was asked for: its own failure is then the answer."""
        return len(self.names) == 1 and self.names[0] != AUTO

    def source_of(self, name: str) -> str:
        """Who chose this one: whoever asked for it by name, or the automatic order that a last ``auto`` opened."""
        return self.source if name in self.names else "automatic"

    def describe(self) -> str:
        """``asked for by argument: cuda, cpu``, or ``automatic choice``."""
        if not self.explicit:
            return "automatic choice"
        who = "the argument" if self.source == "argument" else self.source
        return f"asked for by {who}: {', '.join(self.names)}"


def read_request(
    argument: str | Sequence[str] | None, from_variable: Sequence[str], variable: str, what: str
) -> Request:
    """The argument's names, or else the variable's. An argument beats the variable, and says so where they differ.

    Errors: `SettingsError` for a value that is no name, or an ``auto`` that is not the last.
    """
    names = _names(argument, what) if argument is not None else ()
    set_names = _checked(tuple(from_variable), variable)
    if not names:
        return Request(set_names, variable) if set_names else Request()
    if set_names and set_names != names:
        say_once(WARNING, "%s=%s (argument) is taken, not %s=%s",
            what, ",".join(names), variable, ",".join(set_names),
        )  # fmt: skip
    return Request(names, "argument")


def plain_names(argument: str | Sequence[str], what: str) -> tuple[str, ...]:
    """The names of an argument as plain strings. Errors: `SettingsError` where something among them is no name."""
    items: list[object]
    try:
        items = [*argument.replace(",", " ").split()] if isinstance(argument, str) else list(argument)
    except TypeError:
        # Neither a text nor a list.
        items = [argument]
    names = []
    for item in items:
        if not isinstance(item, str):
            raise SettingsError(
                f"{what}={argument!r}: expected a name or a list of names, got {type(item).__name__}",
                setting=what,
                value=repr(argument),
            )
        # A subclass may bring anything with it.
        names.append(item if type(item) is str else "".join(item))
    return tuple(names)


def _names(argument: str | Sequence[str], what: str) -> tuple[str, ...]:
    items = plain_names(argument, what)
    return _checked(tuple(name for name in map(normalise_name, items) if name), what)


def _checked(names: tuple[str, ...], what: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(names))
    if AUTO in names[:-1]:
        raise SettingsError(
            f"{what}={','.join(names)}: 'auto' opens the automatic order and stands last",
            setting=what,
            value=",".join(names),
        )
    return names
