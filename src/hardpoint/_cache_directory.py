"""Where compiled kernels and the like are kept. Choosing creates nothing and never asks who the user is by name."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from hardpoint._settings import CACHE_DIR
from hardpoint.errors import EnvironmentFailure, SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hardpoint._machine import Machine


def cache_directory(machine: Machine) -> str:
    """The cache directory: ``HARDPOINT_CACHE_DIR``, or the first default that can be used.

    The defaults: ``$XDG_CACHE_HOME/hardpoint``, ``$HOME/.cache/hardpoint`` where there is a home, and in a temporary
    directory (``TMPDIR`` first) one that bears the numeric user id. The path may not exist yet. Errors: `SettingsError`
    for a variable that is no absolute path; `EnvironmentFailure` with code ``permission`` where the place cannot be
    used, which names the variable, for an explicit choice is never replaced, or all the defaults.
    """
    chosen = (machine.variable(CACHE_DIR) or "").strip()
    if chosen:
        if not _is_absolute(machine, chosen):
            raise SettingsError(
                f"{CACHE_DIR}={chosen!r} is not an absolute path; processes that start elsewhere would not share it",
                setting=CACHE_DIR,
                value=chosen,
            )
        if (trouble := _trouble(machine, chosen)) is not None:
            raise EnvironmentFailure(
                f"{CACHE_DIR}={chosen} cannot be used: {trouble}",
                code="permission",
                remedy=f"make it writable, or set {CACHE_DIR} to a directory that is",
            )
        return chosen
    tried = []
    for path in _defaults(machine):
        trouble = _trouble(machine, path)
        if trouble is None:
            return path
        tried.append(f"{path}: {trouble}")
    raise EnvironmentFailure(
        f"no cache directory can be used: {'; '.join(tried)}",
        code="permission",
        remedy=f"set {CACHE_DIR} to a directory that can be written",
    )


def make_cache_directory(machine: Machine) -> str:
    """Create the chosen directory, for this user only, and return it. Errors: as `cache_directory`; `OSError`.

    What is kept there will be run: a directory of another user, or one that others may write, is refused with code
    ``untrusted``. Live machines only.
    """
    import os
    import stat

    path = cache_directory(machine)
    os.makedirs(posixpath.dirname(path) or "/", exist_ok=True)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        found = os.stat(path, follow_symlinks=True)
        foreign = machine.user_id is not None and found.st_uid not in {machine.user_id, 0}
        if foreign or (machine.user_id is not None and found.st_mode & stat.S_IWOTH):
            whose = f"belongs to user {found.st_uid}" if foreign else "may be written by every user"
            raise EnvironmentFailure(
                f"the cache directory {path} {whose}: what is kept there could be anybody's",
                code="untrusted",
                remedy=f"remove it, or set {CACHE_DIR} to a directory of your own",
            ) from None
    return path


def _defaults(machine: Machine) -> Iterator[str]:
    for variable, below in (
        ("XDG_CACHE_HOME", "hardpoint"),
        ("LOCALAPPDATA", "hardpoint/cache"),
        ("HOME", ".cache/hardpoint"),
    ):
        base = machine.variable(variable) or ""
        # A container that runs as an arbitrary user has HOME=/, which is nobody's.
        if _is_absolute(machine, base) and posixpath.normpath(base).strip("/"):
            yield posixpath.join(base, below)
    who = "" if machine.user_id is None else f"-{machine.user_id}"
    named = (machine.variable(name) or "" for name in ("TMPDIR", "TEMP", "TMP"))
    # As Python's own tempfile does: one that is named and cannot be used is no reason to have none.
    for base in dict.fromkeys((*(path for path in named if _is_absolute(machine, path)), "/tmp", "/var/tmp")):  # noqa: S108
        yield posixpath.join(base, f"hardpoint{who}")


def _is_absolute(machine: Machine, path: str) -> bool:
    if machine.system == "Windows":
        import ntpath

        return ntpath.isabs(path)
    return path.startswith("/")


def _trouble(machine: Machine, path: str) -> str | None:
    """Why nothing can be kept under a path, judged by the nearest folder that exists; None: it can."""
    current = path
    while not machine.exists(current):
        above = posixpath.dirname(current.rstrip("/"))
        if above == current or not above:
            return "there is no such place"
        current = above
    try:
        machine.list_directory(current)
    except NotADirectoryError:
        return f"{current} is not a directory"
    except OSError:
        return f"{current} cannot be read"
    return None if machine.can_read_and_write(current) else f"{current} cannot be written"
