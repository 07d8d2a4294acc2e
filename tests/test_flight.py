"""Single flight at its edges: a failure as somebody comes, a fork in the middle, a wait without end."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from hardpoint._flight import SingleFlight
from hardpoint.errors import HardpointError

if TYPE_CHECKING:
    from collections.abc import Callable


def _run(flight: SingleFlight[str], compute: Callable[[], str], *, timeout_seconds: float = 30.0) -> str:
    return flight.run(
        "key", compute, timeout_seconds=timeout_seconds, reentered=HardpointError, timed_out=HardpointError
    )


def _fail() -> str:
    raise OSError("the first one's own")


class _TellingLock:
    """A lock that calls somebody each time it has been released."""

    def __init__(self, released: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._released = released

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()
        self._released()


def test_who_comes_while_a_failure_is_put_away_computes_anew() -> None:
    """Between its failure and its end nobody finds a call that failed with no one waiting for it."""
    flight: SingleFlight[str] = SingleFlight()
    answers: list[str | Exception] = []
    others: list[threading.Thread] = []
    leader = threading.get_ident()
    releases = 0

    def ask() -> None:
        try:
            answers.append(_run(flight, lambda: "fresh"))
        except HardpointError as error:
            answers.append(error)

    def released() -> None:
        nonlocal releases
        if threading.get_ident() != leader:
            return
        releases += 1
        if releases == 2:  # the first is that of the start
            others.append(threading.Thread(target=ask))
            others[0].start()
            others[0].join(0.5)

    flight._lock = _TellingLock(released)  # type: ignore[assignment]  # as much of a lock as is used
    with pytest.raises(OSError, match="the first one's own"):
        _run(flight, _fail)
    others[0].join(30)
    assert answers == ["fresh"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_the_child_of_a_fork_ends_its_own_call_though_a_waiter_held_the_event() -> None:
    """What another thread had locked at that moment nobody releases in the child."""
    flight: SingleFlight[str] = SingleFlight()
    locked, leave = threading.Event(), threading.Event()
    children: list[int] = []

    def hold() -> None:
        with flight._calls["key"].done._cond:  # type: ignore[attr-defined]  # where a waiter is for a moment
            locked.set()
            leave.wait(30)

    def compute() -> str:
        holder = threading.Thread(target=hold)
        holder.start()
        locked.wait(30)
        children.append(os.fork())
        if children[0]:
            leave.set()
            holder.join(30)
        return "done"

    answer = _run(flight, compute)
    if children == [0]:
        os._exit(0 if answer == "done" else 1)
    deadline = time.monotonic() + 30
    while (ended := os.waitpid(children[0], os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(children[0], 9)
            os.waitpid(children[0], 0)
            pytest.fail("the child hangs")
        time.sleep(0.01)
    assert ended[1] == 0


def test_a_limit_longer_than_python_can_wait_is_no_error() -> None:
    """A waiter with a limit of 10**300 seconds gets the answer, not an OverflowError."""
    flight: SingleFlight[str] = SingleFlight()
    waits = threading.Event()
    answers: list[str] = []

    def compute() -> str:
        waits.set()
        while not flight._calls["key"].waiters:
            time.sleep(0.01)
        return "late"

    first = threading.Thread(target=lambda: answers.append(_run(flight, compute)))
    first.start()
    assert waits.wait(30)
    assert _run(flight, _fail, timeout_seconds=1e300) == "late"
    first.join(30)
    assert answers == ["late"]
