"""The grammar of the masks that torch reads, on its own. Platforms add what their driver makes of it."""

from __future__ import annotations

import pytest

from hardpoint import InMemoryMachine
from hardpoint._device_mask import choose, parse_mask
from hardpoint._start_method import has_open

IDS = ("GPU-aaaa1111", "GPU-aaaa2222", None, "GPU-bbbb")


@pytest.mark.parametrize(
    ("text", "places"),
    [
        (None, (0, 1, 2, 3)),
        ("2,0", (2, 0)),
        ("1gpu2, +3", (1, 3)),
        ("0,-1,1", (0,)),
        ("0,,1", (0,)),
        ("0,9,1", (0,)),
        ("0,1,0", ()),
        ("", ()),
        ("none", ()),
        ("9" * 5000, ()),
        ("GPU-bbbb,GPU-aaaa1", (3, 0)),
        ("GPU-bbbb,0", (3,)),
        ("GPU-bbbb,GPU-bbbb", ()),
        ("GPU-b,GPU-bb", ()),
        ("GPU-aaaa", ()),
        ("GPU-cccc", ()),
    ],
)
def test_devices_under_a_mask(text: str | None, places: tuple[int, ...]) -> None:
    """Their places in the driver's order; a mask that ends early or leaves nothing says why."""
    mask = parse_mask(text)
    choice = choose(mask, IDS)
    assert choice.places == places
    assert len(choice.visible_ids) == len(places)
    whole = text is None or len(places) == len(text.split(","))
    assert (choice.fault is None) is whole
    assert mask.is_empty is (text is not None and not mask.entries)


@pytest.mark.parametrize("text", ["", " ", "-1", "-1,0", " -2", "none", "None", "void", "NoDevFiles", "none,0"])
def test_the_usual_ways_of_hiding_all(text: str) -> None:
    """They leave nothing, and are meant to."""
    assert parse_mask(text).is_empty
    assert parse_mask(text).is_wish


@pytest.mark.parametrize("text", [None, "0", ",1", "abc", "0,0", "0,-1", "nonesuch", "GPU-typo", "MIG-x", "-", "7"])
def test_other_masks_are_no_wish_to_hide_all(text: str | None) -> None:
    """What leaves nothing and is none of those ways is a mistake."""
    assert not parse_mask(text).is_wish


def test_instances() -> None:
    """Ids of MIG instances are a kind of their own."""
    assert parse_mask("MIG-1,MIG-2").entries == ("MIG-1", "MIG-2")
    assert parse_mask("MIG-1,GPU-2").entries == ("MIG-1",)


def test_open_device_nodes() -> None:
    """What a child of a fork would inherit, as the kernel lists it; nothing where it does not."""
    machine = InMemoryMachine(
        files={"/dev/chip0": "", "/proc/self/fd/.keep": ""}, links={"/proc/self/fd/7": "/dev/chip0"}
    )
    assert has_open(machine, "/dev/chip0")
    assert not has_open(machine, "/dev/chip1")
    assert not has_open(InMemoryMachine(), "/dev/chip0")
