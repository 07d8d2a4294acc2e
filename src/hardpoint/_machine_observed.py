"""A machine that passes every question on to another one and writes the answers down, as the live one does itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from hardpoint._machine import Machine, command_line
from hardpoint._recording import Record, is_secret_name, may_record_variable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hardpoint._machine import Json, ToolResult

_T = TypeVar("_T")


class ObservedMachine(Machine):
    """So that a simulated or replayed machine can be put into a snapshot too."""

    def __init__(self, inner: Machine) -> None:
        self._inner = inner
        self._record = Record()
        self._variables: dict[str, str | None] = {}
        self.live = inner.live

    def recorded_facts(self, owned: Sequence[str] = ()) -> dict[str, Json]:
        """As `LiveMachine.recorded_facts`."""
        facts = self._record.as_dict()
        asked = sorted(self._variables.items())
        facts["variables"] = {
            name: text for name, text in asked if text is not None and may_record_variable(name, owned)
        }
        facts["unset_variables"] = [name for name, text in asked if text is None and not is_secret_name(name)]
        return facts

    def variables(self, prefix: str = "") -> Mapping[str, str]:
        found = self._inner.variables(prefix)
        self._variables.update({name: text for name, text in found.items() if may_record_variable(name)})
        return found

    def variable(self, name: str) -> str | None:
        text = self._variables[name] = self._inner.variable(name)
        return text

    @property
    def system(self) -> str:
        return self._noted("machine", "system", lambda: self._inner.system)

    @property
    def architecture(self) -> str:
        return self._noted("machine", "architecture", lambda: self._inner.architecture)

    @property
    def kernel_release(self) -> str:
        return self._noted("machine", "kernel_release", lambda: self._inner.kernel_release)

    @property
    def python_version(self) -> str:
        return self._noted("machine", "python_version", lambda: self._inner.python_version)

    def cpu_affinity(self) -> frozenset[int] | None:
        found = self._inner.cpu_affinity()
        self._record.note("machine", "cpu_affinity", None if found is None else sorted(found))
        return found

    def cpu_count(self) -> int | None:
        return self._noted("machine", "cpu_count", self._inner.cpu_count)

    @property
    def user_id(self) -> int | None:
        return self._inner.user_id

    def exists(self, path: str) -> bool:
        return self._noted("exists", path, lambda: self._inner.exists(path))

    def list_directory(self, path: str) -> tuple[str, ...]:
        return tuple(self._noted("directories", path, lambda: list(self._inner.list_directory(path))))

    def read_bytes(self, path: str, limit: int = 1 << 20) -> bytes:
        content = self._tried("files", path, lambda: self._inner.read_bytes(path, limit))
        self._record.note_text("files", path, content)
        return content

    def can_read_and_write(self, path: str) -> bool:
        return self._noted("access", path, lambda: self._inner.can_read_and_write(path))

    def real_path(self, path: str) -> str:
        return self._noted("real_paths", path, lambda: self._inner.real_path(path))

    def total_memory_bytes(self) -> int | None:
        return self._noted("machine", "total_memory_bytes", self._inner.total_memory_bytes)

    def distribution_version(self, name: str) -> str | None:
        return self._noted("distributions", name, lambda: self._inner.distribution_version(name))

    def distribution_file(self, name: str, relative_path: str) -> str | None:
        question = f"{name}: {relative_path}"
        return self._noted("distribution_files", question, lambda: self._inner.distribution_file(name, relative_path))

    def find_tool(self, name: str) -> str | None:
        return self._noted("tool_paths", name, lambda: self._inner.find_tool(name))

    def run_tool(self, arguments: Sequence[str], *, timeout_seconds: float | None = None) -> ToolResult:
        command = command_line(arguments)
        result = self._tried("tools", command, lambda: self._inner.run_tool(arguments, timeout_seconds=timeout_seconds))
        self._record.note_tool(command, result)
        return result

    def probe(
        self,
        key: str,
        target: str,
        *,
        arguments: Sequence[str | int | float | bool | None] = (),
        timeout_seconds: float | None = None,
        isolated: bool | None = None,
    ) -> Json:
        return self._noted(
            "probes",
            key,
            lambda: self._inner.probe(
                key, target, arguments=arguments, timeout_seconds=timeout_seconds, isolated=isolated
            ),
        )

    def _tried(self, kind: str, question: str, answer: Callable[[], _T]) -> _T:
        try:
            return answer()
        except (ImportError, OSError) as error:
            self._record.note_error(kind, question, error)
            raise

    def _noted(self, kind: str, question: str, answer: Callable[[], _T]) -> _T:
        found = self._tried(kind, question, answer)
        self._record.note(kind, question, found)
        return found
