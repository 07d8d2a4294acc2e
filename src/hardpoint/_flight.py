"""Single flight: of many threads that need one answer, one computes it and the others wait for exactly that one.

No lock is held while the answer is computed. A waiter waits for a bounded time per step of progress and then raises;
the same thread asking again is told at once; a fork leaves the child without marks of threads that it does not have.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hardpoint.errors import HardpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_T = TypeVar("_T")
_flights: weakref.WeakSet[SingleFlight[object]] = weakref.WeakSet()


class _Call(Generic[_T]):
    def __init__(self) -> None:
        self.owner = threading.get_ident()
        self.done = threading.Event()
        self.result: _T | None = None
        self.error: BaseException | None = None
        self.progress = ""
        self.steps = 0
        self.waiters = 0


class SingleFlight(Generic[_T]):
    """Calls in progress by key. Finished answers are the caller's business: nothing is kept here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[Hashable, _Call[_T]] = {}
        _flights.add(self)  # type: ignore[arg-type]  # the set holds flights of every type

    def run(
        self,
        key: Hashable,
        compute: Callable[[], _T],
        *,
        timeout_seconds: float,
        reentered: Callable[[str], HardpointError],
        timed_out: Callable[[str], HardpointError],
    ) -> _T:
        """The result of `compute`, run by whichever thread came first.

        The same thread coming again raises ``reentered(progress)``. Another thread waits; if the progress mark stands
        still for `timeout_seconds` it raises ``timed_out(progress)``. A failure reaches every waiter: our own errors
        as fresh copies.
        """
        with self._lock:
            call = self._calls.get(key)
            if call is None:
                call = self._calls[key] = _Call()
                leads = True
            else:
                leads = False
                call.waiters += 1
        if leads:
            return self._lead(key, call, compute)
        if call.owner == threading.get_ident():
            raise reentered(call.progress)
        return self._wait(call, timeout_seconds, timed_out)

    def _lead(self, key: Hashable, call: _Call[_T], compute: Callable[[], _T]) -> _T:
        try:
            with at_work:
                call.result = compute()
            return call.result
        except BaseException as error:
            with self._lock:
                # Both in one step: who comes from now on starts a call of its own, and never finds a failed one.
                self._forget(key, call)
                if call.waiters:
                    call.error = error
            raise
        finally:
            with self._lock:
                self._forget(key, call)
            call.done.set()

    def _forget(self, key: Hashable, call: _Call[_T]) -> None:
        if self._calls.get(key) is call:
            del self._calls[key]

    def _wait(self, call: _Call[_T], timeout_seconds: float, timed_out: Callable[[str], HardpointError]) -> _T:
        steps = call.steps
        # Python waits for three hundred years at most.
        while not call.done.wait(min(timeout_seconds, threading.TIMEOUT_MAX)):
            if call.steps == steps:
                raise timed_out(call.progress)
            steps = call.steps
        error = call.error
        if error is None:
            return call.result  # type: ignore[return-value]  # set before the event was
        try:
            if isinstance(error, HardpointError):
                raise error.copy()
            if isinstance(error, Exception):
                raise error
            # A KeyboardInterrupt belongs to the thread that got it; the others simply have no answer.
            raise timed_out(f"{call.progress} ({type(error).__name__} in the thread that asked first)")
        finally:
            del error

    def note_progress(self, key: Hashable, progress: str) -> None:
        """Say what is being done now: the text of a timeout, and a sign of life for waiters."""
        call = self._calls.get(key)
        if call is not None:
            call.progress = progress
            call.steps += 1

    def in_progress_here(self, key: Hashable) -> str | None:
        """The progress text if this very thread is computing that key, else None."""
        call = self._calls.get(key)
        return call.progress if call is not None and call.owner == threading.get_ident() else None

    def forget_other_threads(self) -> None:
        """For the child of a fork, which has one thread."""
        self._lock = threading.Lock()
        here = threading.get_ident()
        for key, call in list(self._calls.items()):
            if call.owner != here:
                del self._calls[key]
            else:
                # Its waiters are gone, and one of them may have held the event's own lock.
                call.done = threading.Event()
                call.waiters = 0


class _AtWork:
    """The threads that are resolving or selecting: a fork waits while one of them imports something, ours or not.

    The locks of single modules are the interpreter's own; where they cannot be seen, nothing is waited for.
    """

    def __init__(self) -> None:
        self._depth: dict[int, int] = {}

    def __enter__(self) -> None:
        here = threading.get_ident()
        self._depth[here] = self._depth.get(here, 0) + 1

    def __exit__(self, *exception: object) -> None:
        here = threading.get_ident()
        self._depth[here] -= 1
        if not self._depth[here]:
            del self._depth[here]

    def wait_for_imports(self, deadline: float) -> None:
        """Until none of the other threads is in the middle of an import, or the monotonic clock is at the deadline."""
        while self.imports_elsewhere() and time.monotonic() < deadline:
            time.sleep(0.001)

    def imports_elsewhere(self) -> bool:
        """Whether another thread is in the middle of an import that the child of a fork may need."""
        here = threading.get_ident()
        others = self.others()
        locks = getattr(sys.modules.get("_frozen_importlib"), "_module_locks", {})
        for name, reference in list(locks.items()):
            owner = getattr(reference(), "owner", None)
            if owner is None or owner == here:
                continue
            # Whoever names something of ours for the first time imports our modules, and Python's own with them.
            top = name.partition(".")[0]
            if owner in others or top == "hardpoint" or top in sys.stdlib_module_names:
                return True
        return False

    def others(self) -> set[int]:
        """The other threads that are at work."""
        return self._depth.keys() - {threading.get_ident()}

    def after_fork_in_child(self) -> None:
        here = threading.get_ident()
        self._depth = {thread: count for thread, count in self._depth.items() if thread == here}


at_work = _AtWork()


class _ImportGate:
    """Entered while a plugin's module is imported, so that a fork waits for the import to end.

    A child that is forked in the middle of another thread's import inherits a module lock that nobody will ever
    release. Imports do not exclude one another, and every wait is bounded: the gate can delay, never deadlock.
    """

    WAIT_SECONDS = 10.0
    UNINTERRUPTED_SECONDS = 0.2

    def __init__(self) -> None:
        self._interval: float | None = None
        self._condition = threading.Condition()
        self._importing: dict[int, int] = {}
        self._forking = False

    def __enter__(self) -> None:
        here = threading.get_ident()
        with self._condition:
            if here not in self._importing:
                self._condition.wait_for(lambda: not self._forking, self.WAIT_SECONDS)
            self._importing[here] = self._importing.get(here, 0) + 1

    def __exit__(self, *exception: object) -> None:
        here = threading.get_ident()
        with self._condition:
            self._importing[here] -= 1
            if not self._importing[here]:
                del self._importing[here]
            self._condition.notify_all()

    def before_fork(self) -> None:
        deadline = time.monotonic() + self.WAIT_SECONDS
        # What was registered after us runs before us: then logging has locked itself in this thread by now, and an
        # import elsewhere that asks for a logger could never end. Its lock is given back for as long as we wait.
        if not _logging_came_first and (lock := _logging_lock()) is not None and lock._is_owned():  # noqa: SLF001
            lock.release()
        at_work.wait_for_imports(deadline)
        with self._condition:
            self._forking = True
            self._condition.wait_for(
                lambda: self._importing.keys() <= {threading.get_ident()}, max(0.0, deadline - time.monotonic())
            )
        # While the gate was waited for, one may have begun that does not pass through it. From the last look to the
        # fork this thread must not be interrupted: others now ask for their turn later, once the turn that they have
        # asked for already is over.
        if self._interval is None and at_work.others():
            self._interval = sys.getswitchinterval()
            sys.setswitchinterval(self.UNINTERRUPTED_SECONDS)
            time.sleep(2 * self._interval)
        at_work.wait_for_imports(deadline)
        # Also where logging was imported while we waited: its "after" releases what its "before" was too late to take.
        while not _logging_came_first and (lock := _logging_lock()) is not None:
            lock.acquire()
            if not at_work.imports_elsewhere() or time.monotonic() >= deadline:
                break
            lock.release()
            at_work.wait_for_imports(deadline)

    def _let_others_interrupt(self) -> None:
        if self._interval is not None:
            sys.setswitchinterval(self._interval)
            self._interval = None

    def after_fork_in_parent(self) -> None:
        self._let_others_interrupt()
        with self._condition:
            self._forking = False
            self._condition.notify_all()

    def after_fork_in_child(self) -> None:
        here = threading.get_ident()
        self._let_others_interrupt()
        self._condition = threading.Condition()
        self._forking = False
        self._importing = {thread: count for thread, count in self._importing.items() if thread == here}


def _logging_lock() -> Any:  # noqa: ANN401  # a lock of threading's, whose type has no name
    """The lock that the logging package takes around forks; None until it has registered that, while it is imported."""
    module = sys.modules.get("logging")
    return getattr(module, "_lock", None) if hasattr(module, "_after_at_fork_child_reinit_locks") else None


_logging_came_first = _logging_lock() is not None
import_gate = _ImportGate()


def _after_fork_in_child() -> None:
    import_gate.after_fork_in_child()
    at_work.after_fork_in_child()
    for flight in list(_flights):
        flight.forget_other_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=import_gate.before_fork,
        after_in_parent=import_gate.after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
