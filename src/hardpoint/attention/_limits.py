"""Limits: which values of one field a backend takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from hardpoint.errors import ContractError


class Limit(Protocol):
    """Which values of one field are taken."""

    def accepts(self, value: object) -> bool:
        """Whether the value is taken."""

    def describe(self) -> str:
        """What is taken, for a reason's text: ``a multiple of 8, at most 256``."""


@dataclass(frozen=True, slots=True)
class Anything:
    """Every value."""

    def accepts(self, value: object) -> bool:
        return True

    def describe(self) -> str:
        return "any value"


ANYTHING: Final = Anything()
"""Every value of the field."""


class OneOf:
    """One of the listed values."""

    __slots__ = ("_flags", "_others", "_text", "values")

    def __init__(self, *values: object) -> None:
        self.values = values
        # A window of 1 is no True and a head count of 0 no False: the types count.
        self._flags = tuple(value for value in values if isinstance(value, bool))
        self._others = tuple(value for value in values if not isinstance(value, bool))
        self._text = " or ".join(str(value) for value in values)

    def accepts(self, value: object) -> bool:
        return value in (self._flags if value is True or value is False else self._others)

    def describe(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OneOf):
            return NotImplemented
        return self._flags == other._flags and self._others == other._others

    def __hash__(self) -> int:
        return hash((self._flags, self._others))

    def __repr__(self) -> str:
        return f"OneOf({', '.join(map(repr, self.values))})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Integers:
    """Whole numbers in a range (both ends included) that are multiples of something; None passes if `or_none`."""

    minimum: int = 1
    maximum: int | None = None
    multiple_of: int = 1
    or_none: bool = False

    def __post_init__(self) -> None:
        if self.multiple_of < 1:
            raise ContractError(f"Integers(multiple_of={self.multiple_of}): must be at least 1")

    def accepts(self, value: object) -> bool:
        if value is None:
            return self.or_none
        return (
            isinstance(value, int)
            and value >= self.minimum
            and (self.maximum is None or value <= self.maximum)
            and value % self.multiple_of == 0
        )

    def describe(self) -> str:
        parts = []
        if self.multiple_of > 1:
            parts.append(f"a multiple of {self.multiple_of}")
        if self.minimum > 1:
            parts.append(f"at least {self.minimum}")
        if self.maximum is not None:
            parts.append(f"at most {self.maximum}")
        text = ", ".join(parts) or ("any number" if self.minimum < 1 else "any positive number")
        return f"{text} (or none)" if self.or_none else text
