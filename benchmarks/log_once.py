"""`log_once` on a hit, beside what applications write themselves.

``python benchmarks/log_once.py [--rounds 15] [--calls 20000]``

- naive: a memoised function that logs, keyed by its arguments (it keeps them alive, and refuses unhashable ones);
- floor: making the text and looking it up in a set, nothing else.

All sides run interleaved in one process; the figures are medians, and only the ratios travel. Budget of a hit: 1.2 µs.
"""

from __future__ import annotations

import argparse
import functools
import logging
import statistics
import time
from typing import TYPE_CHECKING

from hardpoint import log_once

if TYPE_CHECKING:
    from collections.abc import Callable

BUDGET_NANOSECONDS = 1200
MESSAGE = "backend %s failed at %s: %s"
ARGUMENTS = ("flash_attn", "import", "ImportError: libcudart.so.12: cannot open shared object file")

log = logging.getLogger("benchmark")
seen: set[tuple[str, int, str]] = set()


@functools.lru_cache
def _warn(logger: logging.Logger, message: str, *arguments: object) -> None:
    logger.warning(message, *arguments, stacklevel=2)


def naive(logger: logging.Logger, message: str, *arguments: object) -> None:
    _warn(logger, message, *arguments)


def floor(logger: logging.Logger, level: int, message: str, *arguments: object) -> None:
    text = message % arguments
    key = (logger.name, level, text)
    if key in seen:
        return
    seen.add(key)
    logger.log(level, "%s", text)


def nanoseconds(call: Callable[[], None], calls: int) -> float:
    started = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - started) / calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=20_000)
    options = parser.parse_args()

    class Swallow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            pass

    log.addHandler(Swallow())
    log.propagate = False
    log.setLevel(logging.INFO)
    sides: dict[str, Callable[[], None]] = {
        "log_once": lambda: log_once(log, logging.WARNING, MESSAGE, *ARGUMENTS),
        "log_once, suppressed": lambda: log_once(log, logging.DEBUG, MESSAGE, *ARGUMENTS),
        "naive": lambda: naive(log, MESSAGE, *ARGUMENTS),
        "floor": lambda: floor(log, logging.WARNING, MESSAGE, *ARGUMENTS),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, call in sides.items():
            times[name].append(nanoseconds(call, options.calls))
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, median in medians.items():
        print(f"{name:22} {median:6.0f} ns  {median / medians['floor']:5.2f} of the floor")
    hit = medians["log_once"]
    print(f"hit: {hit:.0f} ns of {BUDGET_NANOSECONDS}: {'within' if hit <= BUDGET_NANOSECONDS else 'OVER'} the budget")


if __name__ == "__main__":
    main()
