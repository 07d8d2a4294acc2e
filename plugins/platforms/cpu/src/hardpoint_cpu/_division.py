"""How CPUs are divided between the processes of one engine on one machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreShare:
    """One rank's part.

    `cpus` to bind to (None: the system does not say which may be used, so bind nothing), `threads` to start, and the
    NUMA node that all of them are in (None: several, or unknown).
    """

    cpus: frozenset[int] | None
    threads: int
    numa_node: int | None = None


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
