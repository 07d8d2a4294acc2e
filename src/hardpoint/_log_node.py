"""One record per node: of the ranks that one launcher started here, the first to claim a text logs it.

A claim is a lock on one byte of an empty file, one file per user, at the position that the text's digest names. The
system drops it when the process ends, so that ranks started again log again, and nothing is left to clean up. Where no
local rank is known nothing is created and every process logs for itself; likewise where locks are not to be had.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hardpoint._machine import Machine

RANK_VARIABLES: Final = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_RUN_VARIABLES: Final = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID")
"""What tells two runs of one launcher apart."""

# The process never opens the file twice: closing any descriptor of it would drop all its locks.
_descriptor: int | None = None


def claim(text: str) -> bool:
    """Whether this process is the one that logs `text`; true wherever that cannot be found out. Not thread-safe."""
    from hardpoint._machine_live import LiveMachine

    machine = LiveMachine()
    # mypy reads such a test of the system as it stands.
    if sys.platform == "win32" or not any(machine.variable(name) for name in RANK_VARIABLES):
        return True
    import errno
    import fcntl
    import hashlib

    run = [str(os.getppid()), *(machine.variable(name) or "" for name in _RUN_VARIABLES)]
    digest = hashlib.sha256("\0".join([*run, text]).encode("utf-8", "replace")).digest()
    position = int.from_bytes(digest[:8], "big") >> 2  # a file offset has a sign, and the byte an end
    try:
        descriptor = _open(machine)
    except OSError:
        return True
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, position)
    except OSError as error:
        # Either number says that another process has it.
        return error.errno not in {errno.EACCES, errno.EAGAIN}
    return True


def release() -> None:
    """Give up this process's claims."""
    global _descriptor  # noqa: PLW0603  # the process has one
    if _descriptor is not None:
        os.close(_descriptor)
        _descriptor = None


def _open(machine: Machine) -> int:
    global _descriptor  # noqa: PLW0603  # as in `release`
    if _descriptor is None:
        path = os.path.join(machine.variable("TMPDIR") or "/tmp", f"hardpoint-{machine.user_id}.ranks")  # noqa: S108
        # What another user put there under this name is not taken.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        found = os.fstat(descriptor)
        if found.st_uid != machine.user_id or not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise PermissionError(f"{path} is not ours")
        _descriptor = descriptor
    return _descriptor
