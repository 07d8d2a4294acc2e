from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardpoint.errors import ConfigError
from hardpoint_cpu._division import CoreShare, divide


def test_one_rank_per_node() -> None:
    """With as many ranks as nodes, each has one, and the threads are shared out."""
    nodes = [(0, [(0, 4), (1, 5)]), (1, [(2, 6), (3, 7)])]
    assert divide(2, nodes, 8) == (
        CoreShare(cpus=frozenset((0, 1, 4, 5)), threads=2, numa_node=0),
        CoreShare(cpus=frozenset((2, 3, 6, 7)), threads=2, numa_node=1),
    )


def test_quota_divides_the_threads_and_not_the_cpus() -> None:
    """Four CPUs' worth of time on sixteen CPUs: each of two ranks may roam over eight with two threads."""
    first, second = divide(2, [(None, [(cpu,) for cpu in range(16)])], 4)
    assert (len(first.cpus or ()), first.threads, len(second.cpus or ()), second.threads) == (8, 2, 8, 2)


def test_fewer_ranks_than_nodes_have_neighbouring_nodes() -> None:
    """Two ranks on three nodes: the first has two of them, and so no single one."""
    first, second = divide(2, [(node, [(node,)]) for node in range(3)], 3)
    assert (first.cpus, first.numa_node) == (frozenset((0, 1)), None)
    assert (second.cpus, second.numa_node) == (frozenset((2,)), 2)


def test_larger_node_has_more_ranks() -> None:
    """Four ranks on nodes of six and two CPUs: three and one."""
    nodes = [(0, [(cpu,) for cpu in range(6)]), (1, [(6,), (7,)])]
    assert [share.numa_node for share in divide(4, nodes, 8)] == [0, 0, 0, 1]


def test_further_rank_goes_where_most_is_left_for_it() -> None:
    """Four ranks on nodes of five and three CPUs: three and one, so that no rank has less than five thirds."""
    nodes = [(0, [(cpu,) for cpu in range(5)]), (1, [(cpu,) for cpu in range(5, 8)])]
    assert [share.numa_node for share in divide(4, nodes, 8)] == [0, 0, 0, 1]


def test_core_is_split_only_where_it_must_be() -> None:
    """Two ranks on two cores of two threads have a core each; four have a thread each."""
    nodes = [(0, [(0, 2), (1, 3)])]
    assert [share.cpus for share in divide(2, nodes, 4)] == [frozenset((0, 2)), frozenset((1, 3))]
    assert sorted(tuple(share.cpus or ()) for share in divide(4, nodes, 4)) == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize("num_ranks", [-1, 0, 3])
def test_number_of_ranks_must_fit(num_ranks: int) -> None:
    """No rank, or more than CPUs, is an error that says how many CPUs there are."""
    with pytest.raises(ConfigError) as caught:
        divide(num_ranks, [(None, [(0,), (1,)])], 2)
    assert str(caught.value) == (f"num_ranks={num_ranks}: each rank needs a CPU of its own, and this process may use 2")
    assert caught.value.field == "num_ranks"


@st.composite
def divisions(draw: st.DrawFn) -> tuple[int, list[tuple[int | None, list[tuple[int, ...]]]], int]:
    """A number of ranks that fits, nodes with cores of one to four threads, and a budget of threads."""
    nodes: list[tuple[int | None, list[tuple[int, ...]]]] = []
    next_cpu = 0
    for node in range(draw(st.integers(1, 5))):
        cores = []
        for size in draw(st.lists(st.integers(1, 4), min_size=1, max_size=12)):
            cores.append(tuple(range(next_cpu, next_cpu + size)))
            next_cpu += size
        nodes.append((node, cores))
    return draw(st.integers(1, next_cpu)), nodes, draw(st.integers(1, next_cpu))


@given(divisions())
def test_every_cpu_goes_to_exactly_one_rank(
    division: tuple[int, list[tuple[int | None, list[tuple[int, ...]]]], int],
) -> None:
    """All CPUs are given, none twice, each rank has one at least, and a named node has all of a rank's CPUs."""
    num_ranks, nodes, budget = division
    shares = divide(num_ranks, nodes, budget)
    given_out = [cpu for share in shares for cpu in share.cpus or ()]
    assert sorted(given_out) == [cpu for _, cores in nodes for core in cores for cpu in core]
    assert len(shares) == num_ranks
    members = {node: {cpu for core in cores for cpu in core} for node, cores in nodes}
    for share in shares:
        assert share.cpus
        assert 1 <= share.threads <= len(share.cpus)
        assert share.numa_node is None or share.cpus <= members[share.numa_node]
        assert num_ranks < len(nodes) or share.numa_node is not None
    if budget >= num_ranks:
        assert sum(share.threads for share in shares) <= budget
