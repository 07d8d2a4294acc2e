"""What became of a process."""

from __future__ import annotations

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
