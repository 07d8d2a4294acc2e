"""Writing a file that somebody asked for."""

from __future__ import annotations

import os
import stat


def write_file(path: str, text: str) -> None:
    """Write a file, all of it or nothing; only its owner may read it. Errors: `OSError`, which names it.

    What is no regular file is written to as it is: it must not be replaced. So are the names of this process's own
    streams, whatever they lead to. Of a link the file is replaced that it leads to.
    """
    where = os.path.abspath(path)
    if where.startswith(("/dev/", "/proc/")) or _is_special(where):
        # Not blocking: a pipe without a reader is an error.
        descriptor = os.open(where, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
        os.set_blocking(descriptor, True)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
        return
    try:
        _replace(os.path.realpath(where), text)
    except OSError as error:
        if error.errno is None:
            raise
        # It names the temporary file, of which nobody knows.
        raise OSError(error.errno, error.strerror, path) from None


def _replace(target: str, text: str) -> None:
    import tempfile

    descriptor, temporary = tempfile.mkstemp(prefix=".hardpoint-", dir=os.path.dirname(target))
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _is_special(path: str) -> bool:
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False
