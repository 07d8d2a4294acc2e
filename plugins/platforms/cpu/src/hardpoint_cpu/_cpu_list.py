"""The kernel's list of CPUs or nodes: ``0-3,8,10-11``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

HIGHEST_ID: Final = 1 << 16
"""Ids from here on are damage: Linux has at most 8192 CPUs, and a range without an end must not fill the memory."""


def parse_cpu_list(text: str) -> frozenset[int]:
    """The ids in the list. An item that is none is left out: half a list is a better answer than a crash."""
    ids: set[int] = set()
    for item in text.split(","):
        first, dash, last = item.strip().partition("-")
        if not _is_id(first) or (dash and not _is_id(last)):
            continue
        ids.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(ids)


def _is_id(text: str) -> bool:
    # isdigit alone takes '²', and a number of a million digits would take a while.
    return text.isascii() and text.isdigit() and len(text) < 10 and int(text) < HIGHEST_ID


def format_cpu_list(ids: Iterable[int]) -> str:
    """The shortest list, in the kernel's own form."""
    ranges: list[list[int]] = []
    for item in sorted(set(ids)):
        if ranges and item == ranges[-1][1] + 1:
            ranges[-1][1] = item
        else:
            ranges.append([item, item])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
