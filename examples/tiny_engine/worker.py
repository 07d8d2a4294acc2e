"""The engine in a process of its own, which never outlives the one that started it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import weakref
from typing import TYPE_CHECKING, Any

from examples.tiny_engine.errors import EngineError, WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from examples.tiny_engine.interface import Description, EngineSettings, Event, Prompt

_SECONDS_TO_END = 2.0


class EngineProcess:
    """Serves prompts as `Engine` does. The worker ends when this object is closed or collected, or its process dies.

    Errors of the worker's engine are raised here as themselves; any other way to end is a `WorkerError`.
    """

    def __init__(
        self, settings: EngineSettings, *, progress: Callable[[str, float], None] = lambda _what, _done: None
    ) -> None:
        # Spawned, not forked: a device, or a library's threads, may be in use here already.
        context = multiprocessing.get_context("spawn")
        self._calls, their_calls = context.Pipe()
        lifeline, self._lifeline = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_serve, args=(settings, their_calls, lifeline), name="tiny-engine", daemon=True
        )
        self._process.start()
        their_calls.close()
        lifeline.close()
        self._close = weakref.finalize(self, _end, self._process, self._calls, self._lifeline)
        try:
            for kind, content in self._answers():
                if kind == "progress":
                    progress(*content)
                else:
                    self._description: Description = content
                    break
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int | None:
        """The worker's process id."""
        return self._process.pid

    def describe(self) -> Description:
        """What the worker's engine runs on."""
        return self._description

    def stream(self, prompts: Sequence[Prompt]) -> Iterator[Event]:
        """Serve the prompts; see `Engine.stream`."""
        self._calls.send(tuple(prompts))
        for kind, content in self._answers():
            if kind == "end":
                return
            yield content

    def close(self) -> None:
        """End the worker and wait for it."""
        self._close()

    def _answers(self) -> Iterator[tuple[str, Any]]:  # Any: what the kind says
        while True:
            try:
                kind, content = self._calls.recv()
            except (EOFError, ConnectionError):
                self._process.join(_SECONDS_TO_END)
                raise WorkerError(
                    f"the engine's process {self.pid} ended without an answer (exit code {self._process.exitcode});"
                    f" what it wrote stands above"
                ) from None
            if kind == "error":
                raise content
            yield kind, content


def _end(process: BaseProcess, calls: Connection, lifeline: Connection) -> None:
    lifeline.close()
    calls.close()
    for last_resort in (process.terminate, process.kill):
        process.join(_SECONDS_TO_END / 4)
        if process.exitcode is not None:
            break
        last_resort()
    process.join()
    process.close()


def _serve(settings: EngineSettings, calls: Connection, lifeline: Connection) -> None:
    """The worker's life."""
    # Ctrl-C reaches every process of a terminal; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(lifeline,), daemon=True).start()
    # Imported under the watch, since it takes seconds.
    import logging

    from examples.tiny_engine.engine import Engine
    from hardpoint.errors import HardpointError

    logging.basicConfig(format="%(levelname)s: %(message)s")
    try:
        engine = Engine(settings, progress=lambda what, done: calls.send(("progress", (what, done))))
        calls.send(("ready", engine.describe()))
        with contextlib.suppress(EOFError):
            while True:
                prompts = calls.recv()
                for event in engine.stream(prompts):
                    calls.send(("event", event))
                calls.send(("end", None))
    except BrokenPipeError:
        # The parent is gone; there is nobody to tell.
        return
    except (HardpointError, EngineError, OSError) as error:
        calls.send(("error", error))


def _watch(lifeline: Connection) -> None:
    """Wait for the other end to close: the parent has let go of it, or died. Nothing is ever sent."""
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(0)
