"""The machine: the only thing through which Hardpoint and its plugins look at the outside world.

`Machine` is the question, `LiveMachine` (`_machine_live.py`) asks this computer, `InMemoryMachine`
(`_machine_memory.py`) answers from data, a simulated one from the profiles of devices (`_simulation.py`), and
`RecordedMachine` (`_machine_recorded.py`) as another computer did that a snapshot was taken of. Nothing below the
command line reads the environment, the file tree, a vendor's library or tool in another way, so that what was decided
can be replayed and tested anywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Json: TypeAlias = Any
"""What JSON can hold. Python's types cannot say it usefully: every look into it would need a cast."""


class ToolResult(NamedTuple):
    """What a tool printed and how it ended."""

    returncode: int
    stdout: str
    stderr: str
    truncated: bool = False
    """It printed more than is kept: the texts are its beginning."""


def command_line(arguments: Sequence[str]) -> str:
    """A tool and its arguments as one text: what a record calls it."""
    return " ".join(arguments)


class Machine(ABC):
    """What the layer can see. Paths are absolute POSIX paths, or the machine's own."""

    live: bool = False
    """Whether this is the computer that the process runs on: only there anything is imported or loaded."""

    @abstractmethod
    def variables(self, prefix: str = "") -> Mapping[str, str]:
        """The environment variables whose name starts with `prefix`."""

    @abstractmethod
    def variable(self, name: str) -> str | None:
        """An environment variable; None where it is not set."""

    @property
    @abstractmethod
    def system(self) -> str:
        """``Linux``, ``Darwin``, ``Windows`` …, as `platform.system` says."""

    @property
    @abstractmethod
    def architecture(self) -> str:
        """``x86_64``, ``aarch64``, ``arm64``, ``riscv64`` …, as `platform.machine` says; may be empty."""

    @property
    @abstractmethod
    def kernel_release(self) -> str:
        """``6.1.0-13-amd64``; may be empty."""

    @property
    @abstractmethod
    def python_version(self) -> str:
        """``3.11.7``."""

    @abstractmethod
    def cpu_affinity(self) -> frozenset[int] | None:
        """The CPUs that this process may run on; None where the system does not say (macOS, Windows)."""

    @abstractmethod
    def cpu_count(self) -> int | None:
        """Logical CPUs of the machine; None: unknown."""

    @property
    @abstractmethod
    def user_id(self) -> int | None:
        """The numeric user id; None where the system has none. Never looks up a name."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether there is a file, folder or device node; False also where that may not be seen."""

    @abstractmethod
    def list_directory(self, path: str) -> tuple[str, ...]:
        """The sorted names in a folder. Errors: `OSError` as the system raises it."""

    @abstractmethod
    def read_bytes(self, path: str, limit: int = 1 << 20) -> bytes:
        """The first `limit` bytes of a file. Errors: `OSError` as the system raises it."""

    def read_text(self, path: str, limit: int = 1 << 20) -> str:
        """The first `limit` bytes of a file as text; undecodable bytes are replaced. Errors: `OSError`."""
        return self.read_bytes(path, limit).decode("utf-8", "replace")

    @abstractmethod
    def can_read_and_write(self, path: str) -> bool:
        """Whether this process may open the file or device node for reading and writing, without opening it."""

    @abstractmethod
    def real_path(self, path: str) -> str:
        """The path with its links resolved."""

    @abstractmethod
    def total_memory_bytes(self) -> int | None:
        """Physical memory of the machine; None: unknown."""

    @abstractmethod
    def distribution_version(self, name: str) -> str | None:
        """The version of an installed distribution, from its metadata, under any spelling; None: not installed."""

    def distribution_versions(self, names: Sequence[str]) -> dict[str, str | None]:
        """The versions of several distributions, by the names given. A live machine looks through its folders once."""
        return {name: self.distribution_version(name) for name in names}

    def distribution_file(self, name: str, relative_path: str) -> str | None:
        """The path of a file of an installed distribution, given as its record of files does (``torch/version.py``).

        None: not installed, or that file is not where its metadata is (an editable install). Imports nothing.
        """
        return None

    @abstractmethod
    def find_tool(self, name: str) -> str | None:
        """Where a tool stands on the search path; None where it does not."""

    @abstractmethod
    def run_tool(self, arguments: Sequence[str], *, timeout_seconds: float | None = None) -> ToolResult:
        """Run a tool to its end. A tool that does not answer in time is killed and reaped.

        Its words are English, its input is empty, and of each stream it prints the first 4 MiB are kept. Default limit:
        ``HARDPOINT_PROBE_TIMEOUT``. Errors: `OSError` where it cannot be started, `EnvironmentFailure` with code
        ``timeout`` (``timed out after 5 s running xyz-smi -q``).
        """

    @abstractmethod
    def probe(
        self,
        key: str,
        target: str,
        *,
        arguments: Sequence[str | int | float | bool | None] = (),
        timeout_seconds: float | None = None,
        isolated: bool | None = None,
    ) -> Json:
        """Ask a vendor library through the function ``"module:function"``; its JSON answer is recorded by `key`.

        The live machine runs it, in this process or in a child of its own (`isolated`; None: as ``HARDPOINT_PROBE``
        says), where a crash, an exit and an endless loop become an `EnvironmentFailure`; only there the limit holds. An
        environment failure inside is raised as it was; a bug propagates; a target that is not there, or answers with
        what is not JSON, is a `ContractError`. A machine that is not live answers from its record, or raises
        `NotRecorded`.
        """
