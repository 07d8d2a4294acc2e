"""Which CPUs this process may use, where they are, and how they are divided between ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hardpoint.errors import ConfigError
from hardpoint_cpu._cpu_list import parse_cpu_list

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from hardpoint import Machine

_NODES = "/sys/devices/system/node"


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """A memory node with at least one CPU that this process may use; `cpus` are those."""

    id: int
    cpus: frozenset[int]
    total_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreShare:
    """One rank's part.

    `cpus` to bind to (None: the system does not say which may be used, so bind nothing), `threads` to start, and the
    NUMA node that all of them are in (None: several, or unknown).
    """

    cpus: frozenset[int] | None
    threads: int
    numa_node: int | None = None


def usable_cpus(machine: Machine) -> frozenset[int] | None:
    """The CPUs of the affinity mask; None where the system does not say (macOS, Windows)."""
    return machine.cpu_affinity() or None


def read_numa_nodes(machine: Machine, cpus: AbstractSet[int] | None) -> tuple[NumaNode, ...]:
    """The nodes with usable CPUs, by id; none where the system does not say.

    Nodes of memory alone (CXL, HBM in flat mode) have no CPU to bind a rank to, and nodes outside the mask none that
    may be used: both are left out.
    """
    nodes = []
    for name in _names(machine):
        number = name.removeprefix("node")
        if not (name.startswith("node") and number.isascii() and number.isdigit() and len(number) < 10):
            continue
        listed = parse_cpu_list(_read(machine, f"{_NODES}/{name}/cpulist"))
        usable = listed if cpus is None else listed.intersection(cpus)
        if usable:
            memory = _total_memory(_read(machine, f"{_NODES}/{name}/meminfo"))
            nodes.append(NumaNode(id=int(number), cpus=usable, total_memory_bytes=memory))
    return tuple(sorted(nodes, key=lambda node: node.id))


def _names(machine: Machine) -> tuple[str, ...]:
    try:
        return machine.list_directory(_NODES)
    except OSError:
        return ()


def _read(machine: Machine, path: str) -> str:
    try:
        return machine.read_text(path)
    except OSError:
        return ""


def _total_memory(text: str) -> int | None:
    # A line reads "Node 0 MemTotal:       131072000 kB".
    for line in text.splitlines():
        words = line.split()
        if "MemTotal:" in words[:-1]:
            number = words[words.index("MemTotal:") + 1]
            return int(number) * 1024 or None if number.isascii() and number.isdigit() and len(number) < 20 else None
    return None


def read_cores(machine: Machine, cpus: AbstractSet[int]) -> tuple[tuple[int, ...], ...]:
    """The usable CPUs, grouped by physical core. A CPU of which nothing is known is a core of its own."""
    cores = []
    left = set(cpus)
    for cpu in sorted(cpus):
        if cpu in left:
            folder = f"/sys/devices/system/cpu/cpu{cpu}/topology"
            # The second name is that of kernels before 5.7.
            text = _read(machine, f"{folder}/core_cpus_list") or _read(machine, f"{folder}/thread_siblings_list")
            core = (parse_cpu_list(text) & left) | {cpu}
            left -= core
            cores.append(tuple(sorted(core)))
    return tuple(cores)


def divide(
    num_ranks: int, nodes: Sequence[tuple[int | None, Sequence[tuple[int, ...]]]], max_threads: int
) -> tuple[CoreShare, ...]:
    """Divide nodes, given as (id, physical cores), between ranks: no CPU twice, none left over.

    With at least as many ranks as nodes no rank spans two; with fewer, each has whole neighbouring nodes. A core is
    split only where there are more ranks than cores in its node. `max_threads` is the budget of all ranks together, of
    which each has its part and at least one. Errors: `ConfigError` for fewer than one rank, or more than CPUs.
    """
    num_cpus = sum(len(core) for _, cores in nodes for core in cores)
    if not 1 <= num_ranks <= num_cpus:
        raise ConfigError(
            f"num_ranks={num_ranks}: each rank needs a CPU of its own, and this process may use {num_cpus}",
            field="num_ranks",
        )
    parts: list[tuple[int | None, list[tuple[int, ...]]]] = []
    if num_ranks < len(nodes):
        for rank in range(num_ranks):
            group = nodes[_bound(rank, num_ranks, len(nodes)) : _bound(rank + 1, num_ranks, len(nodes))]
            node_id = group[0][0] if len(group) == 1 else None
            parts.append((node_id, [core for _, cores in group for core in cores]))
    else:
        for (node_id, cores), ranks in zip(nodes, _ranks_per_node(num_ranks, nodes), strict=True):
            pieces: list[tuple[int, ...]] = (
                list(cores) if ranks <= len(cores) else [(cpu,) for core in cores for cpu in core]
            )
            for rank in range(ranks):
                first, last = _bound(rank, ranks, len(pieces)), _bound(rank + 1, ranks, len(pieces))
                parts.append((node_id, pieces[first:last]))
    shares = []
    for rank, (node_id, cores) in enumerate(parts):
        budget = _bound(rank + 1, num_ranks, max_threads) - _bound(rank, num_ranks, max_threads)
        cpus = frozenset(cpu for core in cores for cpu in core)
        shares.append(CoreShare(cpus=cpus, threads=max(1, min(len(cores), budget)), numa_node=node_id))
    return tuple(shares)


def _bound(part: int, parts: int, length: int) -> int:
    """Where a part begins when a length is cut into parts that differ by one at most, the longer ones first."""
    return part * (length // parts) + min(part, length % parts)


def _ranks_per_node(num_ranks: int, nodes: Sequence[tuple[int | None, Sequence[tuple[int, ...]]]]) -> list[int]:
    """One rank each, and every further one to the node that has most CPUs per rank then."""
    sizes = [sum(len(core) for core in cores) for _, cores in nodes]
    ranks = [1] * len(nodes)
    for _ in range(num_ranks - len(nodes)):
        fullest = max(range(len(nodes)), key=lambda node: sizes[node] / (ranks[node] + 1))
        ranks[fullest] += 1
    return ranks
