"""The fields of a model's configuration, each checked where it is used: a file may come from anywhere."""

from __future__ import annotations

import math
import reprlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Json = Any  # what JSON can hold

MAX_LAYERS: Final = 10_000
MAX_NESTING: Final = 32
"""Far beyond any published model: more is a mistake, and would be counted for ever."""

_LARGEST: Final = 2**63 - 1


class FieldError(ConfigError):
    """A value that a field cannot have: says which, and what is accepted."""

    def __init__(self, field: str, value: Json, accepted: str) -> None:
        super().__init__(f"{field}={reprlib.repr(value)}: accepted is {accepted}", field=field)
        self.value = value
        self.accepted = accepted


@contextmanager
def inside(name: str) -> Iterator[None]:
    """Errors of a nested configuration's fields name the way to them."""
    try:
        yield
    except FieldError as error:
        raise FieldError(f"{name}.{error.field}", error.value, error.accepted) from None


def first_name(data: Mapping[str, Json], names: tuple[str, ...]) -> str | None:
    """The first of the names that is stated: models of different classes call one thing differently."""
    return next((name for name in names if data.get(name) is not None), None)


def integer(
    data: Mapping[str, Json], names: tuple[str, ...], *, minimum: int = 1, maximum: int = _LARGEST
) -> int | None:
    """The first one stated, or None. Errors: `FieldError`."""
    name = first_name(data, names)
    if name is None:
        return None
    value = data[name]
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        is_bound = maximum < _LARGEST or (isinstance(value, int) and value > maximum)
        limits = f"from {minimum} to {maximum:,}" if is_bound else f"of {minimum} or more"
        raise FieldError(name, value, f"an integer {limits}")
    return value


def unlimited(data: Mapping[str, Json], names: tuple[str, ...]) -> int | None:
    """As `integer`, of a limit; 0 and -1 are how some write that there is none."""
    value = integer(data, names, minimum=-1)
    return value if value is not None and value > 0 else None


def number(data: Mapping[str, Json], names: tuple[str, ...]) -> float | None:
    """The first one stated, a positive number; 0 is how some write None. Errors: `FieldError`."""
    name = first_name(data, names)
    if name is None:
        return None
    value = data[name]
    try:
        found = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    except OverflowError:
        found = math.nan
    if not (math.isfinite(found) and found >= 0):
        raise FieldError(name, value, "a finite number of 0 or more")
    return found or None


def text(data: Mapping[str, Json], names: tuple[str, ...]) -> str | None:
    """The first one stated. Errors: `FieldError`."""
    name = first_name(data, names)
    if name is not None and not isinstance(data[name], str):
        raise FieldError(name, data[name], "a string")
    return None if name is None else data[name]


def items(data: Mapping[str, Json], names: tuple[str, ...], kind: type, called: str) -> list[Json] | None:
    """The first one stated that is not empty: a list of one kind of items. Errors: `FieldError`."""
    name = next((name for name in names if data.get(name) not in (None, [])), None)
    if name is None:
        return None
    value = data[name]
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value) or len(value) > MAX_LAYERS:
        raise FieldError(name, value, f"a list of at most {MAX_LAYERS:,} {called}")
    return value


def model_type_of(data: Mapping[str, Json]) -> str:
    """The model's class, in small letters. Errors: `FieldError`."""
    return (text(data, ("model_type",)) or "").lower()


def check_nesting(data: Json) -> None:
    """Errors: `ConfigError` for a configuration whose objects and lists are nested too deeply to be read."""
    level = [data]
    for _ in range(MAX_NESTING):
        level = [
            inner
            for item in level
            for inner in (item.values() if isinstance(item, dict) else item)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return
    raise ConfigError(f"nested too deeply: accepted are {MAX_NESTING} levels", field="model")
