"""What became of a process, and what a process of another user needs."""

from __future__ import annotations

import os
import time
from pathlib import Path


def ends(pid: int) -> bool:
    """Whether a process that was killed ends soon; a zombie that waits for init has ended."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def open_to_all(folder: Path) -> None:
    """Let another user reach a folder of the test's, however deep pytest has put it."""
    for above in (folder, *folder.parents[:-1]):
        if above.stat().st_mode & 0o055 != 0o055 and above.stat().st_uid == os.geteuid():
            above.chmod(above.stat().st_mode | 0o055)


def others_may_read(path: str | None) -> bool:
    """Whether another user reaches a file: what is imported late can only be imported then."""
    folders = [] if path is None else list(Path(path).resolve().parents)
    return bool(folders) and all(folder.stat().st_mode & 0o005 == 0o005 for folder in folders)
