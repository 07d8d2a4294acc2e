from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardpoint_cpu._cpu_list import HIGHEST_ID, format_cpu_list, parse_cpu_list


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("0-3,8\n", {0, 1, 2, 3, 8}),
        ("0", {0}),
        ("", set()),
        ("\n", set()),
        (" 0 , 2-3 ", {0, 2, 3}),
        ("0-1,0-2", {0, 1, 2}),
    ],
)
def test_list_as_the_kernel_writes_it(text: str, ids: set[int]) -> None:
    """Ranges and single ids, whitespace and overlaps are read."""
    assert parse_cpu_list(text) == ids


@pytest.mark.parametrize("text", ["x", "-", "1-", "-1", "3-x", "²", "1-99999999999999", "0x3", "1:2", "9" * 6000])
def test_damaged_item_is_left_out(text: str) -> None:
    """What is no id or range names nothing, and its neighbours are kept."""
    assert parse_cpu_list(text) == frozenset()
    assert parse_cpu_list(f"5,{text},7") == {5, 7}


def test_range_that_runs_backwards_is_empty() -> None:
    """3-1 names no id."""
    assert parse_cpu_list("3-1") == frozenset()


def test_shortest_form() -> None:
    """Neighbours become a range, whatever their order."""
    assert format_cpu_list([9, 8, 11, 10, 0]) == "0,8-11"
    assert format_cpu_list([]) == ""


@given(st.frozensets(st.integers(0, HIGHEST_ID - 1), max_size=40))
def test_written_list_is_read_back(ids: frozenset[int]) -> None:
    """Formatting and parsing are inverse."""
    assert parse_cpu_list(format_cpu_list(ids)) == ids


@given(st.one_of(st.text(), st.text(alphabet="0123456789-,: \n")))
def test_any_text_has_an_answer(text: str) -> None:
    """No text raises, and no id is out of range."""
    assert all(0 <= item < HIGHEST_ID for item in parse_cpu_list(text))
