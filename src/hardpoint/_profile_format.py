"""The format of a device profile: a JSON file of what a machine with such a device answers when it is asked.

It holds facts, never conclusions: a simulated machine goes through the same detection as a real one. `per_machine` is
there once, `per_device` once for each device, with these names filled in as `str.format` does: `index` (the device's
place among those of its platform, from 0), `node` (index + 1), `bus` (a number that no other device of the machine
has), `uuid` (always the same for the same profile and index). A text that is exactly ``{index:d}`` becomes a number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hardpoint._names import near_miss, normalise_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hardpoint._machine import Json

SCHEMA: Final = 1
PLACEHOLDERS: Final = ("bus", "index", "node", "uuid")
_SAMPLE: Final = {"index": 1, "node": 2, "bus": 17, "uuid": "00000000-0000-0000-0000-000000000000"}

_MACHINE: Final[dict[str, tuple[type, str]]] = {
    "system": (str, "a text such as 'Linux'"),
    "architecture": (str, "a text such as 'x86_64'"),
    "kernel_release": (str, "a text such as '6.8.0'"),
    "cpu_count": (int, "a whole number"),
    "total_memory_bytes": (int, "a whole number of bytes"),
    "cpu_affinity": (list, "a list of CPU numbers"),
}
_FACTS: Final = ("files", "directories", "links", "variables", "distributions", "tools", "probes")
_KEYS: Final = (
    "schema",
    "platform",
    "description",
    "sources",
    "aliases",
    "count",
    "machine",
    "per_machine",
    "per_device",
)


class ProfileContent(NamedTuple):
    """What a profile's file says. `part_devices`: how many devices one such part brings (``count`` in the file)."""

    platform: str
    description: str
    sources: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    part_devices: int = 1
    machine: Mapping[str, Json] = {}
    per_machine: Mapping[str, Json] = {}
    per_device: Mapping[str, Json] = {}

    @property
    def is_host(self) -> bool:
        """Whether it describes the machine itself, of which there is one, and no device that is put into it."""
        return not self.per_device


class FormatError(ValueError):
    """What is wrong with a profile's text: the field, what it holds, what is accepted."""


def parse_profile(content: bytes) -> ProfileContent:
    """Read a profile's file. Errors: `FormatError` with everything that is wrong."""
    data = _load(content)
    if not isinstance(data, dict):
        raise FormatError(f"it holds {_shown(data)}; accepted: an object with {', '.join(_KEYS)}")
    problems = list(_problems(data))
    if problems:
        raise FormatError("; ".join(problems))
    return ProfileContent(
        platform=normalise_name(data["platform"]),
        description=data["description"],
        sources=tuple(data["sources"]),
        aliases=tuple(data.get("aliases", ())),
        part_devices=data.get("count", 1),
        machine=data.get("machine", {}),
        per_machine=data.get("per_machine", {}),
        per_device=data.get("per_device", {}),
    )


def fill_in(value: Json, names: Mapping[str, int | str]) -> Json:
    """A copy with the placeholders of every text, keys too, filled in."""
    if isinstance(value, str):
        if value.startswith("{") and value.endswith(":d}") and isinstance(names.get(value[1:-3]), int):
            return names[value[1:-3]]
        return value.format(**names)
    if isinstance(value, dict):
        return {key.format(**names): fill_in(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [fill_in(item, names) for item in value]
    return value


def _load(content: bytes) -> Json:
    import json

    def refuse(text: str) -> None:
        raise FormatError(f"JSON has no {text}; what is unknown is null")

    try:
        return json.loads(content.decode("utf-8"), parse_constant=refuse, object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise FormatError(f"it is no UTF-8: {error}") from None
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise FormatError(f"it is no JSON: {error}") from None


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for key, value in pairs:
        if key in found:
            raise FormatError(f"{key!r} stands twice in one object")
        found[key] = value
    return found


def _problems(data: dict[str, Json]) -> Iterator[str]:
    schema = data.get("schema")
    if schema != SCHEMA or type(schema) is not int:
        newer = "; a newer hardpoint may read it" if type(schema) is int and schema > SCHEMA else ""
        yield f"schema is {_shown(schema)}; accepted: {SCHEMA}{newer}"
        return
    yield from _unknown(data, _KEYS, "")
    for key in ("platform", "description"):
        if not isinstance(data.get(key), str) or not data[key].strip():
            yield f"{key} is {_shown(data.get(key))}; accepted: a text"
    for key in ("sources", "aliases"):
        value = data.get(key, [] if key == "aliases" else None)
        if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
            yield f"{key} is {_shown(value)}; accepted: a list of texts"
        elif key == "sources" and not value:
            yield "sources is empty; accepted: where each figure comes from"
    count = data.get("count", 1)
    if type(count) is not int or count < 1:
        yield f"count is {_shown(count)}; accepted: how many devices one part brings, at least 1"
    for key in ("machine", "per_machine", "per_device"):
        if not isinstance(data.get(key, {}), dict):
            yield f"{key} is {_shown(data[key])}; accepted: an object"
            return
    yield from _machine_problems(data.get("machine", {}))
    yield from _fact_problems(data.get("per_machine", {}), "per_machine", lambda text: None)
    yield from _fact_problems(data.get("per_device", {}), "per_device", _placeholder_problem)


def _machine_problems(machine: dict[str, Json]) -> Iterator[str]:
    yield from _unknown(machine, tuple(_MACHINE), "machine.")
    for key, (kind, accepted) in _MACHINE.items():
        if key in machine:
            value: Any = machine[key]
            is_right = type(value) is kind and not (isinstance(value, int) and value < 1)
            if kind is list and is_right:
                is_right = all(type(item) is int and item >= 0 for item in value)
            if not is_right:
                yield f"machine.{key} is {_shown(value)}; accepted: {accepted}"


def _fact_problems(facts: dict[str, Json], where: str, problem_of: Callable[[str], str | None]) -> Iterator[str]:
    yield from _unknown(facts, _FACTS, f"{where}.")
    for kind in _FACTS:
        if kind not in facts:
            continue
        value, path = facts[kind], f"{where}.{kind}"
        if kind == "directories":
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                yield f"{path} is {_shown(value)}; accepted: a list of paths"
                continue
        elif not isinstance(value, dict):
            yield f"{path} is {_shown(value)}; accepted: an object"
            continue
        elif kind == "tools":
            for key, item in value.items():
                if not (isinstance(item, str) or (isinstance(item, dict) and list(item) == ["json"])):
                    yield f'{path}[{key!r}] is {_shown(item)}; accepted: the text it prints, or {{"json": …}}'
        elif kind != "probes":
            for key, item in value.items():
                if not isinstance(item, str):
                    yield f"{path}[{key!r}] is {_shown(item)}; accepted: a text"
        for text in _texts(value):
            problem = problem_of(text)
            if problem is not None:
                yield f"{path}: {problem} in {text!r:.120}"


def _placeholder_problem(text: str) -> str | None:
    """Why a text cannot be filled in; None: it can."""
    import string

    accepted = f"accepted: {', '.join(f'{{{name}}}' for name in PLACEHOLDERS)}, and {{{{ or }}}} for a brace"
    try:
        fields = list(string.Formatter().parse(text))
    except ValueError as error:
        return f"{error}; {accepted}:"
    for _, name, spec, conversion in fields:
        # No attributes, no items: a profile is data.
        if name is not None and (name not in PLACEHOLDERS or conversion or "{" in (spec or "")):
            return f"unknown placeholder {{{name}}}; {accepted}:"
    try:
        text.format(**_SAMPLE)
    except ValueError as error:
        return f"{error}; {accepted}:"
    return None


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _unknown(data: dict[str, Json], known: tuple[str, ...], where: str) -> Iterator[str]:
    for key in data:
        if key not in known:
            close = near_miss(key, known)
            guess = f"; did you mean {close}?" if close else f"; accepted: {', '.join(known)}"
            yield f"{where}{key} is unknown{guess}"


def _shown(value: Any) -> str:  # noqa: ANN401  # JSON
    return "missing" if value is None else f"{value!r:.80}"
