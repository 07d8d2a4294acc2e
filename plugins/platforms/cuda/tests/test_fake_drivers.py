"""The real pynvml and the real loader with fake libraries: what is called, and what becomes of every failure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pynvml
import pytest

if TYPE_CHECKING:
    from plugins.platforms.cuda.tests.conftest import Drivers

pytestmark = pytest.mark.compiler

TWO = (
    "count=2",
    "0.name=NVIDIA RTX PRO 2000", "0.uuid=GPU-0000aaa1-0000-0000-0000-000000000011", "0.pci=00000000:01:00.0",
    "0.major=12", "0.minor=0", "0.cores=4352",
    "1.name=NVIDIA B300", "1.uuid=GPU-0000bbb2-0000-0000-0000-000000000022", "1.pci=00000000:02:00.0",
    "1.major=10", "1.minor=3", "1.cores=18944",
)  # fmt: skip

# Older releases of pynvml ask for a device's fabric by a function that the fake library lacks.
ASKS_FOR_FABRIC = hasattr(pynvml, "nvmlDeviceGetGpuFabricInfoV")
PER_DEVICE = 8 + ASKS_FOR_FABRIC

DETECT = """
from hardpoint_cuda.plugin import plugin
found = plugin.hardpoint_detect(machine)
print(json.dumps({
    "status": str(found.status),
    "devices": [device.as_dict() for device in found.devices],
    "codes": [str(reason.code) for reason in found.reasons],
    "reasons": [reason.message for reason in found.reasons],
    "notes": [note.message for note in found.notes],
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

CONTEXTS = {"cuCtxCreate_v2", "cuDevicePrimaryCtxRetain"}


def is_balanced(drivers: Drivers, successes: int = 1) -> bool:
    """Whether NVML was shut down as often as it was initialised."""
    return drivers.calls().count("nvmlShutdown") == successes


def test_resolution_initialises_nothing(drivers: Drivers) -> None:
    """B16: import, resolution and selection call no function of libcuda in this process, and load no torch."""
    drivers.install("nvml")
    drivers.install("cuda")
    name, count, rejected, loaded = drivers.run(RESOLVE)
    assert (name, count, loaded) == ("cuda", 1, [])
    assert "flash_attn" in rejected
    assert [call for call in drivers.calls() if call.startswith("cu")] == []
    assert is_balanced(drivers)


def test_calls_per_resolution(drivers: Drivers) -> None:
    """What the README states: five calls of NVML, and nine more for each device."""
    drivers.install("nvml")
    counts = []
    for devices in (1, 2, 8):
        drivers.play(f"count={devices}", *(f"{index}.uuid=GPU-{index}" for index in range(devices)))
        drivers.run(RESOLVE)
        counts.append(len(drivers.calls()))
    assert counts == [5 + PER_DEVICE * devices for devices in (1, 2, 8)]
    once = Counter(drivers.calls())
    assert (once["nvmlInitWithFlags"], once["nvmlShutdown"], once["nvmlDeviceGetCount_v2"]) == (1, 1, 1)


def test_calls_for_instances(drivers: Drivers) -> None:
    """As the README states: eight calls more for a divided device, and four for each instance."""
    drivers.install("nvml")
    drivers.play("0.uuid=GPU-a", "0.mig=1", "0.mig0.uuid=MIG-1", "0.mig3.uuid=MIG-2")
    drivers.run(DETECT)
    assert len(drivers.calls()) == 5 + PER_DEVICE + 8 + 2 * 4


def test_calls_of_the_driver(drivers: Drivers) -> None:
    """As the README states: three calls of libcuda in the child, and nine for each device."""
    drivers.install("cuda")
    drivers.play("count=3", *(f"{index}.uuid=GPU-0000000{index}-0000-0000-0000-000000000000" for index in range(3)))
    assert len(drivers.run(DETECT)["devices"]) == 3
    assert len([call for call in drivers.calls(parent=False) if call.startswith("cu")]) == 3 + 9 * 3


def test_no_hardware_loads_nothing(drivers: Drivers) -> None:
    """Where there is no trace of the hardware no library is loaded, nor pynvml, ctypes or the rest of the plugin."""
    drivers.install("nvml")
    drivers.install("cuda")
    drivers.variables["FAKE_TRACE"] = "/nothing"
    loaded = drivers.run(
        """
        before = set(sys.modules)
        from hardpoint_cuda.plugin import plugin
        assert str(plugin.hardpoint_detect(machine).status) == "absent"
        names = {"pynvml", "ctypes", "torch", "numpy", "json", "subprocess", "re", "hardpoint.platforms"}
        print(json.dumps(sorted((names & (set(sys.modules) - before)) | {
            name for name in sys.modules if name.startswith("hardpoint_cuda.")
        })))
        """
    )
    assert loaded == ["hardpoint_cuda._traces", "hardpoint_cuda.plugin"]
    assert drivers.calls() == []


def test_device(drivers: Drivers) -> None:
    """All that the real pynvml tells of a device arrives."""
    drivers.install("nvml")
    drivers.play(*TWO, "CUDA")
    drivers.variables |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    one, two = drivers.run(DETECT)["devices"]
    assert (one["name"], one["capability"]["arch"], one["pci_bus_id"]) == (
        "NVIDIA RTX PRO 2000", "sm_120", "0000:01:00.0",
    )  # fmt: skip
    assert (two["uuid"], two["total_memory_bytes"], two["properties"]["sm_count"]) == (
        "GPU-0000bbb2-0000-0000-0000-000000000022", 80 << 30, 148,
    )  # fmt: skip
    assert (two["properties"]["driver"], two["properties"]["cuda"]) == ("570.86.15", "12.8")


def test_order_of_the_driver(drivers: Drivers) -> None:
    """B05, B16: the driver is asked in a child process, without the mask and without a context."""
    drivers.install("nvml")
    drivers.install("cuda")
    drivers.play(*TWO, "order=1,0")
    drivers.variables |= {"CUDA_VISIBLE_DEVICES": "0"}
    found = drivers.run(DETECT)
    assert [device["name"] for device in found["devices"]] == ["NVIDIA B300"]
    assert [device["physical_id"] for device in found["devices"]] == [1]
    assert found["warnings"] == []
    children = drivers.calls(parent=False)
    assert children.count("cuInit") == 1
    assert "mask:unset" in children
    assert not CONTEXTS & set(children)
    assert [call for call in drivers.calls(parent=True) if call.startswith("cu")] == []


def test_order_without_a_driver(drivers: Drivers) -> None:
    """B05: where the driver cannot be asked, one warning names both models and the variable."""
    drivers.install("nvml")
    drivers.play(*TWO)
    found = drivers.run(DETECT)
    (warning,) = found["warnings"]
    assert "NVIDIA RTX PRO 2000 and NVIDIA B300" in warning
    assert "CUDA_DEVICE_ORDER" in warning
    assert "libcuda.so.1" in warning


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("nvmlInitWithFlags=18", "driver", "NVML cannot initialise: Driver/library version mismatch (error 18)"),
        ("nvmlInitWithFlags=4", "permission", "Insufficient Permissions (error 4)"),
        ("nvmlInitWithFlags=6", "no_device", "(error 6)"),
        ("nvmlInitWithFlags=9", "driver", "Driver Not Loaded (error 9)"),
        ("nvmlInitWithFlags=10", "timeout", "(error 10)"),
        ("nvmlInitWithFlags=77", "driver", "(error 77)"),
        ("nvmlInitWithFlags=999", "driver", "Unknown Error (error 999)"),
        ("nvmlDeviceGetCount_v2=15", "driver", "NVML cannot count the devices: Some Error (error 15)"),
    ],
)
def test_errors_of_nvml(drivers: Drivers, line: str, code: str, words: str) -> None:
    """B08: each error has its code, NVML's own words and the path of the library; what was initialised is shut down."""
    library = drivers.install("nvml")
    drivers.play(line)
    found = drivers.run(DETECT)
    assert found["status"] == "unusable"
    assert found["codes"][:2] == [code, "missing_library"]
    assert words in found["reasons"][0]
    assert found["reasons"][0].endswith(f"[{library}]")
    assert "libcuda.so.1: cannot open shared object file" in found["reasons"][1]
    assert is_balanced(drivers, 0 if "Init" in line else 1)


def test_mismatch_is_a_warning(drivers: Drivers) -> None:
    """B08: that a GPU was expected and lost is said at WARNING, verbatim, where the CPU is taken instead."""
    drivers.install("nvml")
    drivers.play("nvmlInitWithFlags=18")
    pytest.importorskip("hardpoint_cpu")
    name, warnings = drivers.run(
        "import hardpoint; p = hardpoint.resolve(machine=machine).platform.name; print(json.dumps([p, Kept.texts]))"
    )
    assert name == "cpu"
    assert any("Driver/library version mismatch" in text for text in warnings)


def test_library_that_is_missing_or_broken(drivers: Drivers) -> None:
    """No library, and one that was cut off, are told apart, in the loader's words."""
    found = drivers.run(DETECT)
    assert found["codes"][:2] == ["missing_library", "missing_library"]
    library = drivers.install("nvml")
    library.write_bytes(library.read_bytes()[:40])
    found = drivers.run(DETECT)
    assert found["codes"][:2] == ["broken_import", "missing_library"]
    assert "file too short" in found["reasons"][0]


def test_library_without_a_function(drivers: Drivers) -> None:
    """A library that lacks a symbol is a reason that says so, with its path."""
    library = drivers.install("nvml", "-DWITHOUT_INIT")
    drivers.install("cuda", "-DWITHOUT_COUNT")
    found = drivers.run(DETECT)
    assert found["codes"] == ["driver", "driver"]
    assert "the library lacks a function" in found["reasons"][0]
    assert f"[{library}]" in found["reasons"][0]
    assert "lacks a function" in found["reasons"][1]
    assert "cuDeviceGetCount" in found["reasons"][1]


def test_pynvml_is_missing(drivers: Drivers) -> None:
    """Without nvidia-ml-py the driver is asked."""
    drivers.install("cuda")
    found = drivers.run("sys.modules['pynvml'] = None\n" + DETECT)
    assert found["status"] == "usable"
    assert found["notes"][0].startswith("no NVML: ")


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("cuInit=34", "stub_library", "stub library: {path}"),
        ("cuInit=100", "no_device", "the CUDA driver sees no device (error 100) [{path}]"),
        ("cuInit=999", "driver", "the CUDA driver cannot initialise: unknown error 999 [{path}]"),
        ("cuInit=802", "driver", "the CUDA driver cannot initialise: error 802 [{path}]"),
        ("cuInit=803", "driver", "unsupported display driver / cuda driver combination 803 [{path}]"),
        ("cuDeviceGetCount=3", "driver", "the CUDA driver cannot count the devices: error 3 [{path}]"),
        ("cuDeviceGet=101", "driver", "the CUDA driver cannot open device 0: error 101 [{path}]"),
        ("cuInit=crash", "crashed", "SIGSEGV"),
        ("cuInit=hang", "timeout", "timed out after 2 s"),
    ],
)
def test_errors_of_the_driver(drivers: Drivers, line: str, code: str, words: str) -> None:
    """B42, B08: each error has its code and the path; a count is not asked for after a failed initialisation."""
    path = drivers.install("cuda")
    drivers.play(line)
    drivers.variables["HARDPOINT_PROBE_TIMEOUT"] = "2" if "hang" in line else "60"
    found = drivers.run(DETECT)
    assert found["status"] == "unusable"
    assert found["codes"] == ["missing_library", code]
    assert words.format(path=path) in found["reasons"][1]
    assert drivers.calls(parent=True) == []
    if line.startswith("cuInit"):
        assert "cuDeviceGetCount" not in drivers.calls()


@pytest.mark.skipif(not ASKS_FOR_FABRIC, reason="this pynvml asks by a function that the fake lacks")
def test_fabric_manager_that_does_not_run(drivers: Drivers) -> None:
    """A device that waits for it is listed by NVML, and the driver is asked in a child process and says why not."""
    drivers.install("nvml")
    drivers.install("cuda")
    drivers.play("0.fabric=2", "cuInit=802")
    found = drivers.run(DETECT)
    assert (found["status"], found["codes"], len(found["devices"])) == ("unusable", ["driver"], 1)
    assert "error 802" in found["reasons"][0]
    drivers.play("0.fabric=2")
    assert drivers.run(DETECT)["status"] == "usable"
    drivers.play("0.fabric=3", "cuInit=802")
    assert drivers.run(DETECT)["status"] == "usable"
    assert [call for call in drivers.calls() if call.startswith("cu")] == []


def test_driver_without_nvml(drivers: Drivers) -> None:
    """B08: without NVML the driver's answers in a child make the devices: id, memory, multiprocessors, integrated."""
    drivers.install("cuda")
    drivers.play("0.name=Orin", "0.major=8", "0.minor=7", "0.sm=16", "0.integrated=1",
                 "0.uuid=GPU-0000aaa1-0000-0000-0000-000000000011", "0.memory=32212254720")  # fmt: skip
    found = drivers.run(DETECT)
    (device,) = found["devices"]
    assert (device["name"], device["uuid"]) == ("Orin", "GPU-0000aaa1-0000-0000-0000-000000000011")
    assert (device["total_memory_bytes"], device["properties"]["sm_count"]) == (30 << 30, 16)
    assert (device["properties"]["integrated"], device["properties"]["cuda"]) == (True, "12.8")
    assert found["notes"][0].startswith("no NVML: NVML cannot be loaded: libnvidia-ml.so.1: cannot open")
    assert drivers.calls(parent=True) == []
    assert not CONTEXTS & set(drivers.calls())


TORCH = """
class cuda:
    @staticmethod
    def init():
        if {error!r}:
            raise RuntimeError({error!r})
    @staticmethod
    def device_count():
        return 2
    @staticmethod
    def get_device_properties(index):
        class Properties:
            name, major, minor, total_memory = "NVIDIA L4", 8, 9, 24 << 30
            multi_processor_count, is_integrated = 58, 0
            uuid = f"0000000{{index}}-0000-0000-0000-000000000000"
        return Properties()
__version__ = "9.9"
"""


def test_torch_is_the_last_resort(drivers: Drivers) -> None:
    """Where neither library can be loaded, a torch for CUDA is asked in a child, and one WARNING says so."""
    drivers.variables["CUDA_VISIBLE_DEVICES"] = "3,1"
    (drivers.site / "torch/__init__.py").write_text(TORCH.format(error=""))
    found = drivers.run(DETECT)
    assert found["status"] == "usable"
    assert [device["uuid"][:12] for device in found["devices"]] == ["GPU-00000000", "GPU-00000001"]
    assert [device["visible_id"] for device in found["devices"]] == ["3", "1"]
    assert found["devices"][0]["capability"]["arch"] == "sm_89"
    assert found["devices"][0]["total_memory_bytes"] == 24 << 30
    assert found["devices"][0]["properties"]["integrated"] is False
    assert [warning.endswith("devices are taken from torch") for warning in found["warnings"]] == [True]
    assert drivers.run(RESOLVE)[0] == "cuda"


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (
            TORCH.format(error="no NVIDIA driver on your system"),
            "driver",
            "torch 9.9 cannot use CUDA: no NVIDIA driver",
        ),
        ("raise ImportError('libcudart.so.12: cannot open')", "missing_dependency", "libcudart.so.12: cannot open"),
        ("raise OSError('undefined symbol: ncclCommWindow')", "other", "undefined symbol: ncclCommWindow"),
        ("__version__ = '9.9'", "driver", "has no attribute 'cuda'"),
        ("import os; os.abort()", "crashed", "SIGABRT"),
        ("raise FutureWarning('pynvml')", "broken_import", "torch does not load: FutureWarning: pynvml"),
    ],
)
def test_torch_that_cannot_say_either(drivers: Drivers, text: str, code: str, words: str) -> None:
    """Then there are three reasons, and none is lost."""
    (drivers.site / "torch/__init__.py").write_text(text)
    found = drivers.run(DETECT)
    assert found["codes"] == ["missing_library", "missing_library", code]
    assert words in found["reasons"][2]


@pytest.mark.parametrize("prepare", ["driver answers", "other build"])
def test_torch_is_not_asked_in_vain(drivers: Drivers, prepare: str) -> None:
    """Not where the driver's library has answered, nor where torch is built for something else."""
    (drivers.site / "torch/__init__.py").write_text("import os; os.abort()")
    if prepare == "driver answers":
        drivers.install("cuda")
        drivers.play("cuInit=803")
    else:
        drivers.torch("None")
    assert len(drivers.run(DETECT)["codes"]) == 2


def test_mask_of_instances_without_nvml(drivers: Drivers) -> None:
    """Only then the child keeps the mask, for the driver to apply."""
    drivers.install("cuda")
    drivers.variables["CUDA_VISIBLE_DEVICES"] = "MIG-m1"
    found = drivers.run(DETECT)
    assert [device["visible_id"] for device in found["devices"]] == ["MIG-m1"]
    assert "mask:MIG-m1" in drivers.calls(parent=False)


def test_devices_that_fail(drivers: Drivers) -> None:
    """A device that may not be opened, and one that is lost in the middle, are notes; the others are there."""
    drivers.install("nvml")
    drivers.play("count=4", "nvmlDeviceGetHandleByIndex_v2.0=4", "nvmlDeviceGetUUID.2=15",
                 "1.uuid=GPU-1", "3.uuid=GPU-3")  # fmt: skip
    found = drivers.run(DETECT)
    assert [device["physical_id"] for device in found["devices"]] == [1, 3]
    assert "NVML cannot open device 0: Insufficient Permissions (error 4)" in found["notes"][0]
    assert "NVML cannot open device 2" in found["notes"][1]
    assert is_balanced(drivers)


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetNumGpuCores", "nvmlDeviceGetMigMode", "nvmlSystemGetDriverVersion",
        "nvmlSystemGetCudaDriverVersion_v2", "nvmlShutdown", "nvmlDeviceGetGpuFabricInfoV",
    ],
)  # fmt: skip
def test_question_without_an_answer(drivers: Drivers, function: str) -> None:
    """B09: a question that NVML does not support, or fails at, leaves the device usable and that fact unknown."""
    drivers.install("nvml")
    for code in (3, 999):
        drivers.play(f"{function}={code}")
        found = drivers.run(DETECT)
        assert found["status"] == "usable"
        assert is_balanced(drivers)
        if function == "nvmlDeviceGetMemoryInfo":
            assert found["devices"][0]["properties"]["integrated"] is (True if code == 3 else None)
            assert (found["devices"][0]["total_memory_bytes"] is None) is (code == 999)


def test_name_that_is_no_text(drivers: Drivers) -> None:
    """Bytes that are no UTF-8 are an unknown name, not a crash."""
    drivers.install("nvml")
    drivers.script.write_bytes(b"0.name=\xff\xfe\n")
    assert drivers.run(DETECT)["devices"][0]["name"] == "NVIDIA device of unknown name"


def test_instances(drivers: Drivers) -> None:
    """B01: NVML's instances of a divided device, and the one that the mask names by either of its ids."""
    drivers.install("nvml")
    lines = ("0.uuid=GPU-a", "0.mig=1", "0.mig0.uuid=MIG-m1", "0.mig2.uuid=MIG-m2", "0.mig2.gi=5", "0.mig2.sm=42")
    drivers.play(*lines, "0.mig2.mib=20096")
    for mask in ("MIG-m2", "MIG-GPU-a/5/0"):
        drivers.variables["CUDA_VISIBLE_DEVICES"] = mask
        (device,) = drivers.run(DETECT)["devices"]
        assert (device["uuid"], device["visible_id"], device["physical_id"]) == ("MIG-m2", mask, 0)
        assert (device["total_memory_bytes"], device["properties"]["sm_count"]) == (20096 << 20, 42)


def test_hang_of_nvml_in_a_child(drivers: Drivers) -> None:
    """B14: with isolated probes a driver that never answers is a reason after the limit."""
    drivers.install("nvml")
    drivers.play("nvmlInitWithFlags=hang")
    drivers.variables |= {"HARDPOINT_PROBE": "isolated", "HARDPOINT_PROBE_TIMEOUT": "2"}
    found = drivers.run(DETECT)
    assert found["codes"][:2] == ["timeout", "missing_library"]
    assert "timed out after 2 s running hardpoint_cuda._nvml:read_devices" in found["reasons"][0]


def test_crash_of_nvml_in_a_child(drivers: Drivers) -> None:
    """With isolated probes a crash inside NVML is a reason."""
    drivers.install("nvml")
    drivers.play("nvmlDeviceGetName=crash")
    drivers.variables["HARDPOINT_PROBE"] = "isolated"
    found = drivers.run(DETECT)
    assert found["codes"][0] == "crashed"
    assert "SIGSEGV" in found["reasons"][0]


def test_another_user_of_nvml(drivers: Drivers) -> None:
    """Who has initialised NVML in this process can go on using it after a detection."""
    drivers.install("nvml")
    code = "import pynvml; pynvml.nvmlInit()\n" + DETECT + "\nassert pynvml._nvmlLib_refcount == 1"
    assert drivers.run(code)["status"] == "usable"
    assert drivers.calls().count("nvmlInitWithFlags") == 2
    assert drivers.calls().count("nvmlShutdown") == 1


PLATFORM = """
import hardpoint
platform = hardpoint.resolve("cuda", machine=machine).platform
"""


def test_memory_in_use_and_peers(drivers: Drivers) -> None:
    """Memory in use and peers are asked of NVML when they are wanted; after it has gone they are None."""
    drivers.install("nvml")
    uuids = ("count=2", "0.uuid=GPU-a", "1.uuid=GPU-b", "1.used=5000", "p2p2=5")
    drivers.play(*uuids)
    ask = "[platform.get_current_memory_usage(1), platform.are_peers(0, 1), platform.are_nvlink_peers(0, 1)]"
    after = "open(os.environ['FAKE_SCRIPT'], 'a').write({line!r} + '\\n')"
    code = PLATFORM + f"found = [{ask}]\n"
    for line in ("nvmlDeviceGetMemoryInfo=15", "nvmlDeviceGetP2PStatus=999", "nvmlInitWithFlags=9"):
        code += after.format(line=line) + f"\nfound.append({ask})\n"
    code += "print(json.dumps(found))"
    assert drivers.run(code) == [[5000, True, False], [None, True, False], [None, None, None], [None, None, None]]
    assert is_balanced(drivers, drivers.calls().count("nvmlInitWithFlags") - 3)


def test_device_that_disappears(drivers: Drivers) -> None:
    """A device that is gone between detection and query has no memory in use; what was detected stays known."""
    drivers.install("nvml")
    drivers.play("0.uuid=GPU-a")
    code = PLATFORM + (
        "open(os.environ['FAKE_SCRIPT'], 'w').write('count=0\\n')\n"
        "print(json.dumps([platform.get_current_memory_usage(), platform.get_device_total_memory(), "
        "platform.get_device_name()]))"
    )
    assert drivers.run(code) == [None, 80 << 30, "NVIDIA Test"]


START = PLATFORM + "\nimport ctypes\n{before}\nprint(json.dumps(platform.recommended_start_method()))"


@pytest.mark.parametrize(
    ("before", "method", "words"),
    [
        ("", "fork", "nothing has initialised"),
        ("ctypes.CDLL('libcuda.so.1')", "fork", "nothing has initialised"),
        ("ctypes.CDLL('libcuda.so.1').cuInit(0)", "spawn", "something other than torch"),
    ],
)
def test_start_method(drivers: Drivers, before: str, method: str, words: str) -> None:
    """B16: what was initialised behind torch's back is seen; asking initialises nothing."""
    drivers.install("nvml")
    drivers.install("cuda")
    name, reason = drivers.run(START.format(before=before))
    assert name == method
    assert words in reason
    assert drivers.calls(parent=True).count("cuInit") == ("cuInit" in before)
    if not before:
        # Not even loaded: a library's own start-up may do anything.
        assert [call for call in drivers.calls() if call.startswith("cu")] == []


@pytest.mark.parametrize("broken", ["cuDeviceGetCount=999", "symbol"])
def test_start_method_of_a_driver_that_does_not_say(drivers: Drivers, broken: str) -> None:
    """A driver that is loaded and gives no answer is taken for initialised."""
    drivers.install("nvml")
    drivers.install("cuda", *(["-DWITHOUT_COUNT"] if broken == "symbol" else []))
    drivers.play("0.uuid=GPU-a", broken if "=" in broken else "")
    name, reason = drivers.run(START.format(before="ctypes.CDLL('libcuda.so.1')"))
    assert name == "spawn"
    assert "does not say" in reason


def test_child_of_a_fork(drivers: Drivers) -> None:
    """B16: a child of a fork before any initialisation has its parent's platform without asking again."""
    drivers.install("nvml")
    code = """
    import hardpoint
    platform = hardpoint.resolve(machine=machine).platform
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, f"{platform.name} {platform.device_count()} {platform.recommended_start_method()[0]}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    print(json.dumps(os.read(reader, 100).decode()))
    """
    assert drivers.run(code) == "cuda 1 fork"
    assert drivers.calls().count("nvmlInitWithFlags") == 1


def test_torch_of_another_build(drivers: Drivers) -> None:
    """B11: the build is read from the files of the distribution, and torch is not imported for it."""
    drivers.install("nvml")
    drivers.torch("None")
    code = DETECT + "\nassert 'torch' not in sys.modules"
    found = drivers.run(code)
    assert found["codes"] == ["other_build"]
    assert found["reasons"] == ["torch 9.9 is built for the CPU only, not for CUDA"]


def test_explicit_request_says_why(drivers: Drivers) -> None:
    """B12: CUDA asked for by name is probed once, and the error holds the reason."""
    drivers.install("nvml")
    drivers.variables |= {"HARDPOINT_PLATFORM": "cuda", "CUDA_VISIBLE_DEVICES": "GPU-zzz"}
    drivers.play("0.uuid=GPU-a")
    text: Any = drivers.run(
        """
        import hardpoint
        try:
            hardpoint.resolve(machine=machine)
        except ValueError as error:
            print(json.dumps(str(error)))
        """
    )
    assert "CUDA_VISIBLE_DEVICES='GPU-zzz' leaves no device: 'GPU-zzz' is no device of this machine" in text
    assert "there are GPU-a" in text
    assert drivers.calls().count("nvmlInitWithFlags") == 1
