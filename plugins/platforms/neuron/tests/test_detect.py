from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from hardpoint import EnvironmentFailure, InMemoryMachine, ReasonCode
from hardpoint.hookspecs import Detection, DetectionStatus
from hardpoint_neuron.plugin import plugin

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., InMemoryMachine]
    Entry = Callable[..., dict[str, Any]]

GIB = 1 << 30
VISIBLE = "NEURON_RT_VISIBLE_CORES"
COUNT = "NEURON_RT_NUM_CORES"
SIZE = "NEURON_LOGICAL_NC_CONFIG"
OLD_SIZE = "NEURON_RT_VIRTUAL_CORE_SIZE"
SYSFS = "/sys/devices/virtual/neuron_device"


def detect(machine: InMemoryMachine) -> Detection:
    """What the hook answers."""
    return plugin.hardpoint_detect(machine)


def codes(detection: Detection) -> list[ReasonCode]:
    """The codes of all reasons, in order."""
    return [reason.code for reason in detection.reasons]


def messages(detection: Detection) -> str:
    """All reasons' texts."""
    return "\n".join(reason.message for reason in detection.reasons)


def test_one_device_has_two_cores(make_machine: Make) -> None:
    """Each core is a device, with its share of the chip's memory and what the chip has."""
    one, two = detect(make_machine(["trn1"])).devices
    assert (one.index, two.index) == (0, 1)
    assert (two.name, two.physical_id, two.visible_id, two.uuid) == ("Trainium1", 1, None, None)
    assert (two.total_memory_bytes, two.pci_bus_id, two.numa_node) == (16 * GIB, "0000:00:10.0", 0)
    assert two.capability is not None
    assert (two.capability.runtime, two.capability.arch, two.capability.version) == ("neuron", "trn1", None)
    assert dict(two.properties) == {
        "neuroncore": "v2", "logical_core_size": 1, "instance_type": None, "driver": None, "neuron_device": 0,
        "physical_cores": "1", "connected_devices": "", "cpus": "0-3",
    }  # fmt: skip
    json.dumps(two.as_dict())


@pytest.mark.parametrize(
    ("kind", "installed", "cores", "memory", "arch", "core"),
    [
        ("inf2", "2.9.0", 2, 16 * GIB, "inf2", "neuroncore_v2"),
        ("trn1", "2.9.0", 2, 16 * GIB, "trn1", "neuroncore_v2"),
        ("trn2", "2.9.0", 4, 24 * GIB, "trn2", "neuroncore_v3"),
        ("trn2", "2.14.3", 4, 24 * GIB, "trn2", "neuroncore_v3"),
        ("trn3", "2.14.3", 4, 36 * GIB, "trn3", "neuroncore_v4"),
    ],
)
def test_generations(
    make_machine: Make, kind: str, installed: str, cores: int, memory: int, arch: str, core: str
) -> None:
    """A generation is known by its architecture and by the version of its cores, which is a feature."""
    detection = detect(make_machine([kind], installed=installed))
    assert (detection.status, detection.notes) == (DetectionStatus.USABLE, ())
    assert [device.total_memory_bytes for device in detection.devices] == [memory] * cores
    capability = detection.devices[0].capability
    assert capability is not None
    assert capability.arch == arch
    assert {"bf16", core} <= capability.features
    assert ("fp8" in capability.features) == (core in ("neuroncore_v3", "neuroncore_v4"))


def test_inferentia1_is_not_driven(make_machine: Make) -> None:
    """Inferentia's first generation is seen and named, and torch-neuronx does not drive it."""
    detection = detect(make_machine(["inf1"]))
    assert (detection.status, codes(detection)) == (DetectionStatus.UNUSABLE, [ReasonCode.CAPABILITY])
    assert messages(detection) == "torch-neuronx does not drive Inferentia: its cores are NeuronCore-v1"
    assert len(detection.devices) == 4


@pytest.mark.parametrize(
    ("mask", "numbers"),
    [
        (None, [0, 1, 2, 3]),
        ("0", [0]),
        ("1-3", [1, 2, 3]),
        ("3,0-1", [3, 0, 1]),
        ("0-3", [0, 1, 2, 3]),
        (" 2 ", [2]),
    ],
)
def test_visible_cores(make_machine: Make, mask: str | None, numbers: list[int]) -> None:
    """Logical devices are the mask's, in its order; a core knows its number, how the mask names it, and its chip."""
    devices = detect(make_machine(["trn1", "trn1"], variables={} if mask is None else {VISIBLE: mask})).devices
    assert [device.physical_id for device in devices] == numbers
    assert [device.visible_id for device in devices] == [None if mask is None else str(item) for item in numbers]
    assert [device.properties["neuron_device"] for device in devices] == [item // 2 for item in numbers]
    assert [device.index for device in devices] == list(range(len(numbers)))


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({VISIBLE: ""}, f"{VISIBLE}='' leaves no core: empty"),
        ({VISIBLE: "0-"}, f"{VISIBLE}='0-' leaves no core: bad entry '0-'"),
        ({VISIBLE: "0-1,1"}, f"{VISIBLE}='0-1,1' leaves no core: overlap: core 1 is named twice"),
        ({VISIBLE: "3-1"}, f"{VISIBLE}='3-1' leaves no core: the range '3-1' runs backwards"),
        ({VISIBLE: "4"}, f"{VISIBLE}='4' leaves no core: core 4 is out of range: there are 4 cores, numbered from 0"),
        ({VISIBLE: "0-" + "9" * 4000}, "core 9999999999999999999999999999999999999999… is out of range"),
        ({COUNT: "5"}, f"{COUNT}='5' leaves no core: there are 4"),
        ({COUNT: "9" * 4000}, "leaves no core: there are 4"),
        ({COUNT: "two"}, f"{COUNT}='two' leaves no core: it is no whole number"),
        ({COUNT: "-1"}, f"{COUNT}='-1' leaves no core: it is no whole number"),
        ({COUNT: ""}, f"{COUNT}='' leaves no core: empty"),
        ({SIZE: "3"}, f"{SIZE}='3' is no size of a logical core"),
        ({SIZE: "0"}, f"{SIZE}='0' is no size of a logical core"),
        ({SIZE: ""}, f"{SIZE}='' is no size of a logical core: empty"),
        ({OLD_SIZE: "many"}, f"{OLD_SIZE}='many' is no size of a logical core"),
    ],
)
def test_masks_that_leave_nothing(make_machine: Make, variables: dict[str, str], words: str) -> None:
    """A mask that the runtime cannot follow is a reason with the value and what is accepted; a mistake has a remedy."""
    detection = detect(make_machine(["trn1", "trn1"], variables=variables))
    assert (detection.status, codes(detection)) == (DetectionStatus.UNUSABLE, [ReasonCode.MASKED])
    assert words in messages(detection)
    (reason,) = detection.reasons
    ((name, value),) = variables.items()
    assert reason.requested == value[:200]
    assert reason.accepted
    # An empty size of a core hides nothing: it is a mistake too.
    assert bool(reason.remedy) is (bool(value) or name == SIZE)


def test_malformed_masks_ask_nobody(make_machine: Make) -> None:
    """What leaves nothing whatever there is, is answered without sysfs and without the tool."""
    machine = make_machine(["trn1"], variables={VISIBLE: "x", SIZE: "9"})
    assert codes(detect(machine)) == [ReasonCode.MASKED, ReasonCode.MASKED]
    assert sorted(machine.questions) == sorted(
        ["list /dev", f"exists {SYSFS}", *(f"variable {name}" for name in (VISIBLE, COUNT, SIZE, OLD_SIZE))]
    )


@pytest.mark.parametrize(("count", "cores"), [("1", 1), ("3", 3), ("4", 4), ("0", 4)])
def test_number_of_cores(make_machine: Make, count: str, cores: int) -> None:
    """So many cores, 0 is all; which ones the runtime takes, nobody knows unless it takes all."""
    devices = detect(make_machine(["trn1", "trn1"], variables={COUNT: count})).devices
    known = [0, 1, 2, 3] if cores == 4 else [None] * cores
    assert [device.physical_id for device in devices] == known
    assert [device.total_memory_bytes for device in devices] == [16 * GIB] * cores
    assert {device.capability.arch for device in devices if device.capability} == {"trn1"}
    assert {device.name for device in devices} == {"Trainium1"}
    assert {device.visible_id for device in devices} == {None}


def test_number_of_cores_of_several_kinds(make_machine: Make) -> None:
    """Of a core that may be of one kind or another only what both have is known."""
    device = detect(make_machine(["trn1", "trn2"], variables={COUNT: "1"})).devices[0]
    assert (device.name, device.capability, device.total_memory_bytes) == ("AWS Neuron device", None, None)
    assert "neuroncore" not in device.properties
    only = detect(make_machine(["trn2"], variables={COUNT: "1"})).devices[0]
    assert (only.pci_bus_id, only.properties["neuron_device"]) == ("0000:00:10.0", 0)


def test_named_cores_win(make_machine: Make) -> None:
    """With both set the named cores count, and a note says so where the number differs."""
    variables = {VISIBLE: "0,2-3", COUNT: "1"}
    detection = detect(make_machine(["trn1", "trn1"], variables=variables))
    assert [device.physical_id for device in detection.devices] == [0, 2, 3]
    (note,) = detection.notes
    assert note.message == f"{COUNT}='1' means nothing beside {VISIBLE}='0,2-3', which wins"
    assert detect(make_machine(["trn1", "trn1"], variables={VISIBLE: "0,2-3", COUNT: "3"})).notes == ()
    assert len(detect(make_machine(["trn1"], variables={VISIBLE: "0", COUNT: "nonsense"})).devices) == 1


@pytest.mark.parametrize(
    ("variables", "cores", "memory", "last"),
    [
        ({}, 4, 24 * GIB, "6-7"),
        ({SIZE: "2"}, 4, 24 * GIB, "6-7"),
        ({SIZE: "1"}, 8, 12 * GIB, "7"),
        ({OLD_SIZE: "1"}, 8, 12 * GIB, "7"),
        ({SIZE: " 1 "}, 8, 12 * GIB, "7"),
    ],
)
def test_logical_cores(make_machine: Make, variables: dict[str, str], cores: int, memory: int, last: str) -> None:
    """Two physical cores of Trainium2 form a logical one, unless the environment says otherwise."""
    devices = detect(make_machine(["trn2"], variables=variables)).devices
    assert len(devices) == cores
    assert devices[-1].total_memory_bytes == memory
    assert devices[-1].properties["physical_cores"] == last


def test_masks_count_logical_cores(make_machine: Make) -> None:
    """The mask's numbers are those of logical cores: with joined cores there are half as many."""
    joined = make_machine(["trn2", "trn2"], variables={VISIBLE: "5"})
    assert detect(joined).devices[0].properties["physical_cores"] == "2-3"
    assert detect(joined).devices[0].properties["neuron_device"] == 1
    single = make_machine(["trn2", "trn2"], variables={VISIBLE: "5", SIZE: "1"})
    assert detect(single).devices[0].properties["physical_cores"] == "5"
    beyond = detect(make_machine(["trn2", "trn2"], variables={VISIBLE: "8"}))
    assert "core 8 is out of range: there are 8 cores" in messages(beyond)
    assert len(detect(make_machine(["trn2", "trn2"], variables={VISIBLE: "8-15", SIZE: "1"})).devices) == 8


def test_sizes_that_contradict(make_machine: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Both names with different values: the documented one counts, and a warning names both."""
    detection = detect(make_machine(["trn2"], variables={SIZE: "1", OLD_SIZE: "2"}))
    assert len(detection.devices) == 8
    (note,) = detection.notes
    assert note.message == f"{SIZE}='1' and {OLD_SIZE}='2' contradict each other: the first one counts"
    assert note.remedy == f"unset {OLD_SIZE}"
    assert note.message in caplog.messages
    assert detect(make_machine(["trn2"], variables={SIZE: "1", OLD_SIZE: "1"})).notes == ()


def test_cores_that_cannot_be_joined(make_machine: Make) -> None:
    """Trainium1 has no logical cores of two: what asks for them is ignored, with a note."""
    detection = detect(make_machine(["trn1"], variables={SIZE: "2"}))
    assert len(detection.devices) == 2
    (note,) = detection.notes
    assert note.message == "cores of Trainium1 cannot be joined: a logical core of 2 is ignored"


def test_size_by_the_tool(make_machine: Make, entry: Entry) -> None:
    """Where no variable says it, the size is the one that neuron-ls shows."""
    text = json.dumps([entry(0, "trn2", nc_count=8, logical_neuroncore_config=1)])
    assert len(detect(make_machine(["trn2"], tool=text)).devices) == 8


def test_mixed_generations(make_machine: Make) -> None:
    """Each device has its own kind of cores; numbers go on from one device to the next."""
    devices = detect(make_machine(["inf2", "trn2"])).devices
    assert [device.name for device in devices] == ["Inferentia2"] * 2 + ["Trainium2"] * 4
    assert [device.physical_id for device in devices] == list(range(6))


def test_what_neuron_ls_alone_knows(make_machine: Make, entry: Entry) -> None:
    """Without it memory, address and neighbours are None, and the rest comes from sysfs, with a note."""
    detection = detect(make_machine(["trn2"], tool=None))
    assert len(detection.devices) == 4
    device = detection.devices[0]
    assert (device.total_memory_bytes, device.pci_bus_id, device.numa_node) == (None, None, None)
    assert (device.properties["connected_devices"], device.properties["cpus"]) == (None, None)
    assert [note.code for note in detection.notes] == [ReasonCode.NOT_INSTALLED]


TIMEOUT = EnvironmentFailure("timed out after 5 s running neuron-ls --json-output", code="timeout")


@pytest.mark.parametrize(
    ("tool", "code"),
    [
        (TIMEOUT, ReasonCode.TIMEOUT),
        ("", ReasonCode.OTHER),
        ("garbage", ReasonCode.OTHER),
        ('{"error": "no device"}', ReasonCode.OTHER),
        ("[[[[", ReasonCode.OTHER),
        ("[]", ReasonCode.OTHER),
        ('[{"neuron_device": "zero"}]', ReasonCode.OTHER),
    ],
)
def test_tool_that_fails(make_machine: Make, caplog: pytest.LogCaptureFixture, tool: Any, code: ReasonCode) -> None:
    """What sysfs tells is used when the tool fails: usable, with the reason as a note and one warning."""
    detection = detect(make_machine(["trn1"], tool=tool or " "))
    assert (detection.status, len(detection.devices)) == (DetectionStatus.USABLE, 2)
    (note,) = detection.notes
    assert note.code is code
    assert f"{note.message}; what it would have told is unknown" in caplog.messages


def test_tool_without_sysfs(make_machine: Make, entry: Entry) -> None:
    """Where sysfs shows nothing, the tool's numbers count, and the instance's type tells the generation."""
    text = json.dumps([entry(0, "trn2", instance_type="trn2.3xlarge")])
    detection = detect(make_machine(["trn2"], sysfs=False, tool=text))
    assert len(detection.devices) == 4
    device = detection.devices[0]
    assert (device.name, device.total_memory_bytes) == ("Trainium2", 24 * GIB)
    assert device.properties["instance_type"] == "trn2.3xlarge"
    (note,) = detection.notes
    assert note.message.startswith("/dev/neuron0: sysfs: FileNotFoundError")


def test_neither_sysfs_nor_tool(make_machine: Make) -> None:
    """Nodes alone are hardware of unknown size: unusable, with the reasons of both."""
    detection = detect(make_machine(["trn1", "trn1"], sysfs=False, tool="?"))
    assert detection.status is DetectionStatus.UNUSABLE
    assert codes(detection) == [ReasonCode.DRIVER, ReasonCode.OTHER, ReasonCode.DRIVER]
    assert messages(detection).startswith(
        "how many cores /dev/neuron0, /dev/neuron1 has, neither sysfs nor neuron-ls says\nneuron-ls --json-output"
    )
    assert messages(detection).endswith("(and 1 more)")


def test_instance_type_by_the_firmware(make_machine: Make) -> None:
    """Where the tool does not tell the instance's type, the firmware's product name does."""
    files = {"/sys/devices/virtual/dmi/id/product_name": "trn1n.32xlarge\n", "/sys/module/neuron/version": "2.26.5.0\n"}
    device = detect(make_machine(["trn1"], files=files)).devices[0]
    assert device.properties["instance_type"] == "trn1n.32xlarge"
    assert device.properties["driver"] == "2.26.5.0"
    other = detect(make_machine(["trn1"], files={"/sys/devices/virtual/dmi/id/product_name": "PowerEdge R740"}))
    assert other.devices[0].properties["instance_type"] is None


def test_generation_by_the_firmware(make_machine: Make) -> None:
    """A driver that names nothing is helped by the instance's type; a name that nobody knows is not overruled."""
    folder = f"{SYSFS}/neuron0/info/architecture"
    product = {"/sys/devices/virtual/dmi/id/product_name": "inf2.xlarge"}
    nameless = {f"{folder}/device_name": OSError(5, "Input/output error"), f"{folder}/instance_type": ""}
    device = detect(make_machine(["trn1"], files={**nameless, **product})).devices[0]
    assert (device.name, device.capability and device.capability.arch) == ("Inferentia2", "inf2")
    newer = {f"{folder}/device_name": "Trainium9\n", f"{folder}/instance_type": "Trn9\n"}
    device = detect(make_machine(["trn1"], files={**newer, **product})).devices[0]
    assert (device.name, device.capability) == ("Trainium9", None)


def test_numa_node_by_the_kernel(make_machine: Make, entry: Entry) -> None:
    """Where the tool does not know the node, the PCI device's is taken; -1 is none."""
    text = json.dumps([entry(0, "trn1", numa_node="-1")])
    path = "/sys/bus/pci/devices/0000:00:10.0/numa_node"
    assert detect(make_machine(tool=text, files={path: "1\n"})).devices[0].numa_node == 1
    assert detect(make_machine(tool=text, files={path: "-1\n"})).devices[0].numa_node is None
    assert detect(make_machine(tool=text)).devices[0].numa_node is None


def test_counts_that_contradict(make_machine: Make, entry: Entry, caplog: pytest.LogCaptureFixture) -> None:
    """Where sysfs and the tool count differently, sysfs is believed and a note says so."""
    detection = detect(make_machine(["trn2"], tool=json.dumps([entry(0, "trn2", nc_count=2), entry(5, "trn2")])))
    assert len(detection.devices) == 4
    assert [note.message for note in detection.notes] == [
        "/dev/neuron0 has 8 cores by sysfs and 4 by neuron-ls: sysfs counts",
        "neuron-ls lists devices without a node: 5",
    ]
    assert not caplog.messages


def test_container_with_some_devices(make_machine: Make) -> None:
    """Only devices that have a node here count, whatever their numbers are; cores are numbered from 0."""
    devices = detect(make_machine(["trn1"] * 4, nodes=[3, 1])).devices
    assert [device.properties["neuron_device"] for device in devices] == [1, 1, 3, 3]
    assert [device.physical_id for device in devices] == [0, 1, 2, 3]


def test_container_without_nodes(make_machine: Make) -> None:
    """A driver whose devices were not given to this container is hardware that may not be used."""
    detection = detect(make_machine(["trn1"] * 4, nodes=[]))
    assert (detection.status, codes(detection)) == (DetectionStatus.UNUSABLE, [ReasonCode.PERMISSION])
    assert messages(detection).startswith("the driver has 4 Neuron devices, and none of their nodes")
    assert "--device=/dev/neuron0" in str(detection.reasons[0].remedy)


def test_driver_without_devices(make_machine: Make) -> None:
    """A driver that has no device is the absence of such hardware."""
    detection = detect(make_machine([], files={}, directories=[SYSFS]))
    assert (detection.status, messages(detection)) == (
        DetectionStatus.ABSENT,
        "the Neuron driver is loaded and has no device",
    )


DENIED = PermissionError(13, "Permission denied")


@pytest.mark.parametrize(
    ("closed", "mask", "words"),
    [
        ([0, 1], None, "no permission to open /dev/neuron0, /dev/neuron1"),
        ([1], None, "no permission to open /dev/neuron1"),
        ([1], "2", "no permission to open /dev/neuron1"),
        ([1], "0-1", None),
    ],
)
def test_permission(make_machine: Make, closed: list[int], mask: str | None, words: str | None) -> None:
    """A node that may not be opened is a reason, if one of its cores is needed."""
    files = {f"/dev/neuron{number}": DENIED for number in closed}
    variables = {} if mask is None else {VISIBLE: mask}
    detection = detect(make_machine(["trn1", "trn1"], files=files, variables=variables))
    if words is None:
        assert detection.status is DetectionStatus.USABLE
        return
    assert (detection.status, codes(detection)) == (DetectionStatus.UNUSABLE, [ReasonCode.PERMISSION])
    assert messages(detection) == words
    assert detection.devices
    remedy = str(detection.reasons[0].remedy)
    assert (f"{VISIBLE}=0-1" in remedy) == (closed == [1] and mask is None)


def test_all_reasons_at_once(make_machine: Make) -> None:
    """A closed node, a torch-neuronx that does not fit and a failing tool are all told."""
    machine = make_machine(["trn1"], files={"/dev/neuron0": DENIED}, installed="2.14.3", tool="?")
    assert codes(detect(machine)) == [ReasonCode.PERMISSION, ReasonCode.OTHER_BUILD, ReasonCode.OTHER]


def test_size_larger_than_the_device(make_machine: Make) -> None:
    """A device with fewer cores than a logical one takes leaves none."""
    files = {f"{SYSFS}/neuron0/neuron_core0/x": "", f"{SYSFS}/neuron0/info/architecture/device_name": "Trainium2"}
    detection = detect(make_machine([], nodes=[0], files=files, tool=None))
    assert codes(detection) == [ReasonCode.NO_DEVICE, ReasonCode.NOT_INSTALLED]


def test_two_looks_are_equal(make_machine: Make) -> None:
    """Detection is a function of what the machine tells."""
    machine = make_machine(["trn2", "trn2"], variables={VISIBLE: "1-3"})
    assert detect(machine) == detect(machine)


@pytest.mark.parametrize(("chips", "questions"), [(1, 16), (16, 76)])
def test_questions(make_machine: Make, chips: int, questions: int) -> None:
    """What is asked is what the README counts: 12 questions and 4 for each device; the tool runs once."""
    machine = make_machine(["trn1"] * chips)
    detect(machine)
    assert machine.questions.total() == questions
    assert machine.questions["run neuron-ls --json-output"] == 1
    assert not [question for question in machine.questions if question.startswith("probe") or "serial" in question]


def test_plain_folders(host: Any, entry: Entry) -> None:
    """The same from real folders and a real program."""
    host.plug("trn2", "trn2")
    host.tool(f"cat <<'END'\n{json.dumps([entry(0, 'trn2'), entry(1, 'trn2')])}\nEND")
    detection = detect(host.machine)
    assert (detection.status, len(detection.devices)) == (DetectionStatus.USABLE, 8)
    assert detection.devices[7].total_memory_bytes == 24 * GIB
