"""A machine that answers from data: for tests, simulation and replay. Touches nothing of this computer."""

from __future__ import annotations

import errno
import os
import posixpath
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING

from hardpoint._machine import Machine, ToolResult, command_line
from hardpoint._names import normalise_distribution
from hardpoint.errors import NotRecorded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hardpoint._machine import Json


class InMemoryMachine(Machine):
    """A machine made of what it is given; everything else is absent, and what nobody recorded is `NotRecorded`.

    - `files`: content by path, or the `OSError` that reading it raises. Their folders exist; `directories` adds empty
      ones, and a mapping there may name the error that listing one raises.
    - `links`: what a path is a link to. `read_only`: paths that may not be opened for writing (and all below).
    - `distributions`: versions by name; `distribution_folders`: the folder that a distribution's files lie in, by name.
    - `tools`: by name or by whole command line (``"xyz-smi -q"``) a `ToolResult`, the text it prints, a function of the
      arguments, or the error it ends with.
    - `probes`: by key the JSON answer or the error.
    - Unknown is None: `cpu_count`, `affinity`, `total_memory_bytes`, `user_id`.

    The inputs are copied. `questions` counts what was asked, as ``"read /proc/cpuinfo"``.
    """

    live = False

    def __init__(
        self,
        *,
        system: str = "Linux",
        architecture: str = "x86_64",
        kernel_release: str = "",
        python_version: str = "3.11.0",
        variables: Mapping[str, str] | None = None,
        files: Mapping[str, str | bytes | OSError] | None = None,
        directories: Iterable[str] | Mapping[str, OSError | None] = (),
        links: Mapping[str, str] | None = None,
        read_only: Iterable[str] = (),
        affinity: Iterable[int] | None = None,
        cpu_count: int | None = None,
        user_id: int | None = 1000,
        total_memory_bytes: int | None = None,
        distributions: Mapping[str, str] | None = None,
        distribution_folders: Mapping[str, str] | None = None,
        tools: Mapping[str, str | ToolResult | Exception | Callable[[Sequence[str]], ToolResult]] | None = None,
        probes: Mapping[str, Json | Exception] | None = None,
    ) -> None:
        self._system = system
        self._architecture = architecture
        self._kernel_release = kernel_release
        self._python_version = python_version
        self._variables = dict(variables or {})
        self._files = {_normal(path): content for path, content in (files or {}).items()}
        named = directories if isinstance(directories, dict) else dict.fromkeys(directories)
        self._listing_errors = {_normal(path): error for path, error in named.items() if error is not None}
        self._links = {_normal(path): target for path, target in (links or {}).items()}
        self._directories = _folders_of((*self._files, *self._links), map(_normal, named))
        self._read_only = tuple(map(_normal, read_only))
        self._affinity = None if affinity is None else frozenset(affinity)
        self._cpu_count = cpu_count
        self._user_id = user_id
        self._total_memory_bytes = total_memory_bytes
        self._distributions = {normalise_distribution(name): text for name, text in (distributions or {}).items()}
        self._distribution_folders = {
            normalise_distribution(name): folder for name, folder in (distribution_folders or {}).items()
        }
        self._tools = dict(tools or {})
        self._probes = {key: _copy(answer) for key, answer in (probes or {}).items()}
        self.questions: Counter[str] = Counter()

    def variables(self, prefix: str = "") -> Mapping[str, str]:
        self.questions[f"variables {prefix}"] += 1
        return MappingProxyType({name: text for name, text in self._variables.items() if name.startswith(prefix)})

    def variable(self, name: str) -> str | None:
        self.questions[f"variable {name}"] += 1
        return self._variables.get(name)

    @property
    def system(self) -> str:
        return self._system

    @property
    def architecture(self) -> str:
        return self._architecture

    @property
    def kernel_release(self) -> str:
        return self._kernel_release

    @property
    def python_version(self) -> str:
        return self._python_version

    def cpu_affinity(self) -> frozenset[int] | None:
        return self._affinity

    def cpu_count(self) -> int | None:
        return self._cpu_count

    @property
    def user_id(self) -> int | None:
        return self._user_id

    def exists(self, path: str) -> bool:
        self.questions[f"exists {path}"] += 1
        real = self._resolve(path)
        return real in self._files or real in self._directories

    def list_directory(self, path: str) -> tuple[str, ...]:
        self.questions[f"list {path}"] += 1
        real = self._resolve(path)
        if real in self._listing_errors:
            raise _fresh(self._listing_errors[real])
        if real in self._files:
            raise _os_error(errno.ENOTDIR, path)
        if real not in self._directories:
            raise _os_error(errno.ENOENT, path)
        inside = real.rstrip("/") + "/"
        everything = (*self._files, *self._links, *self._directories)
        return tuple(
            sorted({item[len(inside) :].partition("/")[0] for item in everything if item.startswith(inside)} - {""})
        )

    def read_bytes(self, path: str, limit: int = 1 << 20) -> bytes:
        self.questions[f"read {path}"] += 1
        real = self._resolve(path)
        if real in self._directories:
            raise _os_error(errno.EISDIR, path)
        content = self._files.get(real)
        if content is None:
            raise _os_error(errno.ENOENT, path)
        if isinstance(content, OSError):
            raise _fresh(content)
        return (content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content)[:limit]

    def can_read_and_write(self, path: str) -> bool:
        self.questions[f"access {path}"] += 1
        real = self._resolve(path)
        if isinstance(self._files.get(real), OSError) or (real not in self._files and real not in self._directories):
            return False
        return not any(real == folder or real.startswith(folder.rstrip("/") + "/") for folder in self._read_only)

    def real_path(self, path: str) -> str:
        self.questions[f"real path {path}"] += 1
        return self._resolve(path)

    def total_memory_bytes(self) -> int | None:
        return self._total_memory_bytes

    def distribution_version(self, name: str) -> str | None:
        self.questions[f"distribution {name}"] += 1
        return self._distributions.get(normalise_distribution(name))

    def distribution_file(self, name: str, relative_path: str) -> str | None:
        self.questions[f"distribution file {name}: {relative_path}"] += 1
        folder = self._distribution_folders.get(normalise_distribution(name))
        path = None if folder is None else posixpath.join(folder, relative_path)
        return path if path is not None and self._resolve(path) in self._files else None

    def find_tool(self, name: str) -> str | None:
        self.questions[f"find {name}"] += 1
        known = any(command.partition(" ")[0] == name for command in self._tools)
        return f"/usr/bin/{name}" if known else None

    def run_tool(self, arguments: Sequence[str], *, timeout_seconds: float | None = None) -> ToolResult:
        command = command_line(arguments)
        self.questions[f"run {command}"] += 1
        answer = self._tools.get(command, self._tools.get(arguments[0]))
        if answer is None:
            if self.find_tool(arguments[0]) is None:
                raise _os_error(errno.ENOENT, arguments[0])
            raise NotRecorded(f"this machine has no record of what {command!r} prints", code="other")
        if isinstance(answer, Exception):
            raise _fresh(answer)
        if isinstance(answer, str):
            return ToolResult(returncode=0, stdout=answer, stderr="")
        return answer if isinstance(answer, ToolResult) else answer(arguments)

    def probe(
        self,
        key: str,
        target: str,
        *,
        arguments: Sequence[str | int | float | bool | None] = (),
        timeout_seconds: float | None = None,
        isolated: bool | None = None,
    ) -> Json:
        self.questions[f"probe {key}"] += 1
        if key not in self._probes:
            raise NotRecorded(f"this machine has no record of the probe {key!r} ({target})", code="other")
        answer = self._probes[key]
        if isinstance(answer, Exception):
            raise _fresh(answer)
        return _copy(answer)

    def _resolve(self, path: str) -> str:
        """The path with its links resolved; a loop ends where it began to repeat."""
        current = _normal(path)
        for _ in range(40):  # as many as Linux follows
            head = next((link for link in _ancestors(current) if link in self._links), None)
            if head is None:
                break
            rest = current[len(head) :]
            current = _normal(posixpath.join(posixpath.dirname(head), self._links[head]) + rest)
        return current


def _normal(path: str) -> str:
    return posixpath.normpath(path)


def _ancestors(path: str) -> list[str]:
    """The path's own ancestors from the root on, and itself."""
    parts = path.split("/")
    return ["/".join(parts[: count + 1]) or "/" for count in range(len(parts))]


def _folders_of(paths: Iterable[str], named: Iterable[str]) -> frozenset[str]:
    folders = {"/"} | {folder for path in paths for folder in _ancestors(path)[:-1]}
    return frozenset(folders | {folder for path in named for folder in _ancestors(path)})


def _os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _fresh(error: Exception | None) -> Exception:
    """An equal exception without the traceback of an earlier raise, so that nothing is kept alive by being raised."""
    import copy

    return copy.copy(error).with_traceback(None)  # type: ignore[union-attr]  # callers have checked


def _copy(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copy(item) for item in value]
    return value
