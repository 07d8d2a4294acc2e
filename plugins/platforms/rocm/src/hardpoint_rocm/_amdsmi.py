"""Asking amdsmi, AMD's management library: the target of `Machine.probe`. It creates no context and opens no queue.

It is shut down on every path. Its Python package is made for one release of ROCm and breaks with another in ways of its
own: where the library is missing it prints that, and then raises `KeyError`; where a function is missing it raises
`AttributeError` as soon as it is imported. So whatever comes out of a call into it becomes an `EnvironmentFailure` that
says what it was; nothing but those calls is in a `try`.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager, redirect_stdout, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hardpoint._probing import describe_error
from hardpoint.errors import EnvironmentFailure
from hardpoint_rocm._inventory import format_uuid

if TYPE_CHECKING:
    from collections.abc import Iterator

Foreign: TypeAlias = Any
"""What amdsmi hands out: a package, handles and dictionaries without types."""

# Of amdsmi_status_t: what each is under the failure rule. All others are the driver's.
_CODES: Final = {2: "other", 4: "missing_library", 8: "timeout", 10: "permission", 31: "no_device"}
_REMEDIES: Final = {
    10: "add this user to the groups that own /dev/dri (render, video), or give it to the container",
    34: "load the kernel module: modprobe amdgpu",
}
_GONE: Final = frozenset((31, 34, 54))  # not found, driver not loaded, restart failed


def read_devices() -> dict[str, Any]:  # Any: JSON
    """Everything about every device that this process may open, and what went wrong with the others.

    Errors: `EnvironmentFailure`; `ModuleNotFoundError` without the package.
    """
    with _session() as amdsmi:
        devices, problems = [], []
        driver = None
        handles = _required(amdsmi, "list the devices", "amdsmi_get_processor_handles")
        for index, handle in enumerate(handles if isinstance(handles, list | tuple) else ()):
            try:
                devices.append(_read_device(amdsmi, index, handle))
                driver = driver or _pick(_optional(amdsmi, "amdsmi_get_gpu_driver_info", handle), "driver_version")
            except EnvironmentFailure as failure:
                problems.append({"index": index, "code": str(failure.code), "message": failure.message})
        return {"library": _path(amdsmi), "driver_version": driver, "devices": devices, "problems": problems}


@contextmanager
def _session() -> Iterator[Foreign]:
    amdsmi = _import()
    _required(amdsmi, "initialise", "amdsmi_init")
    try:
        yield amdsmi
    finally:
        with suppress(EnvironmentFailure):
            _required(amdsmi, "shut down", "amdsmi_shut_down")


def _import() -> Foreign:
    heard = _Listener(sys.stdout)
    try:
        with redirect_stdout(heard):
            amdsmi = import_module("amdsmi")
    except ImportError:
        raise
    except Exception as error:  # a foreign package: see above
        words = " ".join(heard.text.split()) or describe_error(error)
        missing = "libamd_smi" in words and ("cannot open" in words or "No such file" in words)
        raise EnvironmentFailure(
            f"amdsmi cannot be imported: {words}" + (f" ({describe_error(error)})" if heard.text else ""),
            code="missing_library" if missing else "broken_import",
            remedy="install the amdsmi that belongs to this ROCm, and its libamd_smi.so",
        ) from error
    return amdsmi


class _Listener:
    """Standard output while amdsmi is imported: it keeps what this thread prints and passes on what others do."""

    def __init__(self, stream: Foreign) -> None:
        self.stream = stream
        self.thread = threading.get_ident()
        self.text = ""

    def write(self, text: str) -> int:
        if threading.get_ident() == self.thread:
            self.text += text
        elif self.stream is not None:
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        if self.stream is not None:
            self.stream.flush()

    def __getattr__(self, name: str) -> Foreign:
        return getattr(self.stream, name)


def _read_device(amdsmi: Foreign, index: int, handle: Foreign) -> dict[str, Any]:
    """One device. Errors: `EnvironmentFailure` where it may not be opened; what else amdsmi does not tell is None."""
    address = _required(amdsmi, f"open device {index}", "amdsmi_get_gpu_device_bdf", handle)
    asic = _optional(amdsmi, "amdsmi_get_gpu_asic_info", handle)
    kfd = _optional(amdsmi, "amdsmi_get_gpu_kfd_info", handle)
    return {
        "index": index,
        "pci_bus_id": _text(address),
        # The serial number is what the kernel calls the unique id, and the masks know it by; a snapshot hides both.
        "uuid": format_uuid(_text(_pick(asic, "asic_serial"))),
        "amdsmi_uuid": _text(_optional(amdsmi, "amdsmi_get_gpu_device_uuid", handle)),
        "name": _pick(asic, "market_name"),
        "arch": _pick(asic, "target_graphics_version"),
        "compute_units": _pick(asic, "num_compute_units"),
        # Megabytes of 2^20 bytes.
        "memory_megabytes": _pick(_optional(amdsmi, "amdsmi_get_gpu_vram_usage", handle), "vram_total"),
        "node": _pick(kfd, "node_id"),
        "partition": _pick(kfd, "current_partition_id"),
        "compute_partition": _text(_optional(amdsmi, "amdsmi_get_gpu_compute_partition", handle)),
        "memory_partition": _text(_optional(amdsmi, "amdsmi_get_gpu_memory_partition", handle)),
    }


def _required(amdsmi: Foreign, what: str, name: str, *arguments: Foreign) -> Foreign:
    try:
        return getattr(amdsmi, name)(*arguments)
    except Exception as error:  # a foreign package: see above
        raise _failure(amdsmi, error, what, name) from error


def _optional(amdsmi: Foreign, name: str, *arguments: Foreign) -> Foreign:
    """The answer; None where amdsmi has none, or has no such function. Errors: `EnvironmentFailure`, if it is gone."""
    try:
        return _required(amdsmi, f"answer {name}", name, *arguments)
    except EnvironmentFailure as failure:
        if getattr(failure.__cause__, "err_code", None) in _GONE:
            raise
        return None


def _pick(answer: Foreign, key: str) -> str | int | None:
    value = answer.get(key) if isinstance(answer, dict) else None
    return value if isinstance(value, str | int) else None


def _text(answer: Foreign) -> str | None:
    return answer if isinstance(answer, str) else None


def _failure(amdsmi: Foreign, error: Exception, what: str, name: str) -> EnvironmentFailure:
    number = getattr(error, "err_code", None)
    path = _path(amdsmi) or "path unknown"
    if isinstance(error, AttributeError):
        return EnvironmentFailure(
            f"amdsmi cannot {what}: it lacks {name} ({error}) [{path}]", code="incompatible_dependency"
        )
    if type(number) is not int:
        return EnvironmentFailure(f"amdsmi cannot {what}: {describe_error(error)} [{path}]", code="driver")
    # Its own text is of several lines and begins with the number.
    words = getattr(error, "err_info", None) or " ".join(str(error).split())
    return EnvironmentFailure(
        f"amdsmi cannot {what}: {words} (error {number}) [{path}]",
        code=_CODES.get(number, "driver"),
        remedy=_REMEDIES.get(number),
    )


def _path(amdsmi: Foreign) -> str | None:
    """Which library it has loaded, by its own record."""
    libraries = getattr(getattr(amdsmi, "amdsmi_wrapper", None), "_libraries", None)
    library = libraries.get("libamd_smi.so") if isinstance(libraries, dict) else None
    name = getattr(library, "_name", None)
    return None if name is None else str(name)
