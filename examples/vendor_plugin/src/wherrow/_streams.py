"""Streams and events: what a stream is given runs in order on the driver's thread, events order streams."""

from __future__ import annotations

import atexit
import itertools
import threading
import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import torch

from wherrow._device import OpenDevice, device
from wherrow._driver import TASK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_T = TypeVar("_T")
Where: TypeAlias = "int | str | torch.device | None"
_here = threading.local()
_lock = threading.Lock()
_default: dict[int, Stream] = {}
_tasks: dict[int, tuple[Stream, Callable[[], object], tuple[object, ...]]] = {}
_task_numbers = itertools.count(1)
_streams: weakref.WeakSet[Stream] = weakref.WeakSet()


def _perform(number: int) -> None:
    """On the stream's own thread. What a task raises is kept for whoever waits for it."""
    stream, task, holding = _tasks.pop(number)
    if stream.failure is not None:
        return
    try:
        with torch.inference_mode():
            task()
    except BaseException as error:  # noqa: BLE001  # nobody is above us but the driver
        stream.failure = f"{type(error).__name__}: {error}"
    del holding


_performer = TASK(_perform)


class Stream:
    """A queue of work on one device."""

    def __init__(self, where: Where = None) -> None:
        self.device = device(where)
        self.failure: str | None = None
        self._handle = self.device.driver.make("stream_create", self.device.number)
        _streams.add(self)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self.device.driver.ask("stream_destroy", self._handle)

    def launch(self, task: Callable[[], object], *holding: object) -> None:
        """Queue a task and return at once. What it needs is held until it has run: the memory of tensors."""
        number = next(_task_numbers)
        _tasks[number] = (self, task, holding)
        try:
            self.device.driver.call("launch", self._handle, _performer, number)
        except BaseException:
            del _tasks[number]
            raise

    def run(self, task: Callable[[], _T]) -> _T:
        """Queue a task and wait for its result."""
        results: list[_T] = []
        self.launch(lambda: results.append(task()))
        self.synchronize()
        return results[0]

    def synchronize(self) -> None:
        """Wait for everything that was queued. Errors: `RuntimeError` where a task failed since the last time."""
        self.device.driver.call("stream_synchronize", self._handle)
        failure, self.failure = self.failure, None
        if failure is not None:
            raise RuntimeError(f"work on {self.device.name} failed: {failure}")

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event behind everything that was queued; a new one by default."""
        event = event or Event(self.device.index)
        self.device.driver.call("event_record", event.handle, self._handle)
        return event

    def wait_event(self, event: Event) -> None:
        """Let what is queued from now on wait for the event's latest record."""
        self.device.driver.call("stream_wait_event", self._handle, event.handle)

    def wait_stream(self, other: Stream) -> None:
        """Let what is queued from now on wait for what the other stream has been given."""
        self.wait_event(other.record_event())


class Event:
    """A mark in a stream. One that was never recorded has been reached."""

    def __init__(self, where: Where = None) -> None:
        self._driver = device(where).driver
        self.handle = self._driver.make("event_create")

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            self._driver.ask("event_destroy", self.handle)

    def record(self, stream: Stream) -> None:
        """Record it behind everything that the stream was given."""
        stream.record_event(self)

    def wait(self, stream: Stream) -> None:
        """Let the stream wait for it."""
        stream.wait_event(self)

    def query(self) -> bool:
        """Whether it has been reached."""
        return bool(self._driver.ask("event_query", self.handle))

    def synchronize(self) -> None:
        """Wait until it is reached."""
        self._driver.call("event_synchronize", self.handle)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this to a later one, both reached."""
        begun, ended = (self._driver.ask("event_milliseconds", item.handle) for item in (self, end))
        return float(ended - begun)


def current_stream(where: Where = None) -> Stream:
    """This thread's stream on a device: the device's own, unless `stream` has set another."""
    found = device(where)
    chosen: Stream | None = getattr(_here, "streams", {}).get(found.index)
    if chosen is not None:
        return chosen
    with _lock:
        if found.index not in _default:
            _default[found.index] = Stream(found.index)
        return _default[found.index]


@contextmanager
def stream(chosen: Stream) -> Iterator[Stream]:
    """Within the block, this thread's work on the stream's device goes to that stream."""
    streams: dict[int, Stream] = _here.__dict__.setdefault("streams", {})
    index = chosen.device.index
    before = streams.get(index)
    streams[index] = chosen
    try:
        yield chosen
    finally:
        if before is None:
            del streams[index]
        else:
            streams[index] = before


def synchronize(where: Where = None) -> None:
    """Wait for every stream of a device. Errors: `RuntimeError` for work that failed."""
    found: OpenDevice = device(where)
    for item in list(_streams):
        if item.device is found:
            item.synchronize()


@atexit.register
def _finish() -> None:
    """Before the interpreter ends: a task is Python code."""
    for item in list(_streams):
        with suppress(RuntimeError, OSError):
            item.synchronize()
