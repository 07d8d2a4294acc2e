from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hardpoint import EnvironmentFailure, InMemoryMachine, ReasonCode
from hardpoint.hookspecs import Detection, DetectionStatus
from hardpoint_rocm.plugin import plugin

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., InMemoryMachine]
    Card = Callable[..., dict[str, int]]

MIB = 1 << 20
CPU_BUILD = "cuda: Optional[str] = None\nhip: Optional[str] = None\n"
CUDA_BUILD = "cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"
AT = "/sys/bus/pci/devices"
IDS = "/usr/share/libdrm/amdgpu.ids"


def detect(machine: InMemoryMachine) -> Detection:
    """What the hook answers."""
    return plugin.hardpoint_detect(machine)


def codes(detection: Detection) -> list[ReasonCode]:
    """The codes of all reasons, in order."""
    return [reason.code for reason in detection.reasons]


def messages(detection: Detection) -> str:
    """All reasons' texts."""
    return "\n".join(reason.message for reason in detection.reasons)


def physical(detection: Detection) -> list[Any]:
    """The runtime's numbers of the devices."""
    return [device.physical_id for device in detection.devices]


@pytest.fixture
def four(card: Card) -> list[dict[str, int]]:
    """Four equal devices."""
    return [card(number) for number in range(4)]


def smi(number: int, **changes: Any) -> dict[str, Any]:
    """What amdsmi tells of the device of that number."""
    return {
        "index": number, "pci_bus_id": f"0000:{0x10 + number:02x}:00.0", "name": "AMD Instinct MI300X",
        "amdsmi_uuid": f"72ff74a1-0000-1000-80d8-00000000000{number}", "uuid": f"GPU-{0xA0 + number:016x}",
        "arch": "gfx942",
        "compute_units": 304, "memory_megabytes": 196592, "node": number + 1, "partition": 0,
        "compute_partition": "SPX", "memory_partition": "NPS1", **changes,
    }  # fmt: skip


def answer(*devices: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What amdsmi's probe answers."""
    told = {"library": "/x/libamd_smi.so", "driver_version": "6.14.14", "devices": list(devices), "problems": []}
    return {**told, **changes}


@pytest.mark.parametrize("system", ["Linux", "Windows", "Darwin", "FreeBSD", ""])
def test_no_hardware(system: str) -> None:
    """Without a trace of it there is no such hardware; three names are looked up and nothing is probed or read."""
    machine = InMemoryMachine(system=system)
    detection = detect(machine)
    assert detection.status is DetectionStatus.ABSENT
    assert detection.reasons[0].message == "no AMD device: the kernel has no driver for one loaded"
    expected = ["exists /dev/kfd", "exists /opt/rocm", "exists /sys/class/kfd"] if system == "Linux" else []
    assert sorted(machine.questions) == expected


def test_devices(make_machine: Make, card: Card) -> None:
    """A device has the kernel's address, memory, NUMA node and modes, and a capability with named features."""
    files = {
        f"{AT}/0000:11:00.0/numa_node": "1\n",
        f"{AT}/0000:10:00.0/numa_node": "-1\n",
        f"{AT}/0000:11:00.0/product_name": "AMD Instinct MI300X OAM\n",
        f"{AT}/0000:11:00.0/current_compute_partition": "CPX\n",
        f"{AT}/0000:11:00.0/current_memory_partition": "NPS4\n",
        "/sys/module/amdgpu/version": "6.14.14\n",
    }
    one, two = detect(make_machine([card(0), card(1, hive_id=5)], files=files)).devices
    assert (two.index, two.physical_id, two.visible_id, two.numa_node) == (1, 1, None, 1)
    assert (one.numa_node, one.name, two.name) == (None, "AMD gfx942 (0x74a1)", "AMD Instinct MI300X OAM")
    assert (two.total_memory_bytes, two.pci_bus_id, two.uuid) == (196592 * MIB, "0000:11:00.0", "GPU-00000000000000a1")
    assert two.capability is not None
    assert (two.capability.runtime, two.capability.arch, two.capability.version) == ("rocm", "gfx942", None)
    assert dict(two.properties) == {
        "driver": "6.14.14", "hardware_arch": "gfx942", "target_features": None, "family": "CDNA3",
        "compute_units": 304, "integrated": False, "partition": 0, "compute_partition": "CPX",
        "memory_partition": "NPS4", "kfd_node": 2, "xgmi_hive": 0, "amdsmi_index": None,
        "amdsmi_uuid": None,
    }  # fmt: skip
    json.dumps(two.as_dict())


@pytest.mark.parametrize(
    ("masks", "expected"),
    [
        ({}, [0, 1, 2, 3]),
        ({"cuda": "1"}, [1]),
        ({"hip": "1"}, [1]),
        ({"rocr": "2,3"}, [2, 3]),
        ({"rocr": "2,3", "hip": "1"}, [3]),
        ({"hip": "1", "cuda": "1"}, [1]),
        ({"hip": "GPU-00000000000000a2,GPU-00000000000000a0"}, [2, 0]),
    ],
)
def test_masks(
    make_machine: Make, four: Any, masks: Any, expected: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """B06: logical devices are what all three variables leave, in their order; nothing of this is worth a warning."""
    with caplog.at_level(logging.WARNING):
        detection = detect(make_machine(four, **masks))
    assert (physical(detection), caplog.records, detection.notes) == (expected, [], ())
    assert [device.uuid for device in detection.devices] == [f"GPU-{0xA0 + number:016x}" for number in expected]


def test_masks_that_contradict(make_machine: Make, four: Any, caplog: pytest.LogCaptureFixture) -> None:
    """B06: HIP asking for more than remains is the one reason and names both; two that differ are one warning."""
    refused = detect(make_machine(four, rocr="1", hip="0,1"))
    assert (refused.status, codes(refused)) == (DetectionStatus.UNUSABLE, [ReasonCode.MASKED])
    assert "HIP_VISIBLE_DEVICES='0,1'" in messages(refused)
    assert "ROCR_VISIBLE_DEVICES='1'" in messages(refused)
    assert refused.reasons[0].requested == ("ROCR_VISIBLE_DEVICES=1", "HIP_VISIBLE_DEVICES=0,1")
    with caplog.at_level(logging.WARNING):
        taken = detect(make_machine(four, hip="0", cuda="1"))
    assert physical(taken) == [0]
    assert "HIP_VISIBLE_DEVICES='0' and CUDA_VISIBLE_DEVICES='1' disagree" in caplog.text
    assert [note.code for note in taken.notes] == [ReasonCode.MASKED]


@pytest.mark.parametrize("masks", [{"hip": ""}, {"cuda": "-1"}, {"rocr": ""}, {"hip": "0,0"}])
def test_mask_that_needs_no_look(make_machine: Make, masks: Any) -> None:
    """What masks leave whatever there is, nobody has to be asked."""
    machine = make_machine([], amdsmi=answer(), **masks)
    detection = detect(machine)
    assert codes(detection) == [ReasonCode.MASKED]
    assert not [question for question in machine.questions if question.startswith(("probe", "read", "list"))]


def test_amdsmi_fills_in(make_machine: Make, four: Any) -> None:
    """What amdsmi knows is joined to the kernel's devices by address: its order, the other way round, means nothing."""
    theirs = [smi(3 - number, index=number, name=f"card {3 - number}") for number in range(4)]
    devices = detect(make_machine(four, amdsmi=answer(*theirs), hip="1,2")).devices
    assert [(device.physical_id, device.name) for device in devices] == [(1, "card 1"), (2, "card 2")]
    assert [device.properties["amdsmi_index"] for device in devices] == [2, 1]
    assert devices[0].properties["driver"] == "6.14.14"
    assert devices[0].properties["amdsmi_uuid"] == "72ff74a1-0000-1000-80d8-000000000001"


def test_parts_are_joined_by_node(make_machine: Make, card: Card) -> None:
    """The parts of one card have one address; their node tells them apart."""
    parts = [card(part, location_id=0x1000 | part << 28) for part in range(3)]
    theirs = [smi(0, index=part, node=part + 1, partition=part, name=f"part {part}") for part in (2, 0, 1)]
    devices = detect(make_machine(parts, amdsmi=answer(*theirs))).devices
    assert [device.name for device in devices] == ["part 0", "part 1", "part 2"]


def test_amdsmi_of_older_releases(make_machine: Make, four: Any) -> None:
    """An amdsmi that does not tell nodes is joined by address, and one that tells neither by id."""
    without = [smi(number, node=None, name=f"card {number}") for number in (1, 0)]
    devices = detect(make_machine(four[:2], amdsmi=answer(*without))).devices
    assert [device.name for device in devices] == ["card 0", "card 1"]
    by_id = [smi(number, node=None, pci_bus_id=None, name=f"card {number}") for number in (1, 0)]
    assert [device.name for device in detect(make_machine(four[:2], amdsmi=answer(*by_id))).devices] == [
        "card 0",
        "card 1",
    ]


def test_amdsmi_alone(make_machine: Make) -> None:
    """Where the topology shows nothing, amdsmi's devices are taken, in the order of their nodes."""
    theirs = answer(smi(2, index=0), smi(0, index=1), smi(1, index=2))
    devices = detect(make_machine(amdsmi=theirs)).devices
    assert [(device.physical_id, device.pci_bus_id) for device in devices] == [
        (0, "0000:10:00.0"), (1, "0000:11:00.0"), (2, "0000:12:00.0"),
    ]  # fmt: skip
    assert devices[0].total_memory_bytes == 196592 * MIB
    assert devices[0].uuid == "GPU-00000000000000a0"
    unordered = answer(smi(2, index=0, node=None), smi(0, index=1))
    assert detect(make_machine(amdsmi=unordered)).devices[0].uuid == "GPU-00000000000000a2"


@pytest.mark.parametrize(
    ("error", "code", "warns"),
    [
        (EnvironmentFailure("amdsmi cannot be imported: no library", code="missing_library"), "missing_library", False),
        (EnvironmentFailure("amdsmi cannot initialise: …34", code="driver", remedy="modprobe"), "driver", True),
        (ModuleNotFoundError("No module named 'amdsmi'"), "missing_dependency", True),
        (ImportError("cannot import name 'x' from 'amdsmi'"), "broken_import", True),
        (PermissionError(13, "Permission denied", "/dev/dri/renderD128"), "permission", True),
        (OSError(5, "Input/output error"), "other", True),
        ("garbage", "driver", True),
    ],
)
def test_without_amdsmi(
    make_machine: Make, four: Any, error: Any, code: str, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """B08: whatever amdsmi fails with, the kernel's files tell everything, and a note says why it does not, in full."""
    with caplog.at_level(logging.WARNING):
        detection = detect(make_machine(four, amdsmi=error))
    assert physical(detection) == [0, 1, 2, 3]
    (note,) = detection.notes
    assert note.code == code
    words = "answers without a list of devices: 'garbage'" if error == "garbage" else str(error)
    assert note.message.startswith("no amdsmi: ")
    assert words in note.message
    assert (words in caplog.text) is warns


def test_devices_that_amdsmi_may_not_open(make_machine: Make, four: Any) -> None:
    """What amdsmi may not open is a note beside devices, and the reason where there are none."""
    problem = {"index": 1, "code": "permission", "message": "amdsmi cannot open device 1"}
    theirs = answer(smi(0), problems=[problem, {"code": "nonsense"}])
    assert [note.code for note in detect(make_machine(four, amdsmi=theirs)).notes] == [
        ReasonCode.PERMISSION, ReasonCode.DRIVER,
    ]  # fmt: skip
    alone = detect(make_machine(amdsmi=answer(problems=[problem])))
    assert (alone.status, codes(alone)) == (DetectionStatus.UNUSABLE, [ReasonCode.PERMISSION])


def test_simulated_without_a_record(make_machine: Make, four: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A machine that has no record of amdsmi, though this computer has it installed, is worth no warning."""
    with caplog.at_level(logging.WARNING):
        detection = detect(make_machine(four, distributions={"torch": "2.9", "amdsmi": "7.0.2"}))
    assert (detection.status, caplog.records) == (DetectionStatus.USABLE, [])


def test_node_of_the_driver(make_machine: Make, four: Any) -> None:
    """Without /dev/kfd, or without the right to open it, devices are seen and named and cannot be used."""
    gone = detect(make_machine(four, files={"/dev/kfd": None}))
    assert (gone.status, codes(gone), len(gone.devices)) == (DetectionStatus.UNUSABLE, [ReasonCode.NO_DEVICE], 4)
    assert "there is no /dev/kfd here" in messages(gone)
    closed = detect(make_machine(four, read_only=["/dev/kfd"]))
    assert (codes(closed), messages(closed)) == ([ReasonCode.PERMISSION], "/dev/kfd may not be opened")
    assert "render, video" in str(closed.reasons[0].remedy)


def test_container_without_devices(make_machine: Make, four: Any) -> None:
    """In a container that was given nothing, all of it is told."""
    nodes = {"/dev/kfd": None, **{f"/dev/dri/renderD{128 + number}": None for number in range(4)}}
    detection = detect(make_machine(four, files=nodes))
    assert codes(detection) == [ReasonCode.NO_DEVICE] * 5
    assert "/dev/kfd" in detection.reasons[0].message


def test_driver_not_loaded() -> None:
    """B08: a card on the bus and ROCm installed, and no driver: unusable, with its address and what to type."""
    pci = {f"{AT}/0000:03:00.0/vendor": "0x1002\n", f"{AT}/0000:03:00.0/class": "0x030000\n"}
    detection = detect(InMemoryMachine(files=pci, directories=["/opt/rocm"]))
    assert (detection.status, codes(detection)) == (DetectionStatus.UNUSABLE, [ReasonCode.DRIVER])
    assert "amdgpu is not loaded, and there is an AMD device at 0000:03:00.0" in messages(detection)
    assert "modprobe amdgpu" in str(detection.reasons[0].remedy)


def test_installed_is_not_present(make_machine: Make) -> None:
    """B12: neither ROCm's folder nor amdsmi nor a loaded driver is a device."""
    audio = {f"{AT}/0000:03:00.1/vendor": "0x1002\n", f"{AT}/0000:03:00.1/class": "0x040300\n"}
    for machine in (
        InMemoryMachine(directories=["/opt/rocm"], files=audio),
        InMemoryMachine(directories=["/sys/class/kfd", "/sys/module/amdgpu"]),
        make_machine(amdsmi=answer()),
        make_machine(amdsmi=EnvironmentFailure("amdsmi cannot initialise", code="driver")),
    ):
        detection = detect(machine)
        assert (detection.status, codes(detection)[0]) == (DetectionStatus.ABSENT, ReasonCode.NO_DEVICE)


def test_card_that_the_driver_does_not_compute_on(make_machine: Make) -> None:
    """An old card that the driver shows no node of is the absence of such hardware, and its address is told."""
    pci = {f"{AT}/0000:03:00.0/vendor": "0x1002\n", f"{AT}/0000:03:00.0/class": "0x038000\n"}
    detection = detect(make_machine(files=pci))
    assert detection.status is DetectionStatus.ABSENT
    assert "its topology has no node for it" in messages(detection)
    assert "0000:03:00.0" in messages(detection)


@pytest.mark.parametrize(("text", "words"), [(CPU_BUILD, "the CPU only"), (CUDA_BUILD, "CUDA 12.8")])
def test_other_build_of_torch(make_machine: Make, four: Any, text: str, words: str) -> None:
    """B11: hardware is seen and named, and cannot be used with this torch; the remedy names the wheel."""
    detection = detect(make_machine(four, torch=text))
    assert (detection.status, codes(detection), len(detection.devices)) == ("unusable", [ReasonCode.OTHER_BUILD], 4)
    assert f"is built for {words}, not for ROCm" in messages(detection)
    assert "+rocm" in str(detection.reasons[0].remedy)
    everything = detect(make_machine(four, torch=text, hip="7", read_only=["/dev/kfd"]))
    assert codes(everything) == [ReasonCode.PERMISSION, ReasonCode.MASKED, ReasonCode.OTHER_BUILD]


def test_release_that_visible_devices_need(make_machine: Make, card: Card) -> None:
    """What a device that is masked out would need of torch does not matter."""
    cards = [card(0), card(1, gfx_target_version=90500)]
    old = "cuda: Optional[str] = None\nhip: Optional[str] = '6.2'\n"
    assert "gfx950 is supported from 7.0" in detect(make_machine(cards, torch=old)).notes[0].message
    assert detect(make_machine(cards, torch=old, hip="0")).notes == ()


def test_without_torch(make_machine: Make, four: Any) -> None:
    """Devices are detected without torch, and a note says that nothing can run."""
    detection = detect(make_machine(four, torch=None))
    assert detection.status is DetectionStatus.USABLE
    assert [note.code for note in detection.notes] == [ReasonCode.NOT_INSTALLED]


def test_override(make_machine: Make, four: Any) -> None:
    """A variable makes the runtime take a device for another architecture, all or the one of a node; both are told."""
    variables = {"HSA_OVERRIDE_GFX_VERSION": "9.0.10", "HSA_OVERRIDE_GFX_VERSION_2": "9.5.0"}
    devices = detect(make_machine(four[:2], variables=variables)).devices
    assert [device.capability and device.capability.arch for device in devices] == ["gfx90a", "gfx950"]
    assert [device.properties["hardware_arch"] for device in devices] == ["gfx942", "gfx942"]


@pytest.mark.parametrize("value", ["gfx1030", "10.3", "10.3.0 ", "10.3.0.1", "64.0.0", "10.256.0", "-1.0.0", ""])
@pytest.mark.parametrize("name", ["HSA_OVERRIDE_GFX_VERSION", "HSA_OVERRIDE_GFX_VERSION_2"])
def test_override_that_is_none(make_machine: Make, four: Any, name: str, value: str) -> None:
    """What the runtime does not take ends it without a word; so it is the reason, with the variable, for all."""
    for mask in (None, "0"):
        detection = detect(make_machine(four[:2], variables={name: value}, hip=mask))
        (reason,) = detection.reasons
        assert (detection.status, reason.code) == (DetectionStatus.UNUSABLE, ReasonCode.OTHER)
        assert reason.message.startswith(f"{name}={value!r} is no version")
        assert reason.remedy == f"correct {name}, or unset it"


def test_override_of_what_is_no_node(make_machine: Make, four: Any) -> None:
    """The runtime reads a variable only for a node that is there, and any number that it can hold."""
    variables = {"HSA_OVERRIDE_GFX_VERSION_77": "nonsense", "HSA_OVERRIDE_GFX_VERSION": "10.3.99"}
    devices = detect(make_machine(four[:1], variables=variables)).devices
    assert [device.capability and device.capability.arch for device in devices] == ["gfx942"]


def test_names(make_machine: Make, card: Card) -> None:
    """A name is the card's own, else that of libdrm's list for device and revision, else what is known of it."""
    files = {
        IDS: "1.0.0\n744C,\tC8,\tAMD Radeon RX 7900 XTX\n744C,\tCC,\tAMD Radeon RX 7900 XT\nbad line\nx,y,z\n",
        f"{AT}/0000:10:00.0/revision": "0xc8\n",
        f"{AT}/0000:11:00.0/revision": "0xcc\n",
        f"{AT}/0000:11:00.0/product_name": "\n",
        f"{AT}/0000:12:00.0/revision": "nonsense\n",
    }
    cards = [card(number, device_id=0x744C, gfx_target_version=110000) for number in range(3)]
    cards.append(card(3, device_id=None, gfx_target_version=None))
    machine = make_machine(cards, files=files)
    assert [device.name for device in detect(machine).devices] == [
        "AMD Radeon RX 7900 XTX", "AMD Radeon RX 7900 XT", "AMD gfx1100 (0x744c)", "AMD device",
    ]  # fmt: skip
    assert machine.questions[f"read {IDS}"] == 1
    numbered = detect(make_machine([card()], amdsmi=answer(smi(0, name="0x74a1")))).devices[0]
    assert numbered.name == "AMD gfx942 (0x74a1)"


@pytest.mark.parametrize(("known", "expected"), [(64 << 30, 64 << 30), (None, None)])
def test_memory_of_the_machine(make_machine: Make, card: Card, known: int | None, expected: int | None) -> None:
    """B09: a device in the CPU's own node without memory of its own has the machine's, or an unknown amount."""
    folder = "/sys/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties"
    apu = card(cpu_cores_count=8)
    detection = detect(make_machine([apu], files={folder: None}, total_memory_bytes=known))
    (device,) = detection.devices
    assert (device.total_memory_bytes, device.properties["integrated"]) == (expected, True)


def test_questions_per_device(make_machine: Make, four: Any) -> None:
    """What the README states: 15 questions and 12 for each device."""
    totals = [make_machine(four[:count]) for count in (1, 2, 4)]
    for machine in totals:
        detect(machine)
    counts = [machine.questions.total() for machine in totals]
    assert counts[1] - counts[0] == (counts[2] - counts[1]) / 2
    assert (counts[0] - (counts[1] - counts[0]), counts[1] - counts[0]) == (15, 12)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = (
    "index", "pci_bus_id", "name", "uuid", "amdsmi_uuid", "arch", "compute_units", "memory_megabytes", "node",
    "partition", "compute_partition", "memory_partition",
)  # fmt: skip
ODD = st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, JSON))


# On a busy computer making such data takes a while.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    theirs=st.one_of(
        JSON,
        st.fixed_dictionaries(
            {"devices": st.lists(ODD, max_size=3)},
            optional={"problems": JSON, "driver_version": JSON, "library": JSON},
        ),
    ),
    mask=st.sampled_from([None, "", "0", "1,0", "GPU-a"]),
    has_topology=st.booleans(),
)
def test_garbage_of_amdsmi(theirs: Any, mask: str | None, has_topology: bool) -> None:
    """Whatever amdsmi answers, detection ends with devices or with a reason, and the kernel's devices stay."""
    node = "/sys/class/kfd/kfd/topology/nodes/1/properties"
    machine = InMemoryMachine(
        files={"/dev/kfd": "", **({node: "simd_count 4\n"} if has_topology else {})},
        distributions={"amdsmi": "7"},
        probes={"rocm.amdsmi": theirs},
        variables={} if mask is None else {"HIP_VISIBLE_DEVICES": mask},
    )
    detection = detect(machine)
    assert detection.devices if detection.status is DetectionStatus.USABLE else detection.reasons
    if has_topology and mask is None:
        assert len(detection.devices) == 1
