"""Asking NVML, NVIDIA's management library. It creates no context and never initialises the CUDA driver.

These functions are the targets of `Machine.probe`. NVML is shut down on every path, so that the next user of it in
this process, and a child of a fork, find it as it was.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from hardpoint._importing import import_library
from hardpoint._probing import describe_error
from hardpoint.errors import EnvironmentFailure
from hardpoint_cuda._library import Foreign, loaded_from

if TYPE_CHECKING:
    from collections.abc import Iterator


# NVML's error codes (nvml.h): what each is under the failure rule. All others are the driver's.
_SUCCESS: Final = 0
_NOT_SUPPORTED: Final = 3
_LIBRARY_NOT_FOUND: Final = 12
_FUNCTION_NOT_FOUND: Final = 13
_GONE: Final = frozenset((15, 16))  # lost, or to be reset: such a device does not come back by itself
_CODES: Final = {4: "permission", 6: "no_device", 10: "timeout", _LIBRARY_NOT_FOUND: "missing_library"}
# nvmlGpuP2PCapsIndex_t and nvmlGpuP2PStatus_t. Of the first, pynvml has tuples: there is a comma too much.
_READ, _WRITE, _NVLINK = 0, 1, 2
_PEERS: Final = 0
_MIG_ENABLED: Final = 1
_INSTALL: Final = "uninstall pynvml, which brings a module of that name too; pip install --force-reinstall nvidia-ml-py"
_REMEDIES: Final = {
    4: "let this user open the device nodes /dev/nvidia*",
    9: "load the kernel module nvidia, or start the container with the NVIDIA runtime",
    18: "reboot, or reload the kernel module nvidia: the driver was updated while it was loaded",
}


def read_devices() -> dict[str, Any]:  # Any: JSON
    """Everything about every device that this process may open, and what went wrong with the others.

    Errors: `EnvironmentFailure`; `ModuleNotFoundError` without ``nvidia-ml-py``.
    """
    with _session() as nvml:
        devices, problems = [], []
        count = _required(nvml, "count the devices", "nvmlDeviceGetCount")
        for index in range(count if isinstance(count, int) else 0):
            try:
                handle = _required(nvml, f"open device {index}", "nvmlDeviceGetHandleByIndex", index)
                devices.append(_read_device(nvml, index, handle))
            except EnvironmentFailure as failure:
                problems.append({"index": index, "code": str(failure.code), "message": failure.message})
        cuda = _optional(nvml, "tell its version", "nvmlSystemGetCudaDriverVersion_v2")
        return {
            "library": _path(nvml),
            "driver_version": _optional(nvml, "tell its version", "nvmlSystemGetDriverVersion"),
            # 12080 is 12.8.
            "cuda_version": [cuda // 1000, cuda % 1000 // 10] if cuda else None,
            "devices": devices,
            "problems": problems,
        }


def read_memory_used(uuid: str) -> int | None:
    """Bytes in use on a device, by all processes; None where NVML does not count them (memory shared with the CPU)."""
    with _session() as nvml:
        handle = _required(nvml, f"find {uuid}", "nvmlDeviceGetHandleByUUID", uuid)
        memory = _optional(nvml, f"read {uuid}", "nvmlDeviceGetMemoryInfo", handle)
        return None if memory is None else int(memory.used)


def read_peers(uuid: str, other: str) -> dict[str, bool | None]:
    """Whether two devices reach each other's memory (``access``), and whether over NVLink (``nvlink``)."""
    with _session() as nvml:
        one, two = (_required(nvml, f"find {name}", "nvmlDeviceGetHandleByUUID", name) for name in (uuid, other))

        def status(index: int) -> bool | None:
            found = _optional(nvml, f"read {uuid}", "nvmlDeviceGetP2PStatus", one, two, index)
            return None if found is None else bool(found == _PEERS)

        read, write = status(_READ), status(_WRITE)
        return {
            "access": None if read is None or write is None else read and write,
            "nvlink": status(_NVLINK),
        }


@contextmanager
def _session() -> Iterator[Foreign]:
    nvml = import_library("pynvml", remedy=_INSTALL)
    _required(nvml, "initialise", "nvmlInit")
    try:
        yield nvml
    finally:
        with suppress(EnvironmentFailure):
            _required(nvml, "shut down", "nvmlShutdown")


def _read_device(nvml: Foreign, index: int, handle: Foreign) -> dict[str, Any]:
    """One device. Errors: `EnvironmentFailure` where it is gone; what else NVML does not tell is None."""
    what = f"open device {index}"
    memory, unified = _memory(nvml, what, handle)
    address = getattr(_optional(nvml, what, "nvmlDeviceGetPciInfo", handle), "busId", None)
    capability = _optional(nvml, what, "nvmlDeviceGetCudaComputeCapability", handle)
    mode = _optional(nvml, what, "nvmlDeviceGetMigMode", handle)
    is_divided = bool(mode) and mode[0] == _MIG_ENABLED
    return {
        "index": index,
        "name": _optional(nvml, what, "nvmlDeviceGetName", handle),
        "uuid": _optional(nvml, what, "nvmlDeviceGetUUID", handle),
        # Which type the text has depends on the version of pynvml.
        "pci_bus_id": address.decode("ascii", "replace") if isinstance(address, bytes) else address,
        "capability": None if capability is None else list(capability),
        "memory_bytes": memory,
        "unified_memory": unified,
        "cores": _optional(nvml, what, "nvmlDeviceGetNumGpuCores", handle),
        "mig_enabled": None if mode is None else is_divided,
        "instances": _read_instances(nvml, what, handle) if is_divided else [],
        "fabric_state": _read_fabric_state(nvml, what, handle),
    }


def _memory(nvml: Foreign, what: str, handle: Foreign) -> tuple[int | None, bool | None]:
    """Its own memory in bytes, and whether it has none of its own: then NVML does not support the question."""
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total) or None, False
    except Exception as error:  # noqa: BLE001  # as in `_optional`
        _raise_if_gone(nvml, error, what, "nvmlDeviceGetMemoryInfo")
        return None, True if _number(error) == _NOT_SUPPORTED else None


def _read_fabric_state(nvml: Foreign, what: str, handle: Foreign) -> int | None:
    """How far the fabric manager is with a device behind NVSwitch; None: nobody says."""
    import ctypes

    for function, structure in (
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
        ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
    ):
        make = getattr(nvml, structure, None)
        if make is None:
            continue
        info = make()
        if _optional(nvml, what, function, handle, ctypes.byref(info)) == _SUCCESS:
            return int(info.state)
    return None


def _read_instances(nvml: Foreign, what: str, handle: Foreign) -> list[dict[str, Any]]:
    found = []
    for place in range(_optional(nvml, what, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        # Places without an instance are not found.
        part = _optional(nvml, what, "nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
        if part is None:
            continue
        attributes = _optional(nvml, what, "nvmlDeviceGetAttributes", part)
        found.append(
            {
                "uuid": _optional(nvml, what, "nvmlDeviceGetUUID", part),
                "gpu_instance": _optional(nvml, what, "nvmlDeviceGetGpuInstanceId", part),
                "compute_instance": _optional(nvml, what, "nvmlDeviceGetComputeInstanceId", part),
                "memory_bytes": None if attributes is None else int(attributes.memorySizeMB) << 20 or None,
                "sm_count": None if attributes is None else int(attributes.multiprocessorCount) or None,
            }
        )
    return found


def _required(nvml: Foreign, what: str, name: str, *arguments: Foreign) -> Foreign:
    """The answer. Errors: `EnvironmentFailure`, whatever the foreign package raises: it may be of another release."""
    try:
        return getattr(nvml, name)(*arguments)
    except Exception as error:
        raise _failure(nvml, error, what, name) from error


def _optional(nvml: Foreign, what: str, name: str, *arguments: Foreign) -> Foreign:
    """The answer; None where NVML has none, or where it is not text though it should be.

    Errors: `EnvironmentFailure` where the device is gone.
    """
    try:
        return getattr(nvml, name)(*arguments)
    except Exception as error:  # noqa: BLE001  # a foreign package: see `_required`
        _raise_if_gone(nvml, error, what, name)
        return None


def _number(error: BaseException | None) -> int | None:
    """NVML's own number of an error; None: the error is none of NVML's."""
    number = getattr(error, "value", None)
    return number if type(number) is int else None


def _raise_if_gone(nvml: Foreign, error: Exception, what: str, name: str) -> None:
    if _number(error) in _GONE:
        raise _failure(nvml, error, what, name) from error


def _failure(nvml: Foreign, error: Exception, what: str, name: str) -> EnvironmentFailure:
    number = _number(error)
    path = _path(nvml) or "path unknown"
    if number is None:
        if not hasattr(nvml, name):
            source = getattr(nvml, "__file__", None) or "pynvml"
            return EnvironmentFailure(
                f"NVML cannot {what}: {source} has no {name}, so it is not the pynvml of this nvidia-ml-py",
                code="incompatible_dependency",
                remedy=_INSTALL,
            )
        return EnvironmentFailure(f"NVML cannot {what}: {describe_error(error)} [{path}]", code="driver")
    if number == _LIBRARY_NOT_FOUND:
        # pynvml keeps to itself what the loader said: there is no such file, or there is one that is broken.
        return _why_not_loaded(number)
    words = _words(nvml, error, number)
    if number == _FUNCTION_NOT_FOUND:
        words = f"the library lacks a function ({words})"
    return EnvironmentFailure(
        f"NVML cannot {what}: {words} (error {number}) [{path}]",
        code=_CODES.get(number, "driver"),
        remedy=_REMEDIES.get(number),
    )


def _words(nvml: Foreign, error: Exception, number: int) -> str:
    """The library's own words, else those of its Python binding, which may ask the library again."""
    for source in (lambda: nvml.nvmlErrorString(number), lambda: str(error)):
        # A foreign package, and a text that may be none.
        with suppress(Exception):
            if words := source():
                return str(words)
    return "it has no words for it"


def _why_not_loaded(number: int) -> EnvironmentFailure:
    import ctypes
    import sys

    name = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
    try:
        ctypes.CDLL(name)
    except OSError as error:
        words = str(error)
        missing = name in words and ("cannot open" in words or "Could not find" in words or "not found" in words)
        return EnvironmentFailure(
            f"NVML cannot be loaded: {words}", code="missing_library" if missing else "broken_import"
        )
    return EnvironmentFailure(f"NVML cannot be loaded (error {number})", code="missing_library")


def _path(nvml: Foreign) -> str | None:
    library = getattr(nvml, "nvmlLib", None)
    return None if library is None else loaded_from(library, "nvmlShutdown")
