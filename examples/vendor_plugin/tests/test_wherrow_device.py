"""The device under torch: its name, memory, streams, events and operators. `on_device.py` is the other process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from examples.vendor_plugin.tests.conftest import HERE, MEBIBYTE, install, run

if TYPE_CHECKING:
    from examples.vendor_plugin.tests.conftest import MakeRoot

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

EXPECTED: dict[str, Any] = {
    "identity": ["wherrow", "wherrow:1", False, True, 2],
    "memory_is_counted": [0, MEBIBYTE + 256, 0, 0, 0],
    "another_device_counts_for_itself": [0, MEBIBYTE],
    "memory_ends": [
        "wherrow:0 is out of memory: 20971520 bytes were asked for, 62915584 of 67108864 are allocated",
        29 * MEBIBYTE,
    ],
    "a_view_is_the_same_memory": [[1, 5, 0, 0, 5, 7], [1, 5, 0, 0, 5, 7]],
    "the_host_goes_on": [False, True, [20.0] * 4],
    "an_event_orders_two_streams": [False, False, [], ["first", "second"], [3.0] * 3, True],
    "streams_without_an_event_are_independent": ["ran"],
    "queued_work_keeps_its_memory": [[2.0]],
    "failed_work_is_told_to_whoever_waits": [
        "work on wherrow:0 failed: ZeroDivisionError: integer division or modulo by zero",
        [2],
    ],
    "a_hosts_tensor_is_not_there": [["RuntimeError"] * 3, [3.0] * 3],
    "drawing_repeats": [True, False, True],
    "copies_go_everywhere": [[[7] * 3] * 2, "wherrow:1", [[0, 1, 2], [3, 4, 5]], True],
    "a_resized_tensor_keeps_its_numbers": [[0, 1, 2, 3], [[0, 1], [2, 3]], [[1, 0], [1, 1]]],
}


@pytest.fixture(scope="module")
def facts(make_root: MakeRoot, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the process saw."""
    site = install(tmp_path_factory.mktemp("installed"))
    done = run(site, [str(HERE / "tests" / "on_device.py")], WHERROW_ROOT=make_root(2))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", EXPECTED)
def test_on_the_device(name: str, facts: dict[str, Any]) -> None:
    """What `on_device.py` sees is what a device of its own has to show."""
    assert facts[name] == EXPECTED[name]


def test_operators_agree_with_the_hosts(facts: dict[str, Any]) -> None:
    """Every kind of operator (functional, in place, into a result, views, of unknown size) gives the host's numbers."""
    wrong = {name: difference for name, difference in facts["operators_agree_with_the_host"].items() if difference != 0}
    assert {name: difference for name, difference in wrong.items() if not 0 <= difference < 1e-5} == {}
    assert len(facts["operators_agree_with_the_host"]) > 20
