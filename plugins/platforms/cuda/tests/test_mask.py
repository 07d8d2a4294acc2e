from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardpoint_cuda import _mask
from hardpoint_cuda._mask import choose, choose_instance, parse_mask

if TYPE_CHECKING:
    from collections.abc import Sequence

FOUR = ("GPU-aaa1-11", "GPU-bbb2-22", "GPU-bbb3-33", "GPU-ccc4-44")


def chosen(text: str | None, uuids: Sequence[str | None] = FOUR) -> list[int]:
    """The places of the devices that a mask leaves."""
    return list(choose(parse_mask(text), uuids).places)


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("-1,0", []),
        ("NoDevFiles", []),
        ("void", []),
        ("none", []),
        ("0,-1,1", [0]),
        ("0,0", []),
        ("0,1,0", []),
        ("1,0", [1, 0]),
        (" 0 , 1 ", [0, 1]),
        ("0,", [0]),
        ("0,,1", [0]),
        ("1gpu2,2ampere", [1, 2]),
        ("+1", [1]),
        ("GPU-aaa1,0", [0]),
        ("0,GPU-aaa1", [0]),
        ("99,0", []),
        ("0,99,1", [0]),
        ("00,1", [0, 1]),
        ("0,00", []),
        ("+", []),
        ("+-1", []),
        ("9" * 5000, []),
    ],
)
def test_table(text: str | None, devices: list[int]) -> None:
    """B03: the mask is ordered, ends at the first bad entry, reads numbers leniently and is voided by a repetition."""
    assert chosen(text) == devices


def test_first_entry_fixes_the_kind() -> None:
    """B03: after an id only ids count, after a number only numbers."""
    assert parse_mask("GPU-a,0").entries == ("GPU-a",)
    assert parse_mask("0,GPU-a").entries == ("0",)
    assert parse_mask("MIG-m,GPU-a").entries == ("MIG-m",)


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("GPU-bbb2-22", [1]),
        ("GPU-bbb2-22,GPU-aaa1-11", [1, 0]),
        ("GPU-c", [3]),
        ("GPU-bbb", []),
        ("GPU-aaa1-11,GPU-aaa1", []),
        ("GPU-aaa1-11,GPU-aaa1-11", []),
        ("GPU-aaa1-11,GPU-zzz,GPU-ccc4-44", [0]),
        ("GPU-zzz", []),
        ("GPU-", []),
        (" GPU-aaa1-11", []),
    ],
)
def test_ids(text: str, devices: list[int]) -> None:
    """An id, whole or as much of it as means one device, stands for it; the order is the mask's."""
    assert chosen(text) == devices


def test_prefix_of_the_only_device() -> None:
    """The bare prefix means a device where there is one; devices of unknown id are none that an id could mean."""
    assert chosen("GPU-", ["GPU-a", None]) == [0]
    assert chosen("GPU-a", [None]) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("void", "bad entry 'void'"),
        ("0,0", "repeated entry '0'"),
        ("99", "'99' is out of range: there are 4 devices, numbered from 0"),
        ("GPU-a,0", "bad entry '0': it does not start with GPU-"),
        ("GPU-x", "'GPU-x' is no device of this machine; there are " + ", ".join(FOUR)),
        ("GPU-bbb", "'GPU-bbb' means several devices; there are " + ", ".join(FOUR)),
        ("GPU-aaa1-11,GPU-aaa1", "repeated entry 'GPU-aaa1': the device has been named before"),
    ],
)
def test_faults(text: str, fault: str) -> None:
    """B03: whatever ends a mask early is said in words, with the entry."""
    assert choose(parse_mask(text), FOUR).fault == fault


def test_no_fault() -> None:
    """A mask that is read to its end has none, and the visible ids are its entries."""
    choice = choose(parse_mask(" 2 ,0"), FOUR)
    assert choice == ((2, 0), ("2", "0"), None)
    assert choose(parse_mask(None), FOUR).visible_ids == (None,) * 4


def test_instances() -> None:
    """B01: the first MIG instance named is the one that the process sees, by either of its ids."""
    names = (("MIG-m1", "MIG-GPU-a/1/0"), ("MIG-m2", None), (None, "MIG-GPU-b/3/0"))
    assert choose_instance(parse_mask("MIG-m2"), names) == ((1,), ("MIG-m2",), None)
    assert choose_instance(parse_mask("MIG-GPU-b/3/0"), names).places == (2,)
    several = choose_instance(parse_mask("MIG-m1,MIG-m2"), names)
    assert several == ((0,), ("MIG-m1",), "a process sees one MIG instance: 1 more named here are left out")
    unknown = choose_instance(parse_mask("MIG-x"), names)
    assert unknown == ((), (), "'MIG-x' is no MIG instance of this machine; there are MIG-m1, MIG-m2")
    assert (
        choose_instance(parse_mask("MIG-x"), ()).fault == "'MIG-x' is no MIG instance of this machine; there are none"
    )


MASKS = st.one_of(
    st.text(alphabet="0123456789,+- GPUMIGabx", max_size=24),
    st.lists(st.sampled_from(["0", "1", "01", "-1", "+2", "GPU-a", "GPU-ab", "MIG-a", "", " 3 ", "x"])).map(",".join),
    st.text(max_size=12),
)


@given(MASKS, st.lists(st.one_of(st.none(), st.sampled_from(["GPU-a", "GPU-ab", "GPU-b"])), max_size=4))
def test_any_text(text: str, uuids: list[str | None]) -> None:
    """Whatever the text, no device comes twice, each exists and has its visible id, and nothing left means a fault."""
    mask = parse_mask(text)
    choice = choose(mask, uuids) if mask.kind != _mask.INSTANCES else None
    if choice is not None:
        assert len(set(choice.places)) == len(choice.places) == len(choice.visible_ids)
        assert all(0 <= place < len(uuids) for place in choice.places)
        assert choice.places or choice.fault
    assert mask.entries or mask.fault


@pytest.fixture(scope="module")
def torch_cuda() -> Any:
    """The module of torch, whose parsers are private: there are no public ones."""
    module = pytest.importorskip("torch.cuda")
    if not hasattr(module, "_parse_visible_devices") or not hasattr(module, "_transform_uuid_to_ordinals"):
        pytest.skip("this torch has no parser of the mask")
    return module


@given(text=MASKS.filter(lambda text: text.isascii() and "\0" not in text))
def test_against_torch(torch_cuda: Any, text: str) -> None:
    """What is parsed is what torch's own parser makes of the variable, wherever that does not fail."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", text)
        try:
            theirs = torch_cuda._parse_visible_devices()
        except ValueError:
            # A lone sign is no number to Python; strtoul, which the driver uses, reads nothing.
            assert "+" in text or "-" in text
            return
    mask = parse_mask(text)
    ours = list(mask.numbers) if mask.kind == _mask.NUMBERS else list(mask.entries)
    assert ours == theirs


@given(
    entries=st.lists(st.sampled_from(["GPU-a", "GPU-ab", "GPU-abc", "GPU-b", "GPU-"]), min_size=1, max_size=4),
    uuids=st.lists(st.sampled_from(["GPU-ab1", "GPU-abc2", "GPU-b3", "GPU-c4"]), unique=True, max_size=4),
)
def test_abbreviations_against_torch(torch_cuda: Any, entries: list[str], uuids: list[str]) -> None:
    """Ids stand for the devices that torch takes them for."""
    mask = parse_mask(",".join(entries))
    if mask.entries:
        assert list(choose(mask, uuids).places) == torch_cuda._transform_uuid_to_ordinals(list(mask.entries), uuids)
