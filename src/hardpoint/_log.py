"""Logging: one logger, and `log_once`, which can neither repeat itself nor keep anything alive."""

from __future__ import annotations

import logging
import threading
from typing import Final

logger: Final = logging.getLogger("hardpoint")
logger.addHandler(logging.NullHandler())

REMEMBERED_TEXTS: Final = 4096
"""How many texts are remembered, over all loggers; the oldest is forgotten first."""

_seen: dict[tuple[str, int, str], None] = {}
_lock = threading.Lock()


def log_once(log: logging.Logger, level: int, message: object, *args: object) -> None:
    """Log ``message % args`` through `log` the first time that this text is logged at this level.

    The text is made at once and nothing but it is remembered, so arguments may be live exceptions, unhashable, or fail to
    print. A record that the level suppresses does not count as logged. Thread-safe; safe in the child of a fork; never
    raises for what an argument or a handler does.
    """
    if not log.isEnabledFor(level):
        return
    text = _format(message, args)
    key = (log.name, level, text)
    # A look-up in a dict is atomic; the lock is for the first time only.
    if key in _seen:
        return
    with _lock:
        if key in _seen:
            return
        if len(_seen) >= REMEMBERED_TEXTS:
            del _seen[next(iter(_seen))]
        _seen[key] = None
    try:
        log.log(level, "%s", text, stacklevel=2)
    except Exception:
        # A handler of the application failed (logging.raiseExceptions covers most, not all); the caller's work goes on.
        return


def _format(message: object, args: tuple[object, ...]) -> str:
    try:
        return str(message) % args if args else str(message)
    except Exception as error:
        # An argument whose text cannot be made, or a wrong format: the record is still worth having.
        shown = ", ".join(_safe(item) for item in args)
        return f"{_safe(message)} [{shown}] (could not be formatted: {type(error).__name__})"


def _safe(item: object) -> str:
    try:
        return str(item)
    except Exception as error:
        # Printing it is what failed; its type is all that can be said.
        return f"<{type(item).__name__} that raises {type(error).__name__} when printed>"


def forget_logged() -> None:
    """Forget what was logged, for `hardpoint.reset`."""
    with _lock:
        _seen.clear()


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


def install_fork_handler() -> None:
    """Give the child of a fork a lock of its own: another thread may have held ours at that moment."""
    import os

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_renew_lock)


install_fork_handler()
