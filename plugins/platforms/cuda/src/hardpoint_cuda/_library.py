"""Which file a library was loaded from. Imported by probes only: it needs ctypes."""

from __future__ import annotations

import ctypes
import os
from typing import Any, TypeAlias

Foreign: TypeAlias = Any
"""What ctypes and pynvml hand out: libraries, functions, handles and errors without types."""


class _Origin(ctypes.Structure):
    """What dladdr(3) fills in."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def loaded_from(library: Foreign, symbol: str) -> str | None:
    """The path of a loaded library, found by one of its functions; its own name where the system does not say."""
    name = getattr(library, "_name", None)
    try:
        address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p)
        dladdr = ctypes.CDLL(None).dladdr
    except (AttributeError, TypeError, OSError):
        # A library without that function, or a system without dladdr (Windows).
        return None if name is None else str(name)
    origin = _Origin()
    dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Origin)]
    if dladdr(address, ctypes.byref(origin)) and origin.file:
        return os.fsdecode(origin.file)
    return None if name is None else str(name)
