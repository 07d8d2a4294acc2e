"""A look at a shared object before it is loaded, and the loading of a vendor's own.

The dynamic loader notices a file of a few bytes. One that was cut off further behind, by an interrupted copy, it maps
all the same, and the first touch of what is missing ends the process with SIGBUS, which nobody can catch.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final

from hardpoint.errors import EnvironmentFailure

if TYPE_CHECKING:
    import ctypes

_PT_LOAD: Final = 1
_HEADER_BYTES: Final = 64
_WORD: Final = struct.calcsize("P")
# Where things are in an ELF file of this process's own word size: in the header the place of the program header table
# and the size of its entries; in an entry the offset and size of the segment.
_TABLE_AT, _ENTRY_BYTES_AT, _OFFSET_AT, _SIZE_AT = (32, 54, 8, 32) if _WORD == 8 else (28, 42, 4, 16)
_ELF_CLASS: Final = 2 if _WORD == 8 else 1


def load_library(name: str) -> ctypes.CDLL:
    """Load a vendor's shared library: by its path, which is looked at first, or by a name that the loader looks for.

    Not isolated: what the library does while it is loaded, it does in this process. Errors: `EnvironmentFailure` with
    the name and the loader's words; code ``missing_library``, ``permission`` or ``broken_import``.
    """
    import ctypes

    from hardpoint._reasons import ReasonCode

    try:
        if os.path.dirname(name):
            check_not_truncated(name)
        return ctypes.CDLL(name)
    except EnvironmentFailure:
        raise
    except FileNotFoundError as error:
        raise EnvironmentFailure(f"{name}: no such library", code="missing_library") from error
    except OSError as error:
        from hardpoint._probing import environment_code

        code = environment_code(error)
        text = str(error) if name in str(error) else f"{name}: {error}"
        raise EnvironmentFailure(text, code=ReasonCode.BROKEN_IMPORT if code is ReasonCode.OTHER else code) from error


def check_not_truncated(path: str) -> None:
    """Refuse an ELF file that ends before its segments do. What else may be wrong with it, the loader says.

    Errors: `EnvironmentFailure` with the path; `OSError` where the file cannot be read.
    """
    with open(path, "rb") as file:
        header = file.read(_HEADER_BYTES)
        if len(header) < _HEADER_BYTES or header[:5] != b"\x7fELF" + bytes([_ELF_CLASS]):
            return
        order = ">" if header[5] == 2 else "<"  # EI_DATA: 2 is most significant byte first
        word = order + ("Q" if _WORD == 8 else "I")
        (table,) = struct.unpack_from(word, header, _TABLE_AT)
        entry_bytes, count = struct.unpack_from(order + "HH", header, _ENTRY_BYTES_AT)
        file_bytes = file.seek(0, os.SEEK_END)
        if entry_bytes < _SIZE_AT + _WORD or table + entry_bytes * count > file_bytes:
            return
        file.seek(table)
        entries = file.read(entry_bytes * count)
    end = 0
    for start in range(0, len(entries), entry_bytes):
        if struct.unpack_from(order + "I", entries, start)[0] == _PT_LOAD:
            (offset,) = struct.unpack_from(word, entries, start + _OFFSET_AT)
            (size,) = struct.unpack_from(word, entries, start + _SIZE_AT)
            end = max(end, offset + size)
    if file_bytes < end:
        raise EnvironmentFailure(
            f"{path}: file too short: it has {file_bytes} bytes and its segments end at {end}; was a copy interrupted?",
            code="broken_import",
            remedy="install again what it came with",
        )
