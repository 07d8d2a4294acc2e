"""Running another program so that it cannot hurt: bounded time, bounded output, no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from typing import IO, TYPE_CHECKING, Final

from hardpoint.errors import EnvironmentFailure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_OUTPUT_BYTES: Final = 4 * 1024 * 1024
"""What is kept of each stream. The rest is read, so that the program goes on, and thrown away."""

_CHUNK_BYTES: Final = 64 * 1024
GRACE_SECONDS: Final = 1.0
"""How long a killed process may take to end, and an open pipe to close."""


class Finished:
    """How a program ended: `returncode` (negative: killed by that signal), what it printed, whether that was cut."""

    def __init__(self, returncode: int, stdout: _Reader, stderr: _Reader) -> None:
        self.returncode = returncode
        self.stdout = stdout.content()
        self.stderr = stderr.content()
        self.truncated = stdout.truncated or stderr.truncated


def run(
    arguments: Sequence[str],
    *,
    described: str,
    timeout_seconds: float,
    environment: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
) -> Finished:
    """Run a program to its end, in a session of its own.

    At the limit, and on any exception such as `KeyboardInterrupt`, it is killed with all that it started, and reaped.
    Errors: `OSError` where it cannot be started; `EnvironmentFailure` ``timed out after 5 s running <described>``.
    """
    start = Start(arguments, environment, has_input=stdin is not None)
    readers: list[_Reader] = []
    timed_out = gone = False
    try:
        process = start.wait()
        readers += (_Reader(process.stdout), _Reader(process.stderr))
        if stdin is not None:
            # On a thread: a program that reads nothing must not hold us up.
            begin(threading.Thread(target=_write, args=(process.stdin, stdin), name="hardpoint-writer", daemon=True))
        process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        timed_out = True
    finally:
        # Also what a program that ended has left running in its session; its group's number is not reused so soon.
        gone = start.end()
        for reader in readers:
            reader.finish()
        if len(readers) < 2:
            start.close()
    stdout, stderr = readers
    if timed_out:
        left = "" if gone else f"; it does not end even when killed: process {process.pid} is still there"
        raise EnvironmentFailure(f"timed out after {timeout_seconds:g} s running {described}{left}", code="timeout")
    return Finished(process.returncode, stdout, stderr)


def begin(thread: threading.Thread) -> None:
    """Start a thread. Errors: `EnvironmentFailure` where this machine gives the process no more of them."""
    try:
        thread.start()
    except RuntimeError as error:
        raise EnvironmentFailure(
            f"no program can be run: {error}",
            remedy="raise the limit of processes and threads (ulimit -u; pids.max of the container)",
        ) from error


class Start(threading.Thread):
    """Starts the program on a thread of its own, so that no signal can come between its birth and our knowing.

    An interrupt inside `subprocess.Popen` would leave a process that nobody can name.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str] | None, *, has_input: bool) -> None:
        super().__init__(name="hardpoint-starter", daemon=True)
        self._arguments = list(arguments)
        self._environment = environment
        self._has_input = has_input
        self._process: subprocess.Popen[bytes] | None = None
        self._error: BaseException | None = None
        # Not `join`: in CPython 3.11 one that a signal interrupts takes the thread for ended, though it still runs.
        self._has_started = threading.Event()
        begin(self)

    def run(self) -> None:
        try:
            self._process = subprocess.Popen(
                self._arguments,
                bufsize=0,
                stdin=subprocess.PIPE if self._has_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment,
                start_new_session=True,
            )
        except BaseException as error:  # noqa: BLE001  # raised in the thread that waits
            self._error = error
        finally:
            self._has_started.set()

    def wait(self) -> subprocess.Popen[bytes]:
        """The process. Errors: `OSError` where it could not be started."""
        self._has_started.wait()
        error, self._error = self._error, None
        if error is not None:
            raise error
        if self._process is None:
            raise OSError("the program was not started")
        return self._process

    def end(self) -> bool:
        """Kill and reap whatever was started. False: it did not end in time."""
        self._has_started.wait()
        return self._process is None or end(self._process)

    def close(self) -> None:
        """Close the pipes that nobody reads or writes, after `end`."""
        if self._process is not None:
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                if stream is not None:
                    stream.close()


def end(process: subprocess.Popen[bytes], grace_seconds: float = GRACE_SECONDS) -> bool:
    """Kill a process and its whole group, and reap it. False: it did not end in time (it waits inside the kernel)."""
    try:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    except OSError:
        # It is gone already, or the rest of its group now belongs to another user.
        pass
    try:
        process.wait(grace_seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def describe_exit(returncode: int) -> str:
    """``crashed with SIGSEGV``, ``exited with code 3``."""
    if returncode >= 0:
        return f"exited with code {returncode}"
    try:
        return f"crashed with {signal.Signals(-returncode).name}"
    except ValueError:
        return f"crashed with signal {-returncode}"


def _write(stream: IO[bytes] | None, content: bytes) -> None:
    if stream is None:
        return
    try:
        with stream:
            stream.write(content)
    except OSError:
        # It ended without reading: its exit says more.
        return


class _Reader:
    """Reads a stream to its end on a thread, so that the program never waits for us, and keeps the beginning."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        if stream is None:
            raise ValueError("the process was started without pipes")
        self._stream = stream
        self._chunks: list[bytes] = []
        self._kept = 0
        self.truncated = False
        self._thread = threading.Thread(target=self._read, name="hardpoint-reader", daemon=True)
        begin(self._thread)

    def _read(self) -> None:
        # Closed by the thread that reads it: whoever waits may have given up long before.
        with self._stream:
            self._read_to_the_end(self._stream.fileno())

    def _read_to_the_end(self, descriptor: int) -> None:
        while True:
            try:
                chunk = os.read(descriptor, _CHUNK_BYTES)
            except OSError:
                return
            if not chunk:
                return
            room = MAX_OUTPUT_BYTES - self._kept
            if room > 0:
                self._chunks.append(chunk[:room])
                self._kept += len(self._chunks[-1])
            if len(chunk) > room:
                self.truncated = True

    def finish(self) -> None:
        """Wait for the end, which is near: the program is gone.

        Something that left its session may hold the stream still; then the thread ends when that does.
        """
        self._thread.join(GRACE_SECONDS)

    def content(self) -> bytes:
        return b"".join(self._chunks)
