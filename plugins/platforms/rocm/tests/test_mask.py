from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hardpoint_rocm._mask import CUDA, HIP, ROCR, choose, empty_choice, read_hip, read_rocr, read_torch

if TYPE_CHECKING:
    from collections.abc import Mapping

FOUR = ("GPU-aaa0000000000011", "GPU-bbb0000000000022", "GPU-bbb0000000000033", "GPU-ccc0000000000044")


def places(values: Mapping[str, str]) -> list[int]:
    """The devices that the variables leave, of four."""
    return list(choose(values, FOUR).places)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, [0, 1, 2, 3]),
        ({CUDA: "1"}, [1]),
        ({HIP: "1"}, [1]),
        ({ROCR: "2,3"}, [2, 3]),
        ({ROCR: "2,3", HIP: "1"}, [3]),
        ({ROCR: "3,2", HIP: "1,0"}, [2, 3]),
        ({ROCR: "2,3", CUDA: "1"}, [3]),
        ({ROCR: "2,3", HIP: "GPU-ccc"}, [3]),
        ({HIP: "GPU-ccc,GPU-aaa"}, [3, 0]),
        ({HIP: "1", CUDA: "1"}, [1]),
        ({HIP: "3,1,0,2"}, [3, 1, 0, 2]),
    ],
)
def test_composition(values: dict[str, str], expected: list[int]) -> None:
    """B06: the runtime's variable comes first, and HIP picks of what it leaves, in its own order; no warning."""
    choice = choose(values, FOUR)
    assert (list(choice.places), choice.refusal, choice.warnings) == (expected, None, ())


def test_more_than_the_runtime_leaves() -> None:
    """B06: asking HIP for more devices than are left names both variables, whichever of HIP's it is."""
    assert choose({ROCR: "1", HIP: "0,1"}, FOUR)[:4] == (
        (), (), "HIP_VISIBLE_DEVICES='0,1' asks for 2 devices, and ROCR_VISIBLE_DEVICES='1' leaves 1", (),
    )  # fmt: skip
    assert "CUDA_VISIBLE_DEVICES='0,1' asks for 2 devices" in str(choose({ROCR: "1", CUDA: "0,1"}, FOUR).refusal)


def test_numbers_of_the_whole_machine_after_the_runtime() -> None:
    """B06: a number that means a device of the whole machine is out of range where the runtime leaves fewer."""
    refusal = str(choose({ROCR: "2,3", HIP: "2"}, FOUR).refusal)
    assert "HIP_VISIBLE_DEVICES='2' leaves no device: '2' is out of range: there are 2 devices" in refusal
    assert "ROCR_VISIBLE_DEVICES='2,3'" in refusal


def test_two_that_disagree() -> None:
    """B06: HIP's own variable beats CUDA's where they differ, and a warning names both with their values."""
    choice = choose({HIP: "0", CUDA: "1"}, FOUR)
    assert choice.places == (0,)
    (warning,) = choice.warnings
    assert warning.startswith("HIP_VISIBLE_DEVICES='0' and CUDA_VISIBLE_DEVICES='1' disagree, and HIP_VISIBLE_DEVICES")
    assert "CUDA_VISIBLE_DEVICES='1' disagree" in str(choose({HIP: "", CUDA: "1"}, FOUR).refusal)


@pytest.mark.parametrize(("hip", "cuda"), [("0,1", "0, 1"), ("1", "1 "), ("1", "+1"), ("", "-1")])
def test_two_that_say_the_same(hip: str, cuda: str) -> None:
    """B06: texts that leave the same devices in the same order are no contradiction, however they are written."""
    choice = choose({HIP: hip, CUDA: cuda}, FOUR)
    assert "disagree" not in f"{choice.warnings} {choice.refusal}"


@pytest.mark.parametrize("variable", [HIP, CUDA])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []), ("-1", []), ("-1,0", []), ("NoDevFiles", []), ("void", []), ("none", []), ("0,-1,1", [0]),
        ("0,0", []), ("0,1,0", []), ("1,0", [1, 0]), (" 0 , 1 ", [0, 1]), ("0,", [0]), ("0,,1", [0]),
        ("1gpu2,2ampere", [1, 2]), ("+1", [1]), ("GPU-a,0", [0]), ("0,GPU-a", [0]), ("99,0", []), ("0,99,1", [0]),
        ("MIG-m1", []),
    ],
)  # fmt: skip
def test_table(variable: str, text: str, expected: list[int]) -> None:
    """B03: what torch reads in CUDA's variable it reads in HIP's as well."""
    assert places({variable: text}) == expected


@pytest.mark.parametrize(
    ("text", "theirs"),
    [(" 0 , 1 ", "no device"), ("1gpu2,2", "no device"), ("+1", "no device"), ("0,1,", None), ("01", "no device")],
)
def test_where_hip_reads_something_else(text: str, theirs: str | None) -> None:
    """A mask that torch and HIP read differently is told, with what to write."""
    warnings = [text for text in choose({HIP: text}, FOUR).warnings if "to torch and" in text]
    assert len(warnings) == (theirs is not None)
    if theirs is not None:
        assert f"to torch and {theirs} to HIP; write HIP_VISIBLE_DEVICES=" in warnings[0]


@pytest.mark.parametrize(
    ("text", "expected", "fault"),
    [
        ("", (), "empty"),
        ("0", (0,), None),
        ("0,", (0,), None),
        (" 1 , 0", (1, 0), None),
        ("0x2,01", (2, 1), None),
        ("gpu-AAA0,3", (0, 3), None),
        ("GPU-bbb0000000000022", (1,), None),
        ("GPU-bbb", (), "'GPU-bbb' means several devices; there are "),
        ("GPU-", (), "'GPU-' means several devices"),
        ("0,GPU-zzz", (0,), "'GPU-zzz' is no device of this machine; there are "),
        ("0,0", (0,), "repeated entry '0'"),
        ("1,GPU-bbb0000000000022", (1,), "repeated entry 'GPU-bbb0000000000022'"),
        ("0,9", (0,), "'9' is out of range: there are 4 devices, numbered from 0"),
        ("-1,0", (), "'-1' is out of range"),
        ("0,1gpu", (0,), "bad entry '1gpu'"),
        ("void", (), "bad entry 'void'"),
        ("08", (), "bad entry '08'"),
        ("0,,1", (0,), "bad entry ''"),
        ("9" * 5000, (), "bad entry"),
    ],
)
def test_the_runtimes_grammar(text: str, expected: tuple[int, ...], fault: str | None) -> None:
    """The runtime reads numbers as C does and ids in any case, and stops at what is bad or comes again."""
    reading = read_rocr(text, FOUR)
    assert reading.places == expected
    assert (reading.fault or "").startswith(fault or "")
    assert (reading.fault is None) is (fault is None)


def test_cut_short() -> None:
    """What stood before a bad entry counts in both, and each warning shows its variable, value and entry."""
    choice = choose({ROCR: "0,1,x", HIP: "1,z"}, FOUR)
    assert choice.places == (1,)
    assert choice.warnings == (
        "ROCR_VISIBLE_DEVICES='0,1,x' is cut short: bad entry 'x'",
        "HIP_VISIBLE_DEVICES='1,z' is cut short: bad entry 'z'",
    )


def test_names() -> None:
    """A device is called what the last mask calls it; without one it has no such name."""
    assert choose({ROCR: "2,3", HIP: "1"}, FOUR).names == ("1",)
    assert choose({ROCR: "0x2,GPU-aaa"}, FOUR).names == ("0x2", "GPU-aaa")
    assert choose({}, FOUR).names == (None,) * 4


def test_the_runtimes_own_list() -> None:
    """Where the list is what the runtime shows already, its variable is not applied a second time."""
    assert choose({ROCR: "2,3", HIP: "1"}, FOUR[2:], is_rocr_applied=True).places == (1,)


@pytest.mark.parametrize(
    ("values", "is_empty"),
    [
        ({}, False), ({HIP: "0"}, False), ({HIP: "99"}, False), ({HIP: "GPU-x"}, False), ({ROCR: "99"}, False),
        ({HIP: ""}, True), ({CUDA: "-1"}, True), ({HIP: "0,0"}, True), ({ROCR: ""}, True), ({ROCR: "", HIP: "0"}, True),
        ({ROCR: "0,1", HIP: "void"}, True), ({HIP: "0", CUDA: ""}, False),
    ],
)  # fmt: skip
def test_what_leaves_nothing_anywhere(values: dict[str, str], is_empty: bool) -> None:
    """Masks that leave nothing whatever devices there are, are known without looking at any."""
    choice = empty_choice(values)
    assert (choice is not None) is is_empty
    if choice is not None:
        assert choice.refusal
        assert next(iter(values)) in choice.refusal or "HIP" in choice.refusal


TEXTS = st.one_of(
    st.text(alphabet="0123456789,+-x GPUabMI", max_size=20),
    st.lists(st.sampled_from(["0", "1", "01", "-1", "0x1", "GPU-a", "GPU-bbb", "MIG-a", "", " 3 ", "x"])).map(",".join),
    st.text(max_size=10),
)


@given(
    values=st.dictionaries(st.sampled_from([ROCR, HIP, CUDA]), TEXTS),
    uuids=st.lists(st.none() | st.sampled_from(FOUR), max_size=4),
)
def test_any_masks(values: dict[str, str], uuids: list[str | None]) -> None:
    """Whatever the texts, each device left exists, comes once and has a name, and nothing left means a reason."""
    choice = choose(values, uuids)
    assert len(set(choice.places)) == len(choice.places) == len(choice.names)
    assert all(0 <= place < len(uuids) for place in choice.places)
    assert choice.places or choice.refusal or not uuids
    if empty_choice(values) is not None:
        assert choice.places == ()


@pytest.fixture(scope="module")
def torch_cuda() -> Any:
    """The module of torch, whose parsers are private: there are no public ones."""
    module = pytest.importorskip("torch.cuda")
    if not hasattr(module, "_parse_visible_devices") or not hasattr(module, "_transform_uuid_to_ordinals"):
        pytest.skip("this torch has no parser of the mask")
    return module


@given(
    hip=st.none() | TEXTS.filter(lambda text: text.isascii() and "\0" not in text),
    cuda=st.none() | TEXTS.filter(lambda text: text.isascii() and "\0" not in text),
)
def test_against_torch(torch_cuda: Any, hip: str | None, cuda: str | None) -> None:
    """B06: which variable is taken, and what is read in it, is as torch does for a build for ROCm."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.version.hip", "7.0")
        patch.delenv(ROCR, raising=False)
        for name, text in ((HIP, hip), (CUDA, cuda)):
            if text is None:
                patch.delenv(name, raising=False)
            else:
                patch.setenv(name, text)
        try:
            theirs = torch_cuda._parse_visible_devices()
            if theirs and isinstance(theirs[0], str):
                # torch takes ids without their prefix and in lower case.
                known = [uuid.removeprefix("GPU-") for uuid in FOUR]
                theirs = torch_cuda._transform_uuid_to_ordinals(theirs, known)
        except ValueError:
            assume(False)
    values = {name: text for name, text in ((HIP, hip), (CUDA, cuda)) if text is not None}
    trimmed = []
    for number in theirs:
        if number >= len(FOUR):
            break
        trimmed.append(number)
    assert places(values) == trimmed


@given(hip=TEXTS, rocr=TEXTS)
def test_against_torch_where_it_raises(torch_cuda: Any, hip: str, rocr: str) -> None:
    """B06: where HIP asks for more entries than the runtime's variable has, torch raises, and here nothing is left."""
    assume(rocr.isascii() and hip.isascii() and "\0" not in rocr + hip)
    asked = read_torch(hip, (None,) * 64).places
    if len(asked) > len(read_rocr(rocr, FOUR).places):
        assert choose({ROCR: rocr, HIP: hip}, FOUR).places == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0,0,1", (0, 1)), ("aaa", ()), ("x-GPU-", ()), ("GPU-bbb", (1,)), ("0,GPU-zzz,1", (0,)), ("3,2", (3, 2))],
)
def test_hips_own_reading(text: str, expected: tuple[int, ...]) -> None:
    """HIP leaves repetitions out, takes the first device that an id is a part of, and stops at a bad entry."""
    assert read_hip(text, FOUR) == expected


@pytest.mark.parametrize(
    ("values", "is_wish"),
    [
        ({ROCR: ""}, True), ({ROCR: "-1"}, True), ({HIP: "-1"}, True), ({CUDA: "none"}, True),
        ({ROCR: "1", HIP: ""}, True), ({HIP: "", CUDA: ""}, True),
        ({ROCR: "9"}, False), ({ROCR: "x"}, False), ({HIP: "9"}, False), ({HIP: "0,0"}, False), ({CUDA: "abc"}, False),
        ({HIP: "", CUDA: "0"}, False), ({ROCR: "1", HIP: "0,1"}, False), ({ROCR: "1", HIP: "1"}, False),
    ],
)  # fmt: skip
def test_what_leaves_nothing_is_a_wish_or_a_mistake(values: dict[str, str], is_wish: bool) -> None:
    """B06: hiding every device in one of the usual ways is a wish, unless the other variable says otherwise."""
    choice = choose(values, FOUR)
    assert choice.refusal is not None
    assert choice.is_wish is is_wish


@pytest.mark.parametrize("name", [ROCR, HIP, CUDA])
def test_a_mask_of_any_length_is_told_in_a_few_words(name: str) -> None:
    """A message shows its beginning."""
    assert len(str(choose({name: "x" * 100_000}, FOUR).refusal)) < 400
