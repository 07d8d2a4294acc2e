"""AMX: what the kernel offers, and the permission that a process must ask for before its first tile instruction.

CPUID says that the silicon has tiles; without the permission the first instruction that touches one ends the process.
See ``arch/x86/xstate`` in the kernel's documentation. `supported_tiles` runs through `Machine.probe`,
`request_permission` right before the module is imported.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from hardpoint.errors import EnvironmentFailure

if TYPE_CHECKING:
    import ctypes

_SYS_ARCH_PRCTL: Final = 158
"""The system call's number, on x86-64 only."""
_ARCH_GET_XCOMP_SUPP: Final = 0x1021
_ARCH_REQ_XCOMP_PERM: Final = 0x1023
_TILE_CONFIG: Final = 17
_TILE_DATA: Final = 18
"""The numbers of the processor-state components, as in XCR0."""


def supported_tiles() -> bool:
    """Whether the kernel would let a process use tiles. A query: it changes nothing. Errors: `EnvironmentFailure`."""
    import ctypes

    offered = ctypes.c_uint64(0)
    _arch_prctl("ARCH_GET_XCOMP_SUPP", _ARCH_GET_XCOMP_SUPP, ctypes.c_void_p(ctypes.addressof(offered)))
    tiles = 1 << _TILE_CONFIG | 1 << _TILE_DATA
    return offered.value & tiles == tiles


def request_permission() -> None:
    """Ask that this process, its threads and its children may use tiles. It cannot be taken back; twice is as once.

    Errors: `EnvironmentFailure` with code ``permission``.
    """
    import ctypes

    _arch_prctl("ARCH_REQ_XCOMP_PERM", _ARCH_REQ_XCOMP_PERM, ctypes.c_void_p(_TILE_DATA))


def _arch_prctl(name: str, code: int, argument: ctypes.c_void_p) -> None:
    import ctypes
    import errno
    import os

    # The number 158 means something else to every other architecture and to 32-bit processes.
    if sys.platform != "linux" or os.uname().machine != "x86_64" or sys.maxsize < 1 << 32:
        raise EnvironmentFailure("AMX not permitted: it exists on 64-bit x86 under Linux only", code="permission")
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    if syscall(ctypes.c_long(_SYS_ARCH_PRCTL), ctypes.c_long(code), argument) == 0:
        return
    number = ctypes.get_errno()
    raise EnvironmentFailure(
        f"AMX not permitted: arch_prctl({name}): [Errno {number}] {os.strerror(number)}",
        code="permission",
        remedy=(
            "give every thread an alternate signal stack with room for 8 KiB of tile state"
            if number == errno.ENOSPC
            else "run a kernel of 5.16 or later, in a sandbox that lets arch_prctl through"
        ),
    )
