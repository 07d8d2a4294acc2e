"""The real machine and a fake amdsmi with the real one's names: what is called, and what becomes of every failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from plugins.platforms.rocm.tests.conftest import Host

DETECT = """
from hardpoint_rocm.plugin import plugin
found = plugin.hardpoint_detect(machine)
print(json.dumps({
    "status": str(found.status),
    "devices": [device.as_dict() for device in found.devices],
    "codes": [str(reason.code) for reason in found.reasons],
    "reasons": [reason.message for reason in found.reasons],
    "notes": [[str(note.code), note.message] for note in found.notes],
    "warnings": Kept.texts,
}))
"""
RESOLVE = """
import hardpoint
resolution = hardpoint.resolve(machine=machine)
platform = resolution.platform
config = hardpoint.AttentionConfig(head_size=128, num_heads=8, dtype="bfloat16", block_size=16)
valid, rejected = platform.get_valid_backends(platform.get_device_capability(), config, depth="static")
loaded = [name for name in ("torch", "numpy") if name in sys.modules]
print(json.dumps([platform.name, platform.device_count(), sorted(rejected), loaded]))
"""


def device(number: int, **changes: Any) -> dict[str, Any]:
    """What the library answers of a device."""
    return {
        "amdsmi_get_gpu_device_bdf": f"0000:{0x10 + number:02x}:00.0",
        "amdsmi_get_gpu_device_uuid": f"72ff74a1-0000-1000-80d8-00000000000{number}",
        "amdsmi_get_gpu_asic_info": {
            "market_name": f"AMD Instinct MI300X {number}",
            "asic_serial": f"0x{0xA0 + number:016X}",
            "num_compute_units": 304,
            "target_graphics_version": "gfx942",
        },
        "amdsmi_get_gpu_kfd_info": {"kfd_id": 7, "node_id": number + 1, "current_partition_id": 0},
        "amdsmi_get_gpu_vram_usage": {"vram_total": 196592, "vram_used": 283},
        "amdsmi_get_gpu_driver_info": {"driver_version": "6.14.14"},
        "amdsmi_get_gpu_compute_partition": "SPX",
        "amdsmi_get_gpu_memory_partition": "NPS1",
        **changes,
    }


@pytest.fixture
def two(host: Host, card: Callable[..., dict[str, int]]) -> Host:
    """A machine with two devices in the kernel's files, and a working amdsmi that lists them the other way round."""
    host.add([card(0), card(1)])
    host.write({"/sys/module/amdgpu/version": "6.14.14\n"})
    host.install_amdsmi()
    host.play(devices=[device(1), device(0)])
    return host


def test_calls_per_resolution(two: Host) -> None:
    """What the README states: 4 calls of amdsmi and 7 for each device; neither torch nor numpy is loaded."""
    assert two.run(RESOLVE)[:2] == ["rocm", 2]
    assert len(two.calls()) == 4 + 7 * 2
    two.play(devices=[device(1)])
    name, count, rejected, loaded = two.run(RESOLVE)
    assert (name, count, loaded) == ("rocm", 2, [])
    assert "aiter_fa" in rejected
    assert len(two.calls()) == 4 + 7


def test_joined_by_address(two: Host) -> None:
    """Names come from amdsmi, order from the kernel, and amdsmi is shut down as often as it was initialised."""
    found = two.run(DETECT)
    assert [(item["name"], item["physical_id"]) for item in found["devices"]] == [
        ("AMD Instinct MI300X 0", 0), ("AMD Instinct MI300X 1", 1),
    ]  # fmt: skip
    assert [item["properties"]["amdsmi_index"] for item in found["devices"]] == [1, 0]
    assert (found["notes"], found["warnings"]) == ([], [])
    assert (two.calls().count("amdsmi_init"), two.calls().count("amdsmi_shut_down")) == (1, 1)


@pytest.mark.parametrize(
    ("load", "code", "words", "warns"),
    [
        (
            "missing",
            "missing_library",
            "libamd_smi.so: cannot open shared object file: No such file or directory",
            False,
        ),
        ("symbol", "broken_import", "has no attribute 'amdsmi_get_gpu_new_things'", True),
        ("KeyError", "broken_import", "KeyError: 'what the fake says'", True),
        ("OSError", "broken_import", "OSError: what the fake says", True),
        ("RuntimeError", "broken_import", "RuntimeError: what the fake says", True),
        ("ImportError", "broken_import", "ImportError: what the fake says", True),
    ],
)
def test_import_that_fails(two: Host, load: str, code: str, words: str, warns: bool) -> None:
    """Whatever the package raises as it is imported is a note with its text; nothing of it is printed; devices stay."""
    two.play(load=load)
    found = two.run(DETECT)
    assert (found["status"], len(found["devices"])) == ("usable", 2)
    ((noted, text),) = found["notes"]
    assert noted == code
    assert text.startswith("no amdsmi: ")
    assert words in text
    assert bool(found["warnings"]) is warns
    assert two.calls() == []


@pytest.mark.parametrize(
    ("failure", "code", "words"),
    [
        (34, "driver", "AMDSMI_STATUS_34 - the library's words (error 34) [/opt/rocm/lib/libamd_smi.so]"),
        (18, "driver", "(error 18)"),
        (10, "permission", "(error 10)"),
        (8, "timeout", "(error 8)"),
        (4, "missing_library", "(error 4)"),
        (31, "no_device", "(error 31)"),
        (4294967295, "driver", "(error 4294967295)"),
        ("OSError", "driver", "OSError: what the fake says [/opt/rocm/lib/libamd_smi.so]"),
        ("KeyError", "driver", "KeyError: 'what the fake says'"),
        ("AttributeError", "incompatible_dependency", "it lacks amdsmi_init"),
    ],
)
def test_initialisation_that_fails(two: Host, failure: int | str, code: str, words: str) -> None:
    """Its status or its error is a note with words, number and path; devices stay, and nothing is to be shut down."""
    two.play(fail={"amdsmi_init": failure})
    found = two.run(DETECT)
    assert len(found["devices"]) == 2
    ((noted, text),) = found["notes"]
    assert (noted, text.startswith("no amdsmi: amdsmi cannot initialise: ")) == (code, True)
    assert words in text
    assert two.calls() == ["amdsmi_init"]


@pytest.mark.parametrize("function", ["amdsmi_get_processor_handles", "amdsmi_get_gpu_device_bdf", "amdsmi_shut_down"])
@pytest.mark.parametrize("failure", [34, "OSError", "RecursionError"])
def test_shut_down_on_every_path(two: Host, function: str, failure: int | str) -> None:
    """Wherever it fails after it was initialised it is shut down, and the kernel's devices are there."""
    two.play(devices=[device(0), device(1)], fail={function: failure})
    found = two.run(DETECT)
    assert (found["status"], len(found["devices"])) == ("usable", 2)
    assert two.calls()[-1] == "amdsmi_shut_down"
    assert two.calls().count("amdsmi_shut_down") == 1
    assert bool(found["notes"]) is (function != "amdsmi_shut_down")


@pytest.mark.parametrize("failure", [2, 16, "ValueError", "KeyError", "UnicodeWarning"])
def test_what_it_does_not_tell(two: Host, failure: int | str) -> None:
    """Questions that it fails at, in whatever way, leave things unknown; no note, no warning."""
    optional = [name for name in device(0) if name != "amdsmi_get_gpu_device_bdf"]
    two.play(devices=[device(0), device(1)], fail=dict.fromkeys(optional, failure))
    found = two.run(DETECT)
    assert (len(found["devices"]), found["notes"], found["warnings"]) == (2, [], [])
    assert found["devices"][0]["properties"]["amdsmi_index"] == 0


def test_package_of_another_release(two: Host) -> None:
    """A function that an older package does not have is a thing unknown."""
    two.play(devices=[device(0)], has_memory_partition=False)
    found = two.run(DETECT)
    assert (len(found["devices"]), found["warnings"]) == (2, [])
    assert found["devices"][0]["properties"]["memory_partition"] is None


def test_device_that_is_gone(two: Host) -> None:
    """A device that disappears between two questions is a note, and what the kernel knows of it stays."""
    two.play(devices=[device(0, amdsmi_get_gpu_vram_usage=31), device(1)])
    found = two.run(DETECT)
    ((code, text),) = found["notes"]
    assert (code, "amdsmi_get_gpu_vram_usage" in text, len(found["devices"])) == ("no_device", True, 2)


def test_library_alone(host: Host) -> None:
    """Where only amdsmi has devices they are its own; in a child process it answers the same."""
    host.write({"/dev/kfd": ""})
    host.install_amdsmi()
    host.play(devices=[device(1), device(0)])
    found = host.run(DETECT)
    assert [item["pci_bus_id"] for item in found["devices"]] == ["0000:10:00.0", "0000:11:00.0"]
    host.variables["HARDPOINT_PROBE"] = "isolated"
    assert host.run(DETECT) == found


def test_nothing_is_asked_where_nothing_is(host: Host) -> None:
    """Without a trace of hardware amdsmi, though installed, is not imported, nor is anything else of the plugin."""
    host.install_amdsmi()
    code = DETECT.replace(
        "print(", "loaded = sorted(n for n in sys.modules if n.startswith(('amdsmi', 'hardpoint_rocm')))\nprint("
    )
    host.run(code.replace('"status"', '"loaded": loaded, "status"'))
    assert host.calls() == []
    loaded = host.run(code.replace('"status"', '"loaded": loaded, "status"'))["loaded"]
    assert loaded == ["hardpoint_rocm", "hardpoint_rocm._traces", "hardpoint_rocm.plugin"]


LISTEN = """
import io, threading
from hardpoint_rocm import _amdsmi
sys.stdout = caught = io.StringIO()
listener = _amdsmi._Listener(caught)
listener.write("mine")
thread = threading.Thread(target=lambda: (listener.write("theirs"), listener.flush()))
thread.start(); thread.join()
sys.stdout = sys.__stdout__
silent = _amdsmi._Listener(None)
silent.flush()
thread = threading.Thread(target=lambda: silent.write("lost"))
thread.start(); thread.join()
print(json.dumps([listener.text, caught.getvalue(), silent.text, listener.seekable()]))
"""


def test_output_of_other_threads(host: Host) -> None:
    """While amdsmi is imported what it prints is kept, and what other threads print goes where it should."""
    assert host.run(LISTEN) == ["mine", "theirs", "", True]
