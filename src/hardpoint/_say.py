"""Saying something through the core's own logger, once; the logging package is imported when there is something to say.

Importing it takes a tenth of the time of a resolution. Where the application has not imported it
either, nothing can have been configured, and a record below WARNING would go nowhere.
"""

from __future__ import annotations

import sys
from typing import Final

DEBUG: Final = 10
INFO: Final = 20
WARNING: Final = 30


def say_once(level: int, message: str, *args: object) -> None:
    """`hardpoint.log_once` on the logger ``hardpoint``."""
    if level >= WARNING or "logging" in sys.modules:
        from hardpoint._log import log_once, logger

        log_once(logger, level, message, *args)


def say_debug(message: str, *args: object) -> None:
    """A debug record, every time. Never raises for what a handler of the application, or its filter, does."""
    if "logging" in sys.modules:
        from hardpoint._log import logger

        try:
            logger.debug(message, *args)
        except Exception:  # noqa: BLE001
            # Such as a filter that asks for the platform while it is being resolved: the caller's work goes on.
            return


if "logging" in sys.modules:
    # The application logs: our logger gets its NullHandler now, and nothing else of logging is touched.
    import hardpoint._log  # noqa: F401
