"""Threads that do the same at the same moment."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def at_once(count: int, ask: Callable[[], Any]) -> list[Any]:
    """Let threads ask at the same moment; exceptions are answers too."""
    answers: list[Any] = [None] * count
    barrier = threading.Barrier(count)

    def run(number: int) -> None:
        barrier.wait()
        try:
            answers[number] = ask()
        except BaseException as error:  # noqa: BLE001  # the test looks at it
            answers[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return answers
