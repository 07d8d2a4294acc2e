"""The driver's library under Python: its functions with their types, and its errors as the failure rule wants them."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from hardpoint import EnvironmentFailure, load_library

_HANDLE: Final = ctypes.c_void_p
_OUT: Final = ctypes.POINTER(ctypes.c_void_p)
TASK: Final = ctypes.CFUNCTYPE(None, ctypes.c_uint64)
"""What a stream runs: a function of one number."""


class Properties(ctypes.Structure):
    """``struct properties`` of the driver."""

    _fields_ = (
        ("name", ctypes.c_char * 64),
        ("arch", ctypes.c_char * 16),
        ("uuid", ctypes.c_char * 64),
        ("memory_bytes", ctypes.c_uint64),
    )


_INT64_OUT: Final = ctypes.POINTER(ctypes.c_uint64)
_FUNCTIONS: Final = {
    "error_text": (ctypes.c_char_p, [ctypes.c_int]),
    "version": (ctypes.c_char_p, []),
    "query": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(Properties)]),
    "open": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_int, _OUT]),
    "is_open": (ctypes.c_int, [ctypes.c_int]),
    "is_forked": (ctypes.c_int, []),
    "memory": (ctypes.c_int, [ctypes.c_int, _INT64_OUT, _INT64_OUT, _INT64_OUT]),
    "allocate": (ctypes.c_int, [ctypes.c_int, ctypes.c_int, ctypes.c_uint64, _OUT]),
    "stream_create": (ctypes.c_int, [ctypes.c_int, _OUT]),
    "stream_destroy": (None, [_HANDLE]),
    "stream_synchronize": (ctypes.c_int, [_HANDLE]),
    "stream_wait_event": (ctypes.c_int, [_HANDLE, _HANDLE]),
    "launch": (ctypes.c_int, [_HANDLE, TASK, ctypes.c_uint64]),
    "event_create": (ctypes.c_int, [_OUT]),
    "event_destroy": (None, [_HANDLE]),
    "event_record": (ctypes.c_int, [_HANDLE, _HANDLE]),
    "event_query": (ctypes.c_int, [_HANDLE]),
    "event_synchronize": (ctypes.c_int, [_HANDLE]),
    "event_milliseconds": (ctypes.c_double, [_HANDLE]),
}
OUT_OF_MEMORY: Final = 2


class Driver:
    """The loaded library. Loading it opens no device. Errors: `EnvironmentFailure` with the library's path."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.path = f"{root}/lib/libwherrow.so.1" if root else "libwherrow.so.1"
        library = load_library(self.path)
        for name, (result, arguments) in _FUNCTIONS.items():
            try:
                function = getattr(library, f"wherrow_{name}")
            except AttributeError:
                raise EnvironmentFailure(
                    f"{self.path} has no wherrow_{name}", code="driver", remedy="install the driver 1.4 or newer"
                ) from None
            function.restype, function.argtypes = result, arguments
        self._library = library

    def ask(self, name: str, *arguments: Any) -> Any:  # noqa: ANN401  # Any: what ctypes takes and gives
        """Call a function and return what it returns."""
        return getattr(self._library, f"wherrow_{name}")(*arguments)

    def call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401  # as above
        """Call a function that returns an error. Errors: `EnvironmentFailure` with the driver's words."""
        if error := self.ask(name, *arguments):
            raise EnvironmentFailure(f"{name}: {self.error_text(error)} [{self.path}]", code="driver")

    def make(self, name: str, *arguments: Any) -> int:  # noqa: ANN401  # as above
        """Call a function that makes something; its address."""
        made = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(made))
        return made.value or 0

    def error_text(self, error: int) -> str:
        """The driver's words for an error."""
        return as_text(self.ask("error_text", error))


def as_text(answer: bytes | None) -> str:
    """What the driver says in words; it may have none."""
    return (answer or b"").decode("utf-8", "replace")


def read_devices(root: str, count: int) -> dict[str, Any]:  # Any: JSON
    """What the driver says of the devices numbered below `count`. The target of a probe: it queries, and opens none."""
    driver = Driver(root)
    devices = []
    for number in range(count):
        found = Properties()
        if driver.ask("query", root.encode(), number, ctypes.byref(found)):
            continue
        texts = {name: as_text(getattr(found, name)) for name in ("name", "arch", "uuid")}
        devices.append({"number": number, **texts, "memory_bytes": found.memory_bytes})
    return {"library": driver.path, "version": as_text(driver.ask("version")), "devices": devices}
