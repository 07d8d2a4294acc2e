"""Logging: one logger, and `log_once`, which can neither repeat itself nor keep anything alive."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final, TypeAlias

from hardpoint import _log_node

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    ExceptionInfo: TypeAlias = (
        bool | BaseException | tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    )

logger: Final = logging.getLogger("hardpoint")
logger.addHandler(logging.NullHandler())

REMEMBERED_TEXTS: Final = 4096
"""How many texts are remembered, over all loggers; the oldest is forgotten first."""

_REMEMBERED_CHARACTERS: Final = 512

_seen: dict[tuple[str, int, str], None] = {}
# Re-entrant: a signal's handler may log while the main thread is in here.
_lock = threading.RLock()


def log_once(
    log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    level: int,
    message: object,
    *args: object,
    exc_info: ExceptionInfo | None = None,
    extra: Mapping[str, object] | None = None,
) -> None:
    """Log ``message % args`` through `log` the first time that this text is logged at this level.

    The text is made at once and nothing but it is remembered, so arguments may be live exceptions, unhashable, or fail
    to print. `exc_info` adds the traceback's text; its type and message count as part of the text. `extra` reaches
    handlers as text and numbers. A record that the level suppresses, or that no handler takes, does not count as
    logged. Of processes that one launcher started here with local ranks, one logs it. Thread-safe; safe in the child
    of a fork; never raises for what an argument or a handler does.
    """
    if not log.isEnabledFor(level):
        return
    try:
        text = str(message) % args if args else str(message)
    except Exception as error:  # noqa: BLE001
        # An argument whose text cannot be made, or a wrong format: the record is still worth having.
        text = _unformatted(message, args, error)
    if exc_info is not None and exc_info is not False:
        text, shown = _with_exception(text, exc_info)
    else:
        shown = text
    key = (log.name, level, text if len(text) <= _REMEMBERED_CHARACTERS else _shortened(text))
    # A look-up in a dict is atomic; the lock is for the first time only.
    if key in _seen:
        return
    if _is_taken(log, level) and not _claim(key, text):
        return
    try:
        log.log(level, "%s", shown, extra=None if extra is None else _plain(extra), stacklevel=2)
    except Exception:  # noqa: BLE001
        # A handler of the application failed (logging.raiseExceptions covers most, not all); the caller's work goes on.
        return


def forget_logged() -> None:
    """Forget what was logged, for `hardpoint.reset`."""
    with _lock:
        _seen.clear()
        _log_node.release()


def _claim(key: tuple[str, int, str], text: str) -> bool:
    """Remember a text by its key; whether it is this thread of this process that logs it."""
    with _lock:
        if key in _seen:
            return False
        if len(_seen) >= REMEMBERED_TEXTS:
            del _seen[next(iter(_seen))]
        _seen[key] = None
        # Not the key: that of a long text is another in every process.
        return _log_node.claim(f"{key[0]}\0{key[1]}\0{text}")


def _is_taken(log: logging.Logger | logging.LoggerAdapter[logging.Logger], level: int) -> bool:
    """Whether a handler would take a record: else it is lost, and a later one, or another rank's, is the first."""
    if not log.hasHandlers():
        return logging.lastResort is not None and logging.lastResort.level <= level
    # An adapter has no handlers of its own.
    current: logging.Logger | None = log.logger if isinstance(log, logging.LoggerAdapter) else log
    while current is not None:
        for handler in current.handlers:
            if handler.level <= level and not isinstance(handler, logging.NullHandler):
                return True
        current = current.parent if current.propagate else None
    return False


def _unformatted(message: object, args: tuple[object, ...], error: Exception) -> str:
    if len(args) == 1 and isinstance(args[0], dict):
        # Names in place of positions, as logging itself has them: ``log_once(log, level, "%(why)s", {"why": error})``.
        try:
            return str(message) % args[0]
        except Exception as other:  # noqa: BLE001
            # As in `log_once`.
            return f"{_safe(message)} [{_safe(args[0])}] (could not be formatted: {type(other).__name__})"
    shown = ", ".join(_safe(item) for item in args)
    return f"{_safe(message)} [{shown}] (could not be formatted: {type(error).__name__})"


def _safe(item: object) -> str:
    try:
        return str(item)
    except Exception as error:  # noqa: BLE001
        # Printing it is what failed; its type is all that can be said.
        return f"<{type(item).__name__} that raises {type(error).__name__} when printed>"


def _shortened(text: str) -> str:
    """What is remembered of a long text: enough to tell it from any other."""
    return f"{text[:_REMEMBERED_CHARACTERS]} {len(text)} {hash(text)}"


def _with_exception(text: str, exc_info: ExceptionInfo) -> tuple[str, str]:
    """The text that counts, and the text to log: with the traceback, which may differ between equal failures."""
    import sys
    import traceback

    error = exc_info[1] if isinstance(exc_info, tuple) else sys.exception() if exc_info is True else exc_info
    if not isinstance(error, BaseException):
        return text, text
    try:
        details = "".join(traceback.format_exception(error)).rstrip()
    except Exception as broken:  # noqa: BLE001
        # Formatting calls the exception's own code.
        details = f"(no traceback: {type(broken).__name__})"
    return f"{text}\n{type(error).__name__}: {_safe(error)}", f"{text}\n{details}"


def _plain(extra: Mapping[str, object]) -> dict[str, object]:
    """Names that a record has already get a ``_`` behind, instead of the error that logging makes of them."""
    taken = vars(logging.makeLogRecord({})).keys() | {"message", "asctime"}
    return {
        f"{name}_" if name in taken else str(name): (
            value if value is None or type(value) in {str, int, float, bool} else _safe(value)
        )
        for name, value in extra.items()
    }


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603  # the child of a fork needs another
    _lock = threading.RLock()


def install_fork_handler() -> None:
    """Give the child of a fork a lock of its own: another thread may have held ours at that moment."""
    import os

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_renew_lock)


install_fork_handler()
