"""Which entries of the path a stranger could have put there, or could write to.

A plugin found only through the current directory, the folder of the running script or a folder that everybody may
write is not loaded unasked: whoever can place a file there would choose the code that runs.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_OTHERS_MAY_WRITE = 0o002


def script_folder() -> str | None:
    """What Python itself put first on the path.

    The running script's folder; under ``-m`` the current directory; under ``-c`` and interactively ``''``, which stands
    for the current directory. None under ``-P``, and where the program is an archive.
    """
    if sys.flags.safe_path:
        return None
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if not isinstance(file, str):
        return ""
    # `python -m package` has a __spec__ that names the module; `python folder/` has one that is just "__main__".
    if getattr(getattr(main, "__spec__", None), "name", "__main__") != "__main__":
        folder = _current()
    else:
        # Python follows a script that is a symbolic link.
        folder = os.path.dirname(os.path.realpath(file))
    return folder if folder and os.path.isdir(folder) else None


def judge_path(path: Sequence[str], *, script: str | None) -> list[str | None]:
    """For each entry None where it is trusted, else a sentence that says why not.

    `script` is what `script_folder` says. A folder that is on the path once more, as something else than the current
    directory and the script's folder, was put there on purpose and is trusted: a virtual environment's site-packages
    stays so while the process stands in it.
    """
    implicit = [not entry or os.path.normpath(entry) == os.curdir for entry in path]
    identities = [_identity(entry) for entry in path]
    explicit = [who for who, is_implicit in zip(identities, implicit, strict=True) if not is_implicit]
    automatic = None if script is None or (script == "" and any(implicit)) else _identity(script)
    reasons: list[str | None] = []
    for entry, who, is_implicit in zip(path, identities, implicit, strict=True):
        if who is None or explicit.count(who) > (who == automatic):
            reasons.append(judge_folder(entry or os.curdir))
        elif is_implicit:
            reasons.append(f"it was found only through {entry!r} on the path, the current directory")
        else:
            what = "the current directory" if script == "" else "the folder that the program was started from"
            reasons.append(f"it was found only through {entry}, {what}")
    return reasons


def judge_folder(folder: str) -> str | None:
    """None unless everybody may write to this folder or file.

    Writable for a group is fine: containers that run under an arbitrary user id, and distributions that give each user
    a group of their own, rely on it. On Windows the mode bits say nothing, so nothing is concluded from them.
    """
    if os.name == "nt":
        return None
    try:
        mode = os.stat(folder).st_mode
    except (OSError, ValueError):
        return None
    if mode & _OTHERS_MAY_WRITE:
        return f"everybody may write to {folder} (mode {mode & 0o7777:04o})"
    return None


def _current() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def _identity(folder: str) -> tuple[int, int] | None:
    try:
        status = os.stat(folder or os.curdir)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino
