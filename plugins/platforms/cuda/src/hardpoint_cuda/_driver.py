"""Asking the CUDA driver, libcuda.

`read_devices` initialises it, after which a fork of the process cannot use CUDA. So it is asked in a child process of
its own, always (`Machine.probe(…, isolated=True)`), and creates no context even there. `is_initialised` runs in this
process, about which it answers; it loads nothing and initialises nothing.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, Final

from hardpoint.errors import EnvironmentFailure
from hardpoint_cuda._library import Foreign, loaded_from

_SUCCESS: Final = 0
_NOT_INITIALISED: Final = 3
_STUB: Final = 34
_NO_DEVICE: Final = 100
_NOT_READY: Final = 802
_UNKNOWN: Final = 999
_FABRIC: Final = (
    "start NVIDIA's fabric manager, of the driver's own version (systemctl status nvidia-fabricmanager says why it "
    "does not run), and give it a minute"
)
# Of the enumeration CUdevice_attribute in cuda.h:
_SM_COUNT: Final = 16
_INTEGRATED: Final = 18
_MAJOR: Final = 75
_MINOR: Final = 76


def read_devices(keep_mask: bool) -> dict[str, Any]:  # noqa: FBT001  # Any: JSON; a probe's arguments have no names
    """Every device in the order in which CUDA numbers them, or with `keep_mask` only those of the present mask.

    Errors: `EnvironmentFailure` with the path of the library.
    """
    if not keep_mask:
        # This is a child process that ends after the answer. The driver reads its environment when it is initialised.
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    library = _load()
    try:
        # A failed initialisation makes all later answers worthless, a count of devices too.
        _check(library, library.cuInit(0), "initialise")
        count, version = ctypes.c_int(), ctypes.c_int()
        _check(library, library.cuDeviceGetCount(ctypes.byref(count)), "count the devices")
        devices = [_read_device(library, index) for index in range(count.value)]
        known = library.cuDriverGetVersion(ctypes.byref(version)) == _SUCCESS and version.value > 0
    except AttributeError as error:
        # How ctypes says that a symbol is missing.
        raise EnvironmentFailure(
            f"the CUDA driver's library lacks a function: {error} [{_path(library)}]",
            code="driver",
            remedy="install the library that belongs to the kernel's driver",
        ) from error
    return {
        "library": _path(library),
        "cuda_version": [version.value // 1000, version.value % 1000 // 10] if known else None,
        "devices": devices,
    }


def is_initialised() -> bool | None:
    """Whether something in this process has initialised the driver; None: it is loaded and does not say."""
    if sys.platform == "win32":
        return None
    try:
        # Finds the library only if it has been loaded already.
        library = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        answer = library.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))
    except OSError:
        return False
    except AttributeError:
        return None
    return None if answer not in (_SUCCESS, _NOT_INITIALISED) else bool(answer == _SUCCESS)


def _load() -> Foreign:
    try:
        if sys.platform == "win32":
            return ctypes.WinDLL("nvcuda.dll")
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        missing = "cannot open" in str(error) or "Could not find" in str(error)
        raise EnvironmentFailure(
            f"the CUDA driver's library cannot be loaded: {error}",
            code="missing_library" if missing else "broken_import",
        ) from error


def _read_device(library: Foreign, index: int) -> dict[str, Any]:
    device = ctypes.c_int()
    _check(library, library.cuDeviceGet(ctypes.byref(device), index), f"open device {index}")

    def attribute(number: int) -> int | None:
        value = ctypes.c_int()
        return value.value if library.cuDeviceGetAttribute(ctypes.byref(value), number, device) == _SUCCESS else None

    def text(function: Foreign, size: int) -> str | None:
        buffer = ctypes.create_string_buffer(size)
        return buffer.value.decode("utf-8", "replace") if function(buffer, size, device) == _SUCCESS else None

    memory = ctypes.c_size_t()
    has_memory = library.cuDeviceTotalMem_v2(ctypes.byref(memory), device) == _SUCCESS
    major, minor, integrated = attribute(_MAJOR), attribute(_MINOR), attribute(_INTEGRATED)
    return {
        "index": index,
        "name": text(library.cuDeviceGetName, 256),
        "uuid": _uuid(library, device),
        "pci_bus_id": text(library.cuDeviceGetPCIBusId, 32),
        "capability": None if major is None or minor is None else [major, minor],
        "memory_bytes": memory.value or None if has_memory else None,
        "unified_memory": None if integrated is None else bool(integrated),
        "sm_count": attribute(_SM_COUNT),
    }


def _uuid(library: Foreign, device: ctypes.c_int) -> str | None:
    """As NVML and the mask write it. It is the whole device's: that a device is a MIG instance, nobody says here."""
    import uuid

    raw = ctypes.create_string_buffer(16)
    # The second version tells the instance's own id; a library may have dropped the first.
    function = getattr(library, "cuDeviceGetUuid", None) or library.cuDeviceGetUuid_v2
    if function(raw, device) != _SUCCESS:
        return None
    return f"GPU-{uuid.UUID(bytes=raw.raw)}"


def _check(library: Foreign, number: int, what: str) -> None:
    if number == _SUCCESS:
        return
    path = _path(library)
    if number == _STUB:
        raise EnvironmentFailure(
            f"stub library: {path} is what programs are linked with, not the CUDA driver (error {number})",
            code="stub_library",
            remedy=f"take {os.path.dirname(path) or 'its folder'} off LD_LIBRARY_PATH",
        )
    if number == _NO_DEVICE:
        raise EnvironmentFailure(f"the CUDA driver sees no device (error {number}) [{path}]", code="no_device")
    raise EnvironmentFailure(
        f"the CUDA driver cannot {what}: {_words(library, number)} {number} [{path}]",
        code="driver",
        remedy=_FABRIC if number == _NOT_READY else None,
    )


def _words(library: Foreign, number: int) -> str:
    if number == _UNKNOWN:
        return "unknown error"
    text = ctypes.c_char_p()
    try:
        found = library.cuGetErrorString(number, ctypes.byref(text)) == _SUCCESS
    except AttributeError:
        found = False
    return text.value.decode("utf-8", "replace") if found and text.value else "error"


def _path(library: Foreign) -> str:
    return loaded_from(library, "cuInit") or loaded_from(library, "cuDeviceGetCount") or "path unknown"
