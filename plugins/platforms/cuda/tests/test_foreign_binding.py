"""A module ``pynvml`` that is not that of nvidia-ml-py, or is broken: whatever it does, the machine is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from plugins.platforms.cuda.tests.conftest import Drivers

DETECT = """
from hardpoint_cuda.plugin import plugin
found = plugin.hardpoint_detect(machine)
told = [*found.reasons, *found.notes]
print(json.dumps([
    str(found.status), [device.as_dict() for device in found.devices],
    [str(item.code) for item in told], [item.message for item in told],
]))
"""

OLD = """
from types import SimpleNamespace
nvmlLib = None
class NVMLError(Exception):
    pass
def nvmlInit(): pass
def nvmlShutdown(): raise TypeError("not again")
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(handle): return "NVIDIA H100"
def nvmlDeviceGetUUID(handle): return "GPU-1"
def nvmlDeviceGetMemoryInfo(handle): return SimpleNamespace(total=80 << 30)
def nvmlDeviceGetCudaComputeCapability(handle): return 9, 0
def nvmlDeviceGetMigMode(handle): raise NVMLError(3)
"""


@pytest.mark.parametrize(
    ("module", "code", "words"),
    [
        ("", "incompatible_dependency", "pynvml.py has no nvmlInit, so it is not the pynvml of this nvidia-ml-py"),
        ("def cut_off(", "broken_import", "pynvml does not load: SyntaxError: "),
        (
            "raise FutureWarning('The pynvml package is deprecated')",
            "broken_import",
            "pynvml does not load: FutureWarning: The pynvml package is deprecated",
        ),
        ("def nvmlInit(): raise ValueError('?')", "driver", "NVML cannot initialise: ValueError: ? [path unknown]"),
    ],
)
def test_one_that_does_not_work(drivers: Drivers, module: str, code: str, words: str) -> None:
    """It is a reason in its own words, never a crash, and the driver is asked next."""
    (drivers.site / "pynvml.py").write_text(module)
    drivers.torch("None")  # built for nothing that is here, and so not asked
    status, _, codes, messages = drivers.run(DETECT)
    assert (status, codes[:2]) == ("unusable", [code, "missing_library"])
    assert words in messages[0]


def test_one_that_lacks_questions(drivers: Drivers) -> None:
    """An older one answers what it can; what it has no function for is unknown."""
    (drivers.site / "pynvml.py").write_text(OLD)
    status, (device,), _, _ = drivers.run(DETECT)
    assert (status, device["name"], device["uuid"]) == ("usable", "NVIDIA H100", "GPU-1")
    assert (device["pci_bus_id"], device["properties"]["sm_count"]) == (None, None)
