"""A machine that answers as another one did: what was not asked there cannot be answered here."""

from __future__ import annotations

import builtins
import re
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from hardpoint._machine import Machine, ToolResult, command_line
from hardpoint._names import normalise_distribution
from hardpoint._recording import may_record_variable
from hardpoint.errors import EnvironmentFailure, NotRecorded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hardpoint._machine import Json
    from hardpoint._recorded_question import Translator

_OS_ERROR = re.compile(r"\[Errno (-?\d{1,6})\] (.*?)(?:: ('.*'|\".*\"))?", re.DOTALL)


class RecordedMachine(Machine):
    """Replays recorded facts; recorded failures are raised again. Whatever else is asked is `NotRecorded`.

    `facts` are what `LiveMachine.recorded_facts` gives, of the right form. `owned` are the names and prefixes of
    variables that plugins owned there: one of those that is not among the facts was not set.
    """

    live = False

    def __init__(self, facts: Mapping[str, Json], owned: Sequence[str] = ()) -> None:
        self._facts = facts
        self._owned = tuple(owned)
        self._variables: dict[str, str] = dict(facts.get("variables", {}))
        self._unset = frozenset(facts.get("unset_variables", ()))
        self._distributions = {
            normalise_distribution(name): entry for name, entry in facts.get("distributions", {}).items()
        }

    def variables(self, prefix: str = "") -> Mapping[str, str]:
        if not may_record_variable(prefix, self._owned):
            self._missing(f"which variables begin with {prefix!r}")
        return MappingProxyType({name: text for name, text in self._variables.items() if name.startswith(prefix)})

    def variable(self, name: str) -> str | None:
        text = self._variables.get(name)
        if text is None and name not in self._unset and not may_record_variable(name, self._owned):
            self._missing(f"the variable {name}")
        return text

    @property
    def system(self) -> str:
        return str(self._answer("machine", "system"))

    @property
    def architecture(self) -> str:
        return str(self._answer("machine", "architecture"))

    @property
    def kernel_release(self) -> str:
        return str(self._answer("machine", "kernel_release"))

    @property
    def python_version(self) -> str:
        return str(self._answer("machine", "python_version"))

    def cpu_affinity(self) -> frozenset[int] | None:
        found = self._answer("machine", "cpu_affinity")
        return None if found is None else frozenset(found)

    def cpu_count(self) -> int | None:
        return self._answer("machine", "cpu_count")  # type: ignore[no-any-return]  # checked when the file was read

    @property
    def user_id(self) -> int | None:
        # Never recorded.
        return None

    def exists(self, path: str) -> bool:
        return self._answer("exists", path) is True

    def list_directory(self, path: str) -> tuple[str, ...]:
        return tuple(self._answer("directories", path))

    def read_bytes(self, path: str, limit: int = 1 << 20) -> bytes:
        text: str = self._answer("files", path)
        return text.encode("utf-8", "surrogateescape")[:limit]

    def can_read_and_write(self, path: str) -> bool:
        return self._answer("access", path) is True

    def real_path(self, path: str) -> str:
        return str(self._answer("real_paths", path))

    def total_memory_bytes(self) -> int | None:
        return self._answer("machine", "total_memory_bytes")  # type: ignore[no-any-return]  # as above

    def distribution_version(self, name: str) -> str | None:
        entry = self._distributions.get(normalise_distribution(name))
        if entry is None:
            self._missing(f"the version of the distribution {name}")
        return self._given(entry)  # type: ignore[no-any-return]  # as above

    def distribution_file(self, name: str, relative_path: str) -> str | None:
        return self._answer("distribution_files", f"{name}: {relative_path}")  # type: ignore[no-any-return]  # as above

    def find_tool(self, name: str) -> str | None:
        return self._answer("tool_paths", name)  # type: ignore[no-any-return]  # as above

    def run_tool(self, arguments: Sequence[str], *, timeout_seconds: float | None = None) -> ToolResult:
        found = self._answer("tools", command_line(arguments))
        return ToolResult(
            returncode=found["returncode"],
            stdout=found["stdout"],
            stderr=found["stderr"],
            truncated=found.get("truncated", False),
        )

    def probe(
        self,
        key: str,
        target: str,
        *,
        arguments: Sequence[str | int | float | bool | None] = (),
        timeout_seconds: float | None = None,
        isolated: bool | None = None,
    ) -> Json:
        return _copy(self._answer("probes", key))

    def _answer(self, kind: str, question: str) -> Any:  # noqa: ANN401  # JSON
        recorded = self._facts.get(kind, {})
        entry = recorded.get(question)
        if entry is None:
            known = self._translator.find(question, recorded)
            if known is None:
                self._missing(f"{_KINDS[kind]} {question!r}")
            entry = recorded[known]
        return self._given(entry)

    @cached_property
    def _translator(self) -> Translator:
        from hardpoint._recorded_question import Translator

        return Translator()

    def _given(self, entry: Mapping[str, Json]) -> Any:  # noqa: ANN401  # JSON
        if "error" in entry:
            raise rebuild_error(entry["error"])
        return entry["value"]

    def _missing(self, what: str) -> NoReturn:
        raise NotRecorded(
            f"nobody asked the recorded machine for {what}",
            code="other",
            remedy="take a new snapshot there, with the plugins that are installed here",
        )


_KINDS = {
    "machine": "the machine's",
    "exists": "whether there is",
    "directories": "the names in",
    "files": "the content of",
    "access": "whether it may open",
    "real_paths": "the real path of",
    "distribution_files": "the file of a distribution",
    "tool_paths": "where there is the tool",
    "tools": "the output of",
    "probes": "the probe",
}


def rebuild_error(described: Mapping[str, Json]) -> Exception:
    """The failure that `Record.note_error` described: of the same type where that is Python's own or ours."""
    name, message = described["type"], described["message"]
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, OSError):
        return _os_error(kind, message, described.get("errno"))
    if isinstance(kind, type) and issubclass(kind, ImportError):
        return kind(message, name=described.get("name"))
    text = message if name in ("EnvironmentFailure", "NotRecorded") else f"{name}: {message}"
    cls = NotRecorded if name == "NotRecorded" else EnvironmentFailure
    try:
        return cls(text, code=described.get("code", "other"), remedy=described.get("remedy"))
    except ValueError:
        # A code that this version does not know.
        return cls(text, remedy=described.get("remedy"))


def _os_error(kind: type[OSError], message: str, number: Json) -> OSError:
    parts = _OS_ERROR.fullmatch(message)
    if parts is None or not isinstance(number, int):
        return kind(message)
    error = kind(int(parts[1]), parts[2], *([parts[3][1:-1]] if parts[3] else []))
    # Quotes and escapes inside a name: then the text is kept as one.
    return error if str(error) == message else kind(message)


def _copy(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value
