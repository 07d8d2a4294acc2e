from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardpoint_neuron._mask import format_cores, parse_cores, parse_number

ENTRY = st.one_of(
    st.integers(0, 40).map(str),
    st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: f"{pair[0]}-{pair[1]}"),
    st.sampled_from(["", " ", "-", "1-", "-1", "+1", "1-2-3", "0x1", "²", "١", "1.0", "all", " 7 ", "9" * 5000]),
)


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("0", [0]),
        ("0-3", [0, 1, 2, 3]),
        ("0-3,5", [0, 1, 2, 3, 5]),
        ("5,0-1", [5, 0, 1]),
        (" 1 , 3-4 ", [1, 3, 4]),
        ("3-3", [3]),
        ("00,01", [0, 1]),
    ],
)
def test_lists(text: str, cores: list[int]) -> None:
    """Numbers and inclusive ranges, in the order in which they are written."""
    found = parse_cores(text)
    assert found.fault is None
    assert list(found.numbers()) == cores


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("0,", "an entry is empty"),
        (",", "an entry is empty"),
        ("0,,1", "an entry is empty"),
        ("-1", "bad entry '-1'"),
        ("1-", "bad entry '1-'"),
        ("0-2-4", "bad entry '0-2-4'"),
        ("+1", "bad entry '+1'"),
        ("0 - 1", "bad entry '0 - 1'"),
        ("all", "bad entry 'all'"),
        ("nc0", "bad entry 'nc0'"),
        ("²", "bad entry '²'"),
        ("1_0", "bad entry '1_0'"),
        ("0;1", "bad entry '0;1'"),
        ("3-0", "the range '3-0' runs backwards"),
        ("0-3,2", "overlap: core 2 is named twice"),
        ("1,1", "overlap: core 1 is named twice"),
        ("5-9,0,7-12", "overlap: core 7 is named twice"),
        ("9" * 5000, "bad entry '" + "9" * 40 + "…'"),
    ],
)
def test_faults(text: str, words: str) -> None:
    """What is malformed, or names a core twice, names none, and says why."""
    found = parse_cores(text)
    assert (found.spans, found.fault) == ((), words)


@pytest.mark.parametrize(
    ("text", "count", "words"),
    [
        ("0-3", 4, None),
        ("0-3", 3, "core 3 is out of range: there are 3 cores, numbered from 0"),
        ("1", 1, "core 1 is out of range: there is 1 core, number 0"),
        ("0,99", 4, "core 99 is out of range: there are 4 cores, numbered from 0"),
        ("0-" + "9" * 4000, 4, f"core {'9' * 40}… is out of range: there are 4 cores, numbered from 0"),
    ],
)
def test_out_of_range(text: str, count: int, words: str | None) -> None:
    """A core beyond the last is told with the numbers that exist; a range without end fills no memory."""
    assert parse_cores(text).fault_beyond(count) == words


@given(st.lists(ENTRY, max_size=6))
def test_against_a_plain_reading(entries: list[str]) -> None:
    """Whatever the entries are: the cores of a plain reading, or a fault where that finds something wrong."""
    text = ",".join(entries)
    expected: list[int] | None = []
    for item in text.split(","):
        ends = re.fullmatch(r"([0-9]{1,4000})(?:-([0-9]{1,4000}))?", item.strip(), re.ASCII)
        if ends is None or int(ends[2] or ends[1]) < int(ends[1]):
            expected = None
            break
        expected = None if expected is None else [*expected, *range(int(ends[1]), int(ends[2] or ends[1]) + 1)]
    if expected is not None and len(set(expected)) < len(expected):
        expected = None
    found = parse_cores(text)
    assert (found.fault is None) == (expected is not None)
    assert list(found.numbers()) == (expected or [])


@given(st.text())
def test_any_text_is_an_answer(text: str) -> None:
    """Cores or a fault, never both, never an exception."""
    found = parse_cores(text)
    assert bool(found.spans) == (found.fault is None)
    assert parse_number(text) is None or text.strip().isdigit()


@given(st.sets(st.integers(0, 60)))
def test_what_is_written_is_read(numbers: set[int]) -> None:
    """The list that we write names what it was written from."""
    cores = tuple(sorted(numbers))
    assert tuple(parse_cores(format_cores(cores)).numbers()) == cores


@pytest.mark.parametrize(
    ("text", "number"), [("4", 4), (" 0 ", 0), ("", None), ("-1", None), ("4.0", None), ("four", None), ("²", None)]
)
def test_numbers(text: str, number: int | None) -> None:
    """A whole number is digits and nothing else."""
    assert parse_number(text) == number
