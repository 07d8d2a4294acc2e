from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from hardpoint import EnvironmentFailure, InMemoryMachine, ReasonCode
from hardpoint.hookspecs import Detection, DetectionStatus
from hardpoint_cuda.plugin import plugin

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., InMemoryMachine]
    Card = Callable[..., dict[str, Any]]
    Probed = Callable[..., dict[str, Any]]

GIB = 1 << 30


def detect(machine: InMemoryMachine) -> Detection:
    """What the hook answers."""
    return plugin.hardpoint_detect(machine)


def codes(detection: Detection) -> list[ReasonCode]:
    """The codes of all reasons, in order."""
    return [reason.code for reason in detection.reasons]


def messages(detection: Detection) -> str:
    """All reasons' texts."""
    return "\n".join(reason.message for reason in detection.reasons)


@pytest.fixture
def two(card: Card) -> list[dict[str, Any]]:
    """Two equal devices with short ids."""
    return [card(0, uuid="GPU-aaa1-11"), card(1, uuid="GPU-bbb2-22")]


@pytest.mark.parametrize("system", ["Linux", "Windows", "Darwin", "FreeBSD", ""])
def test_no_hardware(system: str) -> None:
    """Without a trace of it there is no such hardware; nothing is probed and no file is read."""
    machine = InMemoryMachine(system=system)
    detection = detect(machine)
    assert detection.status is DetectionStatus.ABSENT
    assert detection.reasons[0].message == "no NVIDIA device: neither device nodes nor a driver"
    assert all(question.startswith(("exists ", "variable ")) for question in machine.questions)
    assert machine.questions.total() <= 9


def taken(driver: str, vendor: str = "0x10de", kind: str = "0x030200") -> dict[str, str]:
    """The files of a PCI function that a kernel driver has taken."""
    folder = "/sys/bus/pci/devices/0000:65:00.0"
    link = f"/sys/bus/pci/drivers/{driver}/0000:65:00.0/uevent"
    return {f"{folder}/vendor": f"{vendor}\n", f"{folder}/class": f"{kind}\n", link: ""}


@pytest.mark.parametrize(
    ("files", "variables", "status", "code", "words"),
    [
        (taken("nouveau"), {}, "unusable", "driver", "driver nouveau has 0000:65:00.0"),
        (taken("vfio-pci"), {}, "absent", "driver", "vfio-pci keeps 0000:65:00.0 for virtual machines"),
        ({}, {"NVIDIA_VISIBLE_DEVICES": "void"}, "absent", "masked", "NVIDIA_VISIBLE_DEVICES='void' hides them all"),
        ({}, {"NVIDIA_VISIBLE_DEVICES": ""}, "absent", "masked", "NVIDIA_VISIBLE_DEVICES='' hides them all"),
        ({}, {"NVIDIA_VISIBLE_DEVICES": "all"}, "absent", "no_device", "the container was given none"),
        (taken("vfio-pci", vendor="0x1002"), {}, "absent", "no_device", "neither device nodes nor a driver"),
        (taken("vfio-pci", kind="0x040300"), {}, "absent", "no_device", "neither device nodes nor a driver"),
        ({"/sys/bus/pci/drivers/nouveau/bind": ""}, {}, "absent", "no_device", "neither device nodes nor a driver"),
    ],
)
def test_why_there_are_no_device_nodes(
    files: dict[str, str], variables: dict[str, str], status: str, code: str, words: str
) -> None:
    """Another kernel driver that has the card, and a container that was given none, are named; with what helps."""
    detection = detect(InMemoryMachine(files=files, variables=variables))
    assert (str(detection.status), codes(detection)) == (status, [code])
    assert words in messages(detection)
    assert detection.reasons[0].remedy or "neither" in words


def test_container_that_hides_the_devices(make_machine: Make, two: list[dict[str, Any]]) -> None:
    """``none`` leaves the driver without a device, and is named; with devices the variable says nothing."""
    none = detect(make_machine([], variables={"NVIDIA_VISIBLE_DEVICES": "none"}))
    assert (none.status, codes(none)) == (DetectionStatus.ABSENT, [ReasonCode.MASKED])
    assert detect(make_machine(two, variables={"NVIDIA_VISIBLE_DEVICES": "void"})).reasons == ()


SWITCHES = {"/dev/nvidia-nvswitchctl": ""}
SERVICE = {"/run/nvidia-fabricmanager/nv-fabricmanager.pid": "17\n"}
NOT_READY = EnvironmentFailure("the CUDA driver cannot initialise: system not yet initialized 802 [x]", code="driver")


@pytest.mark.parametrize(
    ("state", "files", "driver", "is_usable", "is_asked"),
    [
        (2, {}, NOT_READY, False, True),
        (1, {}, {"devices": []}, True, True),
        (2, {}, EnvironmentFailure("libcuda.so.1: cannot open", code="missing_library"), True, True),
        (2, {}, None, True, True),
        (3, SWITCHES, NOT_READY, True, False),
        (0, SWITCHES, NOT_READY, False, True),
        (None, SWITCHES, NOT_READY, False, True),
        (None, SWITCHES | SERVICE, NOT_READY, True, False),
        (None, {}, NOT_READY, True, False),
    ],
)
def test_fabric_manager(
    make_machine: Make, card: Card, state: int | None, files: dict[str, str], driver: Any, *,
    is_usable: bool, is_asked: bool,
) -> None:  # fmt: skip
    """Devices behind NVSwitch that wait for the fabric manager are unusable in the driver's words, asked only there."""
    machine = make_machine([card(fabric_state=state)], files=files, driver=driver)
    detection = detect(machine)
    assert (detection.status is DetectionStatus.USABLE) is is_usable
    assert ("probe cuda.driver" in machine.questions) is is_asked
    assert is_usable or "802" in messages(detection)


ARCHS = ["sm_75", "sm_80", "sm_90a", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    ("cuda", "capability", "archs", "words"),
    [
        ("13.0", [7, 0], None, "it has compute capability 7.5 and later"),
        ("12.8", [7, 0], ARCHS, "it has sm_75, sm_80, sm_90a, sm_120, compute_120"),
        ("12.8", [7, 0], ["sm_70", *ARCHS], None),
        ("12.8", [7, 2], ["sm_70"], None),
        ("12.8", [6, 1], ["sm_70"], "it has sm_70"),
        ("12.8", [7, 0], [], None),
        ("12.8", [7, 0], "nonsense", None),
        ("12.8", [7, 0], ImportError("no torch"), None),
        ("12.6", [7, 0], None, None),
        ("12.4", [12, 0], ["sm_80", "sm_90a"], "it has sm_80, sm_90a"),
        ("12.4", [12, 0], ["sm_80", "compute_90"], None),
        ("12.4", [10, 3], ["sm_100f"], None),
    ],
)
def test_torch_without_kernels(
    make_machine: Make, card: Card, cuda: str, capability: list[int], archs: Any, words: str | None
) -> None:
    """A device that torch's build has no code for is unusable, with what torch has; asked only where it may be so."""
    text = f"cuda: Optional[str] = {cuda!r}\nhip: Optional[str] = None\n"
    more = {} if archs is None else {"cuda.torch_archs": archs}
    machine = make_machine([card(name="Old", capability=capability)], torch=text, more=more)
    detection = detect(machine)
    assert detection.status is (DetectionStatus.USABLE if words is None else DetectionStatus.UNUSABLE)
    assert ("probe cuda.torch_archs" in machine.questions) is (archs is not None)
    if words is not None:
        assert codes(detection) == [ReasonCode.KERNEL_ARCH]
        assert f"has no kernels for Old (compute capability {capability[0]}.{capability[1]}); {words}" in messages(
            detection
        )
        assert "+cu126" in str(detection.reasons[0].remedy) or capability[0] >= 10


def test_torch_without_kernels_for_one(make_machine: Make, card: Card, caplog: pytest.LogCaptureFixture) -> None:
    """Beside a device that torch can use, one that it cannot is a note and one warning."""
    text = "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
    machine = make_machine([card(0), card(1, capability=[7, 0])], torch=text, mask="0,1", nvml=None)
    with caplog.at_level(logging.WARNING):
        detection = detect(machine)
    assert detection.status is DetectionStatus.USABLE
    assert ReasonCode.KERNEL_ARCH in [note.code for note in detection.notes]
    assert "has no kernels for" in caplog.text


def test_devices(make_machine: Make, card: Card) -> None:
    """A device has NVML's name, memory and ids, the kernel's NUMA node, and a capability with named features."""
    numa = {"/sys/bus/pci/devices/0000:11:00.0/numa_node": "1\n", "/sys/bus/pci/devices/0000:10:00.0/numa_node": "-1\n"}
    one, two = detect(make_machine([card(0), card(1)], files=numa)).devices
    assert (two.index, two.physical_id, two.visible_id, two.numa_node) == (1, 1, None, 1)
    assert one.numa_node is None
    assert (two.name, two.total_memory_bytes, two.pci_bus_id) == ("NVIDIA H100 80GB HBM3", 80 * GIB, "0000:11:00.0")
    assert two.uuid == "GPU-00000001-aaaa-bbbb-cccc-0123456789ab"
    assert two.capability is not None
    assert (two.capability.arch, two.capability.version) == ("sm_90", (9, 0))
    assert {"bf16", "fp8", "tma"} <= two.capability.features
    assert dict(two.properties) == {
        "sm_count": 132, "integrated": False, "mig_parent": None, "driver": "570.86.15", "cuda": "12.8",
    }  # fmt: skip
    json.dumps(two.as_dict())


@pytest.mark.parametrize(
    ("mask", "physical", "visible"),
    [
        ("GPU-bbb2-22", [1], ["GPU-bbb2-22"]),
        ("GPU-bbb2-22,GPU-aaa1-11", [1, 0], ["GPU-bbb2-22", "GPU-aaa1-11"]),
        ("GPU-b", [1], ["GPU-b"]),
        ("1,0", [1, 0], ["1", "0"]),
        (None, [0, 1], [None, None]),
    ],
)
def test_ids_in_the_mask(
    make_machine: Make, two: list[dict[str, Any]], mask: str | None, physical: list[int], visible: list[str | None]
) -> None:
    """B01: logical devices are the mask's, in its order, and know how it names them."""
    two[1]["capability"] = [8, 0] if mask == "GPU-bbb2-22" else [9, 0]
    devices = detect(make_machine(two, mask=mask)).devices
    assert [device.physical_id for device in devices] == physical
    assert [device.visible_id for device in devices] == visible
    if mask == "GPU-bbb2-22":
        assert devices[0].capability is not None
        assert devices[0].capability.version == (8, 0)


INSTANCES = [
    {"uuid": "MIG-m1", "gpu_instance": 1, "compute_instance": 0, "memory_bytes": 10 * GIB, "sm_count": 16},
    {"uuid": "MIG-m2", "gpu_instance": 2, "compute_instance": 0, "memory_bytes": 20 * GIB, "sm_count": 32},
]


@pytest.fixture
def divided(two: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The second of two devices is divided into two instances."""
    two[1] |= {"mig_enabled": True, "instances": INSTANCES}
    return two


@pytest.mark.parametrize("mask", ["MIG-m1", "MIG-GPU-bbb2-22/1/0"])
def test_instance(make_machine: Make, divided: list[dict[str, Any]], mask: str) -> None:
    """B01: a MIG id names an instance of its parent: the parent's number and capability, its own id and memory."""
    (device,) = detect(make_machine(divided, mask=mask)).devices
    assert (device.physical_id, device.visible_id, device.uuid) == (1, mask, "MIG-m1")
    assert (device.total_memory_bytes, device.properties["sm_count"]) == (10 * GIB, 16)
    assert device.properties["mig_parent"] == "GPU-bbb2-22"
    assert device.capability is not None
    assert device.capability.version == (9, 0)
    assert device.name == "NVIDIA H100 80GB HBM3 (MIG instance)"


def test_several_instances(make_machine: Make, divided: list[dict[str, Any]], caplog: pytest.LogCaptureFixture) -> None:
    """B01: a process sees one instance, however many commas the mask has, and one warning says so."""
    with caplog.at_level(logging.WARNING):
        detection = detect(make_machine(divided, mask="MIG-m2,MIG-m1"))
    assert [device.uuid for device in detection.devices] == ["MIG-m2"]
    assert "a process sees one MIG instance" in caplog.text
    assert "a process sees one MIG instance" in detection.notes[-1].message


@pytest.mark.parametrize("mask", [None, "1", "0,1", "GPU-bbb2-22"])
def test_divided_device(make_machine: Make, divided: list[dict[str, Any]], mask: str | None) -> None:
    """Where a divided device is visible, CUDA offers its first instance and nothing beside it."""
    detection = detect(make_machine(divided, mask=mask))
    assert [device.uuid for device in detection.devices] == ["MIG-m1"]
    assert "a process sees one instance" in detection.notes[0].message


def test_undivided_one_by_mask(make_machine: Make, divided: list[dict[str, Any]]) -> None:
    """The device beside a divided one can be had by the mask."""
    detection = detect(make_machine(divided, mask="0"))
    assert [device.uuid for device in detection.devices] == ["GPU-aaa1-11"]
    assert detection.notes == ()


def test_divided_device_without_instances(make_machine: Make, card: Card) -> None:
    """A device on which MIG is on and nobody has made an instance is no device, and the reason says what is missing."""
    detection = detect(make_machine([card(mig_enabled=True)]))
    assert (detection.status, codes(detection)) == (DetectionStatus.UNUSABLE, [ReasonCode.NO_DEVICE])
    assert "MIG is on" in messages(detection)
    both = detect(make_machine([card(0, mig_enabled=True), card(1)]))
    assert [device.physical_id for device in both.devices] == [1]


@pytest.mark.parametrize(
    ("mask", "why"),
    [
        ("", "empty"),
        ("-1", "bad entry '-1'"),
        ("void", "bad entry 'void'"),
        ("0,0", "repeated entry '0'"),
        ("99,0", "'99' is out of range: there are 2 devices, numbered from 0"),
        ("GPU-ccc", "'GPU-ccc' is no device of this machine; there are GPU-aaa1-11, GPU-bbb2-22"),
        ("MIG-x", "'MIG-x' is no MIG instance of this machine; there are none"),
    ],
)
def test_masked(make_machine: Make, two: list[dict[str, Any]], mask: str, why: str) -> None:
    """B03, B01: a mask that leaves nothing is the one reason, with variable, value and what is wrong with it."""
    machine = make_machine(two, mask=mask)
    detection = detect(machine)
    assert (detection.status, codes(detection)) == (DetectionStatus.UNUSABLE, [ReasonCode.MASKED])
    assert messages(detection) == f"CUDA_VISIBLE_DEVICES={mask!r} leaves no device: {why}"
    assert detection.reasons[0].requested == mask


@pytest.mark.parametrize("mask", ["", "-1", "NoDevFiles", "0,0"])
def test_mask_that_needs_no_driver(make_machine: Make, mask: str) -> None:
    """What a mask leaves whatever there is, nobody has to be asked."""
    machine = make_machine([], mask=mask)
    detect(machine)
    assert not [question for question in machine.questions if question.startswith("probe")]


@pytest.mark.parametrize(("mask", "physical"), [("0,99,1", [0]), ("GPU-aaa1-11,GPU-zzz", [0]), ("0,,1", [0])])
def test_mask_that_is_cut_short(
    make_machine: Make, two: list[dict[str, Any]], mask: str, physical: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """What stood before a bad entry counts, as it does for the driver, and one warning tells of the rest."""
    with caplog.at_level(logging.WARNING):
        detection = detect(make_machine(two, mask=mask))
    assert [device.physical_id for device in detection.devices] == physical
    assert f"CUDA_VISIBLE_DEVICES={mask!r} is cut short: " in detection.notes[0].message
    assert detection.notes[0].message in caplog.text


@pytest.mark.parametrize("known", [120 * GIB, None])
def test_shared_memory(make_machine: Make, card: Card, known: int | None) -> None:
    """B09: a device without memory of its own has the machine's, or an unknown amount; all else is there."""
    gb10 = card(name="NVIDIA GB10", capability=[12, 1], memory_bytes=None, unified_memory=True, cores=6144)
    detection = detect(make_machine([gb10], total_memory_bytes=known))
    (device,) = detection.devices
    assert (device.total_memory_bytes, device.properties["integrated"]) == (known, True)
    assert device.capability is not None
    assert device.capability.version == (12, 1)


def test_memory_unknown(make_machine: Make, card: Card) -> None:
    """Where NVML fails to tell a device's own memory, the machine's is no answer."""
    odd = card(memory_bytes=None, unified_memory=None)
    (device,) = detect(make_machine([odd], total_memory_bytes=64 * GIB)).devices
    assert device.total_memory_bytes is None


NO_NVML = EnvironmentFailure("NVML cannot be loaded: libnvidia-ml.so.1: cannot open", code="missing_library")


def test_without_nvml(make_machine: Make, card: Card, probed: Probed, caplog: pytest.LogCaptureFixture) -> None:
    """B08: where NVML is missing the driver tells everything, and the report says so; that is worth no warning."""
    orin = card(name="Orin", capability=[8, 7], memory_bytes=30 * GIB, unified_memory=True, sm_count=16)
    machine = make_machine(nvml=NO_NVML, driver=probed([orin], driver_version=None), traces=["/dev/nvgpu"])
    with caplog.at_level(logging.WARNING):
        detection = detect(machine)
    (device,) = detection.devices
    assert (device.name, device.total_memory_bytes, device.properties["sm_count"]) == ("Orin", 30 * GIB, 16)
    assert [(note.code, note.message) for note in detection.notes] == [
        (ReasonCode.MISSING_LIBRARY, "no NVML: NVML cannot be loaded: libnvidia-ml.so.1: cannot open")
    ]
    assert caplog.records == []


def test_nvml_without_the_jetsons_device(make_machine: Make, card: Card, probed: Probed) -> None:
    """A Jetson's NVML may count nothing; then the driver is asked."""
    traces = ["/dev/nvhost-gpu", "/etc/nv_tegra_release"]
    machine = make_machine([], driver=probed([card(name="Orin")]), traces=traces)
    assert [device.name for device in detect(machine).devices] == ["Orin"]


def test_version_mismatch(make_machine: Make, card: Card, probed: Probed, caplog: pytest.LogCaptureFixture) -> None:
    """B08: a mismatch is said at WARNING in NVML's own words even where the driver works."""
    text = "NVML cannot initialise: Driver/library version mismatch (error 18) [/usr/lib/libnvidia-ml.so.1]"
    machine = make_machine(nvml=EnvironmentFailure(text, code="driver", remedy="reboot"), driver=probed([card()]))
    with caplog.at_level(logging.WARNING):
        detection = detect(machine)
    assert detection.status is DetectionStatus.USABLE
    assert text in caplog.text
    assert detection.notes[0].message == f"no NVML: {text}"


@pytest.mark.parametrize(
    ("driver", "code", "words"),
    [
        (EnvironmentFailure("the CUDA driver sees no device (error 100)", code="no_device"), "no_device", "error 100"),
        (EnvironmentFailure("stub library: /x/libcuda.so.1", code="stub_library"), "stub_library", "/x/libcuda.so.1"),
        (EnvironmentFailure("crashed with SIGSEGV running it", code="crashed"), "crashed", "SIGSEGV"),
        ({"devices": []}, "no_device", "the CUDA driver counts no device"),
        ("garbage", "driver", "answers without a list of devices"),
    ],
)
def test_both_reasons(make_machine: Make, driver: Any, code: str, words: str) -> None:
    """B08: where neither answers, it is not CUDA, and the report holds both reasons."""
    nvml = EnvironmentFailure("NVML cannot initialise: Driver Not Loaded (error 9)", code="driver")
    detection = detect(make_machine(nvml=nvml, driver=driver))
    assert detection.status is DetectionStatus.UNUSABLE
    assert codes(detection) == ["driver", code]
    assert "Driver Not Loaded" in messages(detection)
    assert words in messages(detection)


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("No module named 'pynvml'"), PermissionError(13, "denied", "/x")]
)
def test_failures_of_other_types(make_machine: Make, error: Exception) -> None:
    """A missing package and a system's own error are reasons too."""
    detection = detect(make_machine(nvml=error, driver=error))
    expected = "missing_dependency" if isinstance(error, ImportError) else "permission"
    assert codes(detection) == [expected, expected]


@pytest.mark.parametrize("driver", [NO_NVML, EnvironmentFailure("stub library", code="stub_library")])
def test_wsl_without_nvidia(make_machine: Make, driver: Exception) -> None:
    """WSL's graphics node says nothing of the vendor: without any library of NVIDIA's there is no such hardware."""
    detection = detect(make_machine(nvml=NO_NVML, driver=driver, traces=["/dev/dxg"]))
    expected = DetectionStatus.ABSENT if driver is NO_NVML else DetectionStatus.UNUSABLE
    assert detection.status is expected
    assert len(detection.reasons) >= 2


def test_instance_without_nvml(make_machine: Make, card: Card, probed: Probed) -> None:
    """Without NVML the driver itself applies a mask of MIG ids."""
    machine = make_machine(nvml=NO_NVML, driver_masked=probed([card(name="A100 MIG")]), mask="MIG-m1")
    (device,) = detect(machine).devices
    assert (device.name, device.visible_id) == ("A100 MIG", "MIG-m1")


def test_mask_without_nvml(make_machine: Make, card: Card, probed: Probed) -> None:
    """Without NVML the driver's list is in its own order already, and the mask counts in it."""
    cards = [card(1, name="fast"), card(0, name="slow")]
    machine = make_machine(nvml=NO_NVML, driver=probed(cards), mask="0")
    assert [device.name for device in detect(machine).devices] == ["fast"]
    assert machine.questions["probe cuda.driver"] == 1


def test_no_devices(make_machine: Make) -> None:
    """A driver without a device is the absence of such hardware."""
    detection = detect(make_machine([]))
    assert (detection.status, messages(detection)) == (DetectionStatus.ABSENT, "NVML counts no device")


def test_devices_that_cannot_be_opened(make_machine: Make, card: Card, probed: Probed) -> None:
    """What this process may not open is told: as notes beside others, as the reasons where there is no other."""
    problem = {"index": 0, "code": "permission", "message": "NVML cannot open device 0: Insufficient Permissions"}
    some = detect(make_machine(nvml=probed([card(1)], problems=[problem])))
    assert [device.physical_id for device in some.devices] == [1]
    assert [note.code for note in some.notes] == [ReasonCode.PERMISSION]
    none = detect(make_machine(nvml=probed([], problems=[problem, {"code": "nonsense"}])))
    assert (none.status, codes(none)) == (DetectionStatus.UNUSABLE, [ReasonCode.PERMISSION, ReasonCode.DRIVER])


CPU_BUILD = "cuda: Optional[str] = None\nhip: Optional[str] = None\n"
HIP_BUILD = "cuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n"


@pytest.mark.parametrize(("text", "words"), [(CPU_BUILD, "the CPU only"), (HIP_BUILD, "ROCm 6.4")])
def test_other_build_of_torch(make_machine: Make, two: list[dict[str, Any]], text: str, words: str) -> None:
    """B11: hardware is seen and named, and cannot be used with this torch."""
    detection = detect(make_machine(two, torch=text))
    assert (detection.status, codes(detection)) == (DetectionStatus.UNUSABLE, [ReasonCode.OTHER_BUILD])
    assert words in messages(detection)
    assert len(detection.devices) == 2
    assert "CUDA 12.8" in str(detection.reasons[0].remedy)


def test_all_reasons_at_once(make_machine: Make, two: list[dict[str, Any]]) -> None:
    """A mask out of range and another build are both told."""
    detection = detect(make_machine(two, torch=CPU_BUILD, mask="7"))
    assert codes(detection) == [ReasonCode.MASKED, ReasonCode.OTHER_BUILD]


def test_without_torch(make_machine: Make, two: list[dict[str, Any]]) -> None:
    """Devices are detected without torch, and a note says that nothing can run."""
    detection = detect(make_machine(two, torch=None))
    assert detection.status is DetectionStatus.USABLE
    assert [note.code for note in detection.notes] == [ReasonCode.NOT_INSTALLED]


def test_rocms_variables_are_ignored(make_machine: Make, two: list[dict[str, Any]]) -> None:
    """B06: what masks AMD devices means nothing here."""
    variables = {"HIP_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "0,1"}
    assert len(detect(make_machine(two, variables=variables)).devices) == 2


def test_two_looks_are_equal(make_machine: Make, divided: list[dict[str, Any]]) -> None:
    """Detection is a function of what the machine tells."""
    machine = make_machine(divided)
    assert detect(machine) == detect(machine)
