"""The format of a snapshot's file, and the check that a file is one. It may come from anywhere and hold anything.

::

    {"kind": "hardpoint snapshot", "schema": 1, "hardpoint": "0.1.0", "owned": ["CUDA_", …],
     "facts": {"machine": {…}, "variables": {…}, "files": {path: {"value": text} or {"error": {…}}}, …},
     "report": {…}, "views": {"text": …}}
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    from hardpoint._machine import Json

KIND: Final = "hardpoint snapshot"
SCHEMA: Final = 1
MAX_BYTES: Final = 64 * 1024 * 1024
"""A record is bounded to an eighth of this; what is longer was not written by us."""

_MAX_DEPTH: Final = 64
_MACHINE: Final = ("system", "architecture", "kernel_release", "python_version")


_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """A text for a terminal: characters that it would obey are written out."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class FormatError(ValueError):
    """What is wrong: the place in the file, what is there, what is accepted."""


def parse_snapshot(content: bytes) -> dict[str, Any]:
    """The file's data, of the right form throughout. Errors: `FormatError`, whatever the bytes are."""
    data = _load(content)
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise FormatError(f'it is no snapshot: there is no "kind": "{KIND}" at its beginning')
    schema = data.get("schema")
    if type(schema) is not int or schema < 1:
        raise FormatError(f"schema is {schema!r:.80}; accepted: {SCHEMA}")
    if schema > SCHEMA:
        made = data.get("hardpoint")
        raise FormatError(
            f"it has schema {schema}, written by hardpoint {made!r:.40}; "
            f"this one reads schema {SCHEMA} and older: update hardpoint"
        )
    _check_texts(data)
    _is(data, "hardpoint", str, "")
    _is(data, "report", dict, "")
    _is(data["report"], "schema", int, "report.")
    _texts(data, "owned", "")
    views = _is(data, "views", dict, "")
    _is(views, "text", str, "views.")
    for name in views:
        text = _is(views, name, str, "views.")
        if (found := _CONTROL.search(text)) is not None:
            # A terminal would obey them.
            raise FormatError(f"views.{name} holds the control character {found[0]!r}; accepted: text")
    _check_facts(_is(data, "facts", dict, ""))
    return data


def _load(content: bytes) -> Json:
    if len(content) > MAX_BYTES:
        raise FormatError(f"it is longer than {MAX_BYTES} bytes, which no snapshot is")
    if not content.strip():
        raise FormatError("it is empty")

    def refuse(text: str) -> NoReturn:
        raise FormatError(f"it is no JSON: {text} is not a number there")

    try:
        return json.loads(content.decode("utf-8"), parse_constant=refuse)
    except UnicodeDecodeError as error:
        raise FormatError(f"it is no UTF-8 text: {error.reason} at byte {error.start}") from None
    except FormatError:
        raise
    except json.JSONDecodeError as error:
        cut = "; it may have been cut off" if error.pos >= len(content.decode("utf-8").rstrip()) - 1 else ""
        raise FormatError(f"it is no JSON: {error}{cut}") from None
    except RecursionError:
        raise FormatError(f"it is nested deeper than {_MAX_DEPTH} levels") from None
    except ValueError as error:
        # A number of thousands of digits.
        raise FormatError(f"it is no JSON that can be read: {error}") from None


def _check_texts(data: Json) -> None:
    """Depth is bounded, every text can be encoded, every number is one."""
    level: list[tuple[str, Json]] = [("", data)]
    for _ in range(_MAX_DEPTH):
        below: list[tuple[str, Json]] = []
        for where, value in level:
            if isinstance(value, str):
                _check_text(value, where)
            elif isinstance(value, float) and value - value != 0.0:
                raise FormatError(f"{where} is {value!r}, which is no number")
            elif isinstance(value, list):
                below += [(where, item) for item in value]
            elif isinstance(value, dict):
                for key, item in value.items():
                    _check_text(key, where)
                    below.append((f"{where}.{key}" if len(where) < 200 else where, item))
        if not below:
            return
        level = below
    raise FormatError(f"it is nested deeper than {_MAX_DEPTH} levels")


def _check_text(text: str, where: str) -> None:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise FormatError(f"{where.lstrip('.') or 'a name'} holds half a character") from None


def _check_facts(facts: dict[str, Any]) -> None:
    variables = _is(facts, "variables", dict, "facts.")
    for name in variables:
        _is(variables, name, str, "facts.variables.")
    _texts(facts, "unset_variables", "facts.")
    for kind, is_right in _VALUES.items():
        entries = facts.get(kind, {})
        if not isinstance(entries, dict):
            _wrong(f"facts.{kind}", entries, "an object")
        for question, entry in entries.items():
            _check_entry(f"facts.{kind}[{question!r:.200}]", question, entry, is_right)
    for name in _MACHINE:
        if not isinstance(facts.get("machine", {}).get(name, {}).get("value"), str):
            raise FormatError(f"facts.machine.{name} is missing")
    for name in ("cpu_count", "total_memory_bytes"):
        if "value" not in facts["machine"].get(name, {}):
            raise FormatError(f"facts.machine.{name} is missing")


def _check_entry(where: str, question: str, entry: Json, is_right: Callable[[str, Json], bool]) -> None:
    if not isinstance(entry, dict):
        _wrong(where, entry, 'an object with "value" or "error"')
    error = entry.get("error")
    if "error" in entry:
        if not isinstance(error, dict) or not all(isinstance(error.get(name), str) for name in ("type", "message")):
            _wrong(f"{where}.error", error, "an object with type and message")
        for name in ("code", "remedy", "name"):
            if not isinstance(error.get(name, ""), str):
                _wrong(f"{where}.error.{name}", error[name], "a text")
        if type(error.get("errno", 0)) is not int or not -(1 << 31) < error.get("errno", 0) < 1 << 31:
            _wrong(f"{where}.error.errno", error["errno"], "a number")
    elif "value" not in entry or not is_right(question, entry["value"]):
        _wrong(f"{where}.value", entry.get("value"), "an answer of its kind")


def _is_machine_fact(question: str, value: Json) -> bool:
    if question in _MACHINE:
        return isinstance(value, str)
    if question == "cpu_affinity":
        return value is None or (isinstance(value, list) and all(_is_count(item) for item in value))
    return value is None or _is_count(value)


def _is_count(value: Json) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_tool_result(value: Json) -> bool:
    return (
        isinstance(value, dict)
        and type(value.get("returncode")) is int
        and isinstance(value.get("stdout"), str)
        and isinstance(value.get("stderr"), str)
        and isinstance(value.get("truncated", False), bool)
    )


def _is_list_of_texts(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


_VALUES: Final[dict[str, Callable[[str, Json], bool]]] = {
    "machine": _is_machine_fact,
    "exists": lambda question, value: isinstance(value, bool),
    "directories": lambda question, value: _is_list_of_texts(value),
    "files": lambda question, value: isinstance(value, str),
    "access": lambda question, value: isinstance(value, bool),
    "real_paths": lambda question, value: isinstance(value, str),
    "distributions": lambda question, value: value is None or isinstance(value, str),
    "distribution_files": lambda question, value: value is None or isinstance(value, str),
    "tool_paths": lambda question, value: value is None or isinstance(value, str),
    "tools": lambda question, value: _is_tool_result(value),
    "probes": lambda question, value: True,
}


def _is(data: dict[str, Any], name: str, kind: type, where: str) -> Any:  # noqa: ANN401  # JSON
    value = data.get(name)
    if type(value) is not kind:
        _wrong(f"{where}{name}", value, {str: "a text", dict: "an object", int: "a number"}[kind])
    return value


def _texts(data: dict[str, Any], name: str, where: str) -> None:
    value = data.get(name)
    if not _is_list_of_texts(value):
        _wrong(f"{where}{name}", value, "a list of texts")


def _wrong(where: str, value: Json, accepted: str) -> NoReturn:
    shown = "missing" if value is None else f"{value!r:.80}"
    raise FormatError(f"{where} is {shown}; accepted: {accepted}")
