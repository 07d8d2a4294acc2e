"""Those functions of the real one that are called, with its names, arguments and forms of answers."""

# ruff: noqa: D103  # what the functions do, the real ones' names say

import builtins
import os
from typing import Any

from . import amdsmi_wrapper  # noqa: TID252
from .amdsmi_exception import AmdSmiLibraryException, AmdSmiParameterException  # noqa: TID252

_state = {"initialised": 0}


def _answer(name: str, handle: Any = None) -> Any:
    with open(os.environ["FAKE_LOG"], "a") as log:
        log.write(name + "\n")
    failure = amdsmi_wrapper.SCRIPT.get("fail", {}).get(name)
    if isinstance(failure, str):
        raise getattr(builtins, failure)("what the fake says")
    if failure:
        raise AmdSmiLibraryException(failure)
    if name not in ("amdsmi_init", "amdsmi_shut_down") and not _state["initialised"]:
        raise AmdSmiLibraryException(32)
    if handle is None:
        return None
    if not isinstance(handle, int):
        raise AmdSmiParameterException(handle)
    answers = amdsmi_wrapper.SCRIPT["devices"][handle]
    if name not in answers:
        # "Not supported".
        raise AmdSmiLibraryException(2)
    value = answers[name]
    if isinstance(value, int):
        raise AmdSmiLibraryException(value)
    return value


def amdsmi_init(flag: int = 2) -> None:
    _answer("amdsmi_init")
    _state["initialised"] += 1


def amdsmi_shut_down() -> None:
    _answer("amdsmi_shut_down")
    _state["initialised"] -= 1


def amdsmi_get_processor_handles() -> list[int]:
    _answer("amdsmi_get_processor_handles")
    return list(range(len(amdsmi_wrapper.SCRIPT.get("devices", []))))


def amdsmi_get_gpu_device_bdf(processor_handle: int) -> str:
    return str(_answer("amdsmi_get_gpu_device_bdf", processor_handle))


def amdsmi_get_gpu_device_uuid(processor_handle: int) -> str:
    return str(_answer("amdsmi_get_gpu_device_uuid", processor_handle))


def amdsmi_get_gpu_asic_info(processor_handle: int) -> Any:
    return _answer("amdsmi_get_gpu_asic_info", processor_handle)


def amdsmi_get_gpu_kfd_info(processor_handle: int) -> Any:
    return _answer("amdsmi_get_gpu_kfd_info", processor_handle)


def amdsmi_get_gpu_vram_usage(processor_handle: int) -> Any:
    return _answer("amdsmi_get_gpu_vram_usage", processor_handle)


def amdsmi_get_gpu_driver_info(processor_handle: int) -> Any:
    return _answer("amdsmi_get_gpu_driver_info", processor_handle)


def amdsmi_get_gpu_compute_partition(processor_handle: int) -> str:
    return str(_answer("amdsmi_get_gpu_compute_partition", processor_handle))


if amdsmi_wrapper.SCRIPT.get("has_memory_partition", True):

    def amdsmi_get_gpu_memory_partition(processor_handle: int) -> str:
        return str(_answer("amdsmi_get_gpu_memory_partition", processor_handle))
