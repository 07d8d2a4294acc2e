from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardpoint import InMemoryMachine
from hardpoint_cpu._topology import NumaNode, read_cores, read_numa_nodes, usable_cpus

GIB = 1 << 30
NODES = "/sys/devices/system/node"


def node_files(**lists: str) -> dict[str, str | bytes | OSError]:
    """Files of nodes given as node0="0-31"."""
    files: dict[str, str | bytes | OSError] = {f"{NODES}/possible": "0-1\n", f"{NODES}/has_cpu": "0-1\n"}
    for name, cpus in lists.items():
        number = name.removeprefix("node")
        files[f"{NODES}/{name}/cpulist"] = f"{cpus}\n"
        files[f"{NODES}/{name}/meminfo"] = (
            f"Node {number} MemTotal:       67108864 kB\nNode {number} MemFree:        1234 kB\n"
        )
    return files


def linux(files: dict[str, str | bytes | OSError], affinity: frozenset[int] | None = None) -> InMemoryMachine:
    """A machine with these files."""
    return InMemoryMachine(system="Linux", architecture="x86_64", files=files, affinity=affinity)


def test_nodes_with_their_usable_cpus_and_memory() -> None:
    """Each node has the CPUs that the mask leaves of it, and its memory in bytes."""
    machine = linux(node_files(node0="0-3", node1="4-7"))
    assert read_numa_nodes(machine, frozenset((1, 2, 4, 9))) == (
        NumaNode(id=0, cpus=frozenset((1, 2)), total_memory_bytes=64 * GIB),
        NumaNode(id=1, cpus=frozenset((4,)), total_memory_bytes=64 * GIB),
    )


def test_node_outside_the_mask_is_skipped() -> None:
    """With the mask in node 1 only, node 0 is not there."""
    machine = linux(node_files(node0="0-31", node1="32-63"))
    assert [node.id for node in read_numa_nodes(machine, frozenset(range(40, 44)))] == [1]


def test_node_of_memory_alone_is_ignored() -> None:
    """A node without CPUs is no place for a rank."""
    machine = linux(node_files(node0="0-3", node1="", node2="4-7"))
    assert [node.id for node in read_numa_nodes(machine, None)] == [0, 2]


def test_nodes_are_in_the_order_of_their_numbers() -> None:
    """node10 comes after node2."""
    machine = linux(node_files(node10="0", node2="1"))
    assert [node.id for node in read_numa_nodes(machine, None)] == [2, 10]


def test_system_without_nodes() -> None:
    """Where there is no folder of nodes, none is known."""
    assert read_numa_nodes(linux({}), frozenset((0,))) == ()


@pytest.mark.parametrize("meminfo", ["", "Node 0 MemTotal: lots kB\n", "MemTotal:\n", "Node 0 MemTotal: 0 kB\n"])
def test_memory_of_a_node_may_be_unknown(meminfo: str) -> None:
    """Damage and zero are unknown."""
    machine = linux({**node_files(node0="0"), f"{NODES}/node0/meminfo": meminfo})
    assert read_numa_nodes(machine, None) == (NumaNode(id=0, cpus=frozenset((0,))),)


def test_unreadable_node_is_ignored() -> None:
    """A node whose list of CPUs cannot be read has none."""
    machine = linux({**node_files(node0="0", node1="1"), f"{NODES}/node0/cpulist": PermissionError(13, "denied")})
    assert [node.id for node in read_numa_nodes(machine, None)] == [1]


def test_threads_of_a_core_are_one_core() -> None:
    """CPUs are grouped as the kernel says, old name of the file or new; a CPU without a file is alone."""
    machine = linux(
        {
            "/sys/devices/system/cpu/cpu0/topology/core_cpus_list": "0,4\n",
            "/sys/devices/system/cpu/cpu1/topology/thread_siblings_list": "1,5\n",
        }
    )
    assert read_cores(machine, frozenset((0, 1, 2, 4, 5))) == ((0, 4), (1, 5), (2,))


def test_thread_outside_the_mask_is_not_part_of_a_core() -> None:
    """Only usable CPUs are listed."""
    machine = linux({"/sys/devices/system/cpu/cpu0/topology/core_cpus_list": "0,4\n"})
    assert read_cores(machine, frozenset((0, 1))) == ((0,), (1,))


@pytest.mark.parametrize("mask", [None, frozenset()])
def test_no_mask_is_unknown(mask: frozenset[int] | None) -> None:
    """None and an empty mask both say that nothing is known: a process runs on some CPU."""
    assert usable_cpus(linux({}, mask)) is None


@given(st.dictionaries(st.sampled_from(["node0", "node1", "nodeX", "node", "node²"]), st.text()), st.text())
def test_any_text_has_an_answer(lists: dict[str, str], meminfo: str) -> None:
    """Whatever the files hold, only nodes with CPUs are named."""
    machine = linux({**node_files(**lists), f"{NODES}/node0/meminfo": meminfo})
    assert all(node.cpus for node in read_numa_nodes(machine, None))
