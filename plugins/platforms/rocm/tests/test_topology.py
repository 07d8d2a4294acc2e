from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hardpoint import InMemoryMachine, ReasonCode
from hardpoint.hookspecs import DetectionStatus
from hardpoint_rocm._inventory import Gpu, format_uuid
from hardpoint_rocm._topology import NODES, read_topology
from hardpoint_rocm.plugin import plugin

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., InMemoryMachine]
    Card = Callable[..., dict[str, int]]
    Node = Callable[..., dict[str, str]]

MIB = 1 << 20


def only(machine: InMemoryMachine) -> Gpu:
    """The one device of a machine."""
    (gpu,) = read_topology(machine).gpus
    return gpu


def test_device(make_machine: Make, card: Card) -> None:
    """A node tells architecture, address, id, memory, compute units and what connects it."""
    gpu = only(make_machine([card(3, hive_id=7, domain=2)]))
    assert gpu.arch is not None
    assert (gpu.arch.name, gpu.pci_bus_id, gpu.uuid) == ("gfx942", "0002:13:00.0", "GPU-00000000000000a3")
    assert (gpu.memory_bytes, gpu.compute_units, gpu.hive, gpu.node, gpu.partition) == (196592 * MIB, 304, 7, 1, 0)


def test_order(make_machine: Make, card: Card, node: Node) -> None:
    """Devices come in the numeric order of their nodes, CPUs between them left out, and are numbered from 0."""
    files: dict[str, str] = {}
    for place in (12, 2, 5):
        files |= node(place, card(place))
    topology = read_topology(make_machine(files=files))
    assert [(gpu.number, gpu.node, gpu.hsa_node) for gpu in topology.gpus] == [(0, 2, 1), (1, 5, 2), (2, 12, 3)]
    assert topology.nodes == 4


@pytest.mark.parametrize(
    ("banks", "local", "expected"),
    [
        ([(1, 100)], 0, 100),
        ([(1, 100), (2, 30)], 500, 130),
        ([(0, 100)], 500, 500),
        ([(0, 100)], 0, None),
        ([], 500, 500),
        ([], 0, None),
    ],
)
def test_memory(
    make_machine: Make, card: Card, node: Node, banks: list[tuple[int, int]], local: int, expected: int | None
) -> None:
    """Memory is the banks on the device, seen by the host or not; the machine's own is none; else the older figure."""
    files = node(1, card(local_mem_size=local), memory=None)
    for place, (kind, size) in enumerate(banks):
        files[f"{NODES}/1/mem_banks/{place}/properties"] = f"heap_type {kind}\nsize_in_bytes {size}\n"
    assert only(make_machine([files])).memory_bytes == expected


def test_parts_of_a_divided_card(make_machine: Make, card: Card) -> None:
    """Parts have the address of their card, and their number in the four highest bits of it."""
    parts = [card(part, location_id=0x1000 | part << 28, num_xcc=1) for part in range(8)]
    gpus = read_topology(make_machine(parts)).gpus
    assert {gpu.pci_bus_id for gpu in gpus} == {"0000:10:00.0"}
    assert [gpu.partition for gpu in gpus] == list(range(8))


def test_what_a_container_was_not_given(make_machine: Make, card: Card) -> None:
    """A node that the kernel does not show here, and one without its render node, are none, and the others count on."""
    hidden = {f"{NODES}/1/properties": PermissionError(1, "Operation not permitted")}
    topology = read_topology(make_machine([card(0), card(1), card(2)], files={**hidden, "/dev/dri/renderD129": None}))
    assert [(gpu.number, gpu.node, gpu.hsa_node) for gpu in topology.gpus] == [(0, 3, 1)]
    assert [problem.code for problem in topology.problems] == [ReasonCode.PERMISSION, ReasonCode.NO_DEVICE]
    assert "node 1" in topology.problems[0].message
    assert "/dev/dri/renderD129" in topology.problems[1].message


def test_render_node_that_may_not_be_opened(make_machine: Make, card: Card) -> None:
    """A render node of another group is a matter of permission, and the remedy names the groups."""
    topology = read_topology(make_machine([card()], read_only=["/dev/dri"]))
    assert topology.gpus == ()
    (problem,) = topology.problems
    assert (problem.code, problem.message) == (ReasonCode.PERMISSION, "/dev/dri/renderD128 may not be opened")
    assert "render, video" in str(problem.remedy)


def test_older_kernels(make_machine: Make, card: Card) -> None:
    """A kernel that tells no version, address, id or render node leaves those unknown."""
    names = ("gfx_target_version", "location_id", "domain", "unique_id", "drm_render_minor", "simd_per_cu", "hive_id")
    gpu = only(make_machine([card(**dict.fromkeys(names))]))
    assert (gpu.arch, gpu.pci_bus_id, gpu.uuid, gpu.compute_units, gpu.hive) == (None,) * 5


def test_no_topology() -> None:
    """Without the folder there is nothing; one that may not be read is a problem."""
    assert read_topology(InMemoryMachine()) == ((), (), 0)
    closed = InMemoryMachine(directories={NODES: PermissionError(13, "Permission denied", NODES)})
    (problem,) = read_topology(closed).problems
    assert (problem.code, NODES in problem.message) == (ReasonCode.PERMISSION, True)
    broken = InMemoryMachine(directories={NODES: OSError(5, "Input/output error", NODES)})
    assert read_topology(broken).problems[0].code is ReasonCode.DRIVER


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, None), (None, None), (1, "GPU-0000000000000001"), (1 << 64, None), ("0xAb", "GPU-00000000000000ab"),
        ("GPU-XX", None), ("N/A", None), ("", None), ("0x0", None), ("GPU-21B6D61638A86F8C", "GPU-21b6d61638a86f8c"),
    ],
)  # fmt: skip
def test_ids(value: int | str | None, expected: str | None) -> None:
    """An id is written as HIP writes it, whatever its source; 0 means that there is none."""
    assert format_uuid(value) == expected


NUMBER = st.integers(min_value=0, max_value=1 << 66) | st.sampled_from([0, 1, 90402, 110000, 128])
NAMES = ("simd_count", "gfx_target_version", "location_id", "domain", "unique_id", "drm_render_minor", "simd_per_cu")
LINES = st.lists(
    st.tuples(st.sampled_from([*NAMES, "hive_id", "device_id", "cpu_cores_count"]), NUMBER).map(
        lambda pair: f"{pair[0]} {pair[1]}"
    )
    | st.text(max_size=20),
    max_size=12,
).map("\n".join)
FILES = st.dictionaries(
    st.sampled_from(
        [
            *(f"{NODES}/{node}/{name}" for node in ("0", "1", "2", "x", "01", "9" * 30) for name in ("properties",)),
            f"{NODES}/1/mem_banks/0/properties",
            f"{NODES}/1/mem_banks",
            f"{NODES}/1/io_links/0/properties",
            "/dev/dri/renderD128",
            "/dev/kfd",
        ]
    ),
    LINES
    | st.binary(max_size=12)
    | st.just(PermissionError(1, "Operation not permitted"))
    | st.just(OSError(5, "I/O")),
)


# On a busy computer making such data takes a while.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(FILES, st.sampled_from([None, "", "0", "1,0", "GPU-"]))
def test_garbage_in_the_files(files: dict[str, Any], mask: str | None) -> None:
    """Whatever stands in the files, detection ends with devices or with a reason."""
    variables = {} if mask is None else {"HIP_VISIBLE_DEVICES": mask}
    machine = InMemoryMachine(files=files, directories=["/sys/class/kfd"], variables=variables)
    detection = plugin.hardpoint_detect(machine)
    assert detection.devices if detection.status is DetectionStatus.USABLE else detection.reasons
    for device in detection.devices:
        assert device.as_dict()["name"]
