"""The record of what a machine was asked and what it answered: plain data, bounded, and without secrets.

It is what a snapshot is made of. An entry is ``{"value": …}`` or ``{"error": {"type", "message", …}}``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hardpoint._machine import Json, ToolResult

MAX_ENTRIES: Final = 4096
"""Questions kept per kind. What comes later is counted, and not kept."""

MAX_TEXT: Final = 64 * 1024
"""Characters kept of one text, about."""

MAX_TOTAL: Final = 8 * 1024 * 1024
"""Characters kept of all texts together, about."""

_MAX_ERROR_TEXT: Final = 4 * 1024

_PREFIXES: Final = ("HARDPOINT_",)
_NAMES: Final = frozenset(
    {
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "HIP_VISIBLE_DEVICES",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "NEURON_RT_NUM_CORES",
        "NEURON_RT_VISIBLE_CORES",
        "NVIDIA_VISIBLE_DEVICES",
        "OMP_NUM_THREADS",
        "PROCESSOR_IDENTIFIER",
        "RANK",
        "ROCR_VISIBLE_DEVICES",
        "WORLD_SIZE",
        "ZE_AFFINITY_MASK",
    }
)
_SECRET: Final = ("TOKEN", "KEY", "SECRET", "PASS")


def may_record_variable(name: str, owned: Iterable[str] = ()) -> bool:
    """Whether a variable's value may be written down: ours, a plugin's own (names or prefixes), or a reviewed one.

    A name that sounds like a secret never enters, whoever owns it.
    """
    return not is_secret_name(name) and (name in _NAMES or name.startswith((*_PREFIXES, *owned)))


def is_secret_name(name: str) -> bool:
    """Whether a variable's name sounds like that of a secret."""
    upper = name.upper()
    return any(word in upper for word in _SECRET)


def plain(value: object) -> Json:
    """A copy of JSON data: tuples as lists, subclasses of `str` and numbers as what they stand for.

    Errors: `TypeError` or `ValueError` for what JSON cannot hold.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if value - value != 0.0:
            raise ValueError(f"JSON cannot hold {value!r}; unknown is None")
        return float(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        strange = next((key for key in value if not isinstance(key, str)), None)
        if strange is not None:
            raise TypeError(f"JSON's keys are strings, not {type(strange).__name__}: {strange!r}")
        return {str.__str__(key): plain(item) for key, item in value.items()}
    raise TypeError(f"JSON cannot hold {type(value).__name__}: {value!r:.200}")


class Record:
    """Entries by kind of question and by question. A few dictionary writes per question; safe in threads and forks."""

    def __init__(self) -> None:
        self._kinds: dict[str, dict[str, dict[str, Json]]] = {}
        self._total = 0
        self._left_out = 0

    def note(self, kind: str, question: str, value: object) -> None:
        """Write down an answer: JSON data."""
        self._write(kind, question, {"value": value})

    def note_text(self, kind: str, question: str, value: bytes) -> None:
        """Write down a file's content; a long one is cut, and says so."""
        self._total += min(len(value), MAX_TEXT)
        if self._total > MAX_TOTAL:
            self._left_out += 1
            return
        entry: dict[str, Json] = {"value": value[:MAX_TEXT].decode("utf-8", "surrogateescape")}
        if len(value) > MAX_TEXT:
            entry["length"] = len(value)
        self._write(kind, question, entry)

    def note_tool(self, command: str, result: ToolResult) -> None:
        """Write down what a tool printed; a long text is cut, and says so."""
        entry: dict[str, Json] = {
            "returncode": result.returncode,
            "stdout": result.stdout[:MAX_TEXT],
            "stderr": result.stderr[:_MAX_ERROR_TEXT],
        }
        if result.truncated or (entry["stdout"], entry["stderr"]) != (result.stdout, result.stderr):
            entry["truncated"] = True
        self.note("tools", command, entry)

    def note_error(self, kind: str, question: str, error: BaseException) -> None:
        """Write down a failure, as text."""
        entry: dict[str, Json] = {"type": type(error).__name__, "message": str(error)[:MAX_TEXT]}
        for name in ("errno", "code", "remedy", "name"):
            value = getattr(error, name, None)
            if isinstance(value, int | str):
                entry[name] = value if isinstance(value, int) else str(value)
        self._write(kind, question, {"error": entry})

    def as_dict(self) -> dict[str, Json]:
        """A copy of it all, sorted: a mapping per kind, and how many entries were left out."""
        kinds = {
            kind: {key: dict(entry) for key, entry in sorted(entries.copy().items())}
            for kind, entries in sorted(self._kinds.copy().items())
        }
        return {**kinds, "left_out": self._left_out}

    def _write(self, kind: str, question: str, entry: dict[str, Json]) -> None:
        entries = self._kinds.setdefault(kind, {})
        if len(entries) >= MAX_ENTRIES and question not in entries:
            self._left_out += 1
            return
        entries[question] = entry
