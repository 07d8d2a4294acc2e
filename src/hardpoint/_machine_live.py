"""This computer. What is asked and answered is written down, so that it can be replayed elsewhere.

No answer is kept to save time: a caller that wants to keep one keeps it. Nothing is ever written to the environment.
Modules that only some systems have, and those that take long to load, are imported by the method that needs them.
"""

from __future__ import annotations

import os
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

from hardpoint._machine import Machine, ToolResult, command_line
from hardpoint._recording import Record, is_secret_name, may_record_variable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hardpoint._machine import Json

_T = TypeVar("_T")

_MAX_VARIABLES: Final = 1024
# A FIFO without a writer, or a terminal, must not hold us up or become ours.
_READ_FLAGS: Final = (
    os.O_RDONLY
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_BINARY", 0)
)


class LiveMachine(Machine):
    """The computer that this process runs on. Safe in threads and in the child of a fork; cheap to make."""

    live = True

    def __init__(self) -> None:
        self._record = Record()
        self._variables: dict[str, tuple[bytes, bytes | None, str | None]] = {}

    def recorded_facts(self, owned: Sequence[str] = ()) -> dict[str, Json]:
        """What was asked so far and what was answered, by kind of question: JSON data, bounded, a copy.

        Variables enter by an allow-list; `owned` adds the names or prefixes that plugins own. Text is not redacted.
        """
        facts = self._record.as_dict()
        asked = sorted(self._variables.copy().items())
        facts["variables"] = {
            name: text for name, (_, _, text) in asked if text is not None and may_record_variable(name, owned)
        }
        facts["unset_variables"] = [name for name, (_, _, text) in asked if text is None and not is_secret_name(name)]
        return facts

    def variables(self, prefix: str = "") -> Mapping[str, str]:
        found = {name: text for name, text in _environment().items() if name.startswith(prefix)}
        for name in found:
            if may_record_variable(name):
                self.variable(name)
        return MappingProxyType(found)

    def variable(self, name: str) -> str | None:
        # Asked at every selection, so it looks where os.environ keeps its data: through os.environ a variable that is
        # not set costs 1.5 µs, this way 0.3 µs.
        try:
            key, known, text = self._variables[name]
            raw = os.environ._data.get(key)  # type: ignore[attr-defined]  # noqa: SLF001
        except (KeyError, AttributeError):
            return self._variable_slowly(name)
        if raw == known:
            return text
        text = None if raw is None else os.fsdecode(raw)
        self._variables[name] = (key, raw, text)
        return text

    def _variable_slowly(self, name: str) -> str | None:
        """The first look, and every one where `os.environ` is not as CPython makes it on POSIX."""
        text = os.environ.get(name)
        if os.name == "posix" and len(self._variables) < _MAX_VARIABLES:
            self._variables[name] = (os.fsencode(name), None if text is None else os.fsencode(text), text)
        return text

    @property
    def system(self) -> str:
        return self._noted("machine", "system", lambda: _uname(0))

    @property
    def architecture(self) -> str:
        return self._noted("machine", "architecture", lambda: _uname(4))

    @property
    def kernel_release(self) -> str:
        return self._noted("machine", "kernel_release", lambda: _uname(2))

    @property
    def python_version(self) -> str:
        return self._noted("machine", "python_version", lambda: sys.version.partition(" ")[0])

    def cpu_affinity(self) -> frozenset[int] | None:
        try:
            found = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        except OSError:
            # A sandbox that forbids the call.
            found = None
        self._record.note("machine", "cpu_affinity", None if found is None else sorted(found))
        return found

    def cpu_count(self) -> int | None:
        return self._noted("machine", "cpu_count", os.cpu_count)

    @property
    def user_id(self) -> int | None:
        # Not recorded: it says something of a person and nothing of a machine.
        return os.getuid() if hasattr(os, "getuid") else None

    def exists(self, path: str) -> bool:
        return self._noted("exists", path, lambda: os.path.exists(path))

    def list_directory(self, path: str) -> tuple[str, ...]:
        try:
            names = tuple(sorted(os.listdir(path)))
        except OSError as error:
            self._record.note_error("directories", path, error)
            raise
        self._record.note("directories", path, list(names))
        return names

    def read_bytes(self, path: str, limit: int = 1 << 20) -> bytes:
        try:
            content = _read(path, limit)
        except OSError as error:
            self._record.note_error("files", path, error)
            raise
        self._record.note_text("files", path, content)
        return content

    def can_read_and_write(self, path: str) -> bool:
        # As the effective user, which is who would open it.
        effective = os.access in os.supports_effective_ids
        return self._noted("access", path, lambda: os.access(path, os.R_OK | os.W_OK, effective_ids=effective))

    def real_path(self, path: str) -> str:
        return self._noted("real_paths", path, lambda: os.path.realpath(path))

    def total_memory_bytes(self) -> int | None:
        return self._noted("machine", "total_memory_bytes", _total_memory_bytes)

    def distribution_version(self, name: str) -> str | None:
        from hardpoint._discovery import installed_version

        return self._noted("distributions", name, lambda: installed_version(name))

    def distribution_versions(self, names: Sequence[str]) -> dict[str, str | None]:
        from hardpoint._discovery import InstalledVersions

        # Most of what an answer costs is to list the folders.
        installed = InstalledVersions()
        found = {name: installed.version(name) for name in names}
        for name, version in found.items():
            self._record.note("distributions", name, version)
        return found

    def distribution_file(self, name: str, relative_path: str) -> str | None:
        from hardpoint._discovery_installed import installed_file

        return self._noted(
            "distribution_files", f"{name}: {relative_path}", lambda: installed_file(name, relative_path)
        )

    def find_tool(self, name: str) -> str | None:
        return self._noted("tool_paths", name, lambda: _find_tool(name, os.environ.get("PATH", os.defpath)))

    def run_tool(self, arguments: Sequence[str], *, timeout_seconds: float | None = None) -> ToolResult:
        command = command_line(arguments)
        try:
            result = self._run_tool(arguments, command, timeout_seconds)
        except OSError as error:
            self._record.note_error("tools", command, error)
            raise
        self._record.note_tool(command, result)
        return result

    def _run_tool(self, arguments: Sequence[str], command: str, timeout_seconds: float | None) -> ToolResult:
        import errno

        from hardpoint._running import run
        from hardpoint._settings import read_probe_timeout

        path = self.find_tool(arguments[0])
        if path is None:
            raise FileNotFoundError(errno.ENOENT, "no such tool on the search path", arguments[0])
        finished = run(
            [path, *arguments[1:]],
            described=command,
            timeout_seconds=read_probe_timeout(self) if timeout_seconds is None else timeout_seconds,
            # Tools translate their words and their decimal points.
            environment={**_environment(), "LC_ALL": "C", "LANGUAGE": "C"},
        )
        return ToolResult(
            returncode=finished.returncode,
            stdout=finished.stdout.decode("utf-8", "replace"),
            stderr=finished.stderr.decode("utf-8", "replace"),
            truncated=finished.truncated,
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
        from hardpoint._settings import ISOLATED, read_probe, read_probe_timeout

        if isolated is None:
            isolated = read_probe(self) == ISOLATED
        try:
            if isolated:
                from hardpoint._isolation import ask_isolated

                seconds = read_probe_timeout(self) if timeout_seconds is None else timeout_seconds
                answer = ask_isolated(key, target, arguments, seconds)
            else:
                from hardpoint._probe_target import ask

                answer = ask(key, target, arguments)
        except (ImportError, OSError) as error:
            self._record.note_error("probes", key, error)
            raise
        self._record.note("probes", key, answer)
        return answer

    def _noted(self, kind: str, question: str, answer: Callable[[], _T]) -> _T:
        found = answer()
        self._record.note(kind, question, found)
        return found


def _environment() -> dict[str, str]:
    # Not os.environ.copy(), which raises KeyError where another thread deletes a variable meanwhile.
    pairs = [(name, os.environ.get(name)) for name in list(os.environ)]
    return {name: text for name, text in pairs if text is not None}


def _uname(position: int) -> str:
    if hasattr(os, "uname"):
        return os.uname()[position]
    # Windows. It takes a while to load.
    import platform

    return platform.uname()[position]


def _read(path: str, limit: int) -> bytes:
    chunks: list[bytes] = []
    descriptor = os.open(path, _READ_FLAGS)
    try:
        while limit > 0 and (chunk := os.read(descriptor, min(limit, 1 << 20))):
            chunks.append(chunk)
            limit -= len(chunk)
    except OSError as error:
        error.filename = path
        raise
    finally:
        os.close(descriptor)
    return b"".join(chunks)


def _total_memory_bytes() -> int | None:
    try:
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        # Windows has no sysconf, and not every system has these names.
        return None
    return size if size > 0 else None


def _find_tool(name: str, search_path: str) -> str | None:
    """Where a tool stands. Relative folders do not count: whoever fills the working directory chooses no tool."""
    if os.name == "nt":
        # It knows which endings a program may have there.
        import shutil

        return shutil.which(name, path=search_path)
    if os.path.dirname(name):
        return name if _is_program(name) else None
    folders = (folder for folder in search_path.split(os.pathsep) if os.path.isabs(folder))
    return next((path for path in (os.path.join(folder, name) for folder in folders) if _is_program(path)), None)


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
