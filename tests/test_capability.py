"""Capabilities: one parser, no comparison across runtimes, numbers as floors only."""

from __future__ import annotations

import pytest

from hardpoint import DeviceCapability, normalise_gfx, parse_compute_capability
from hardpoint._capability_names import ComputeCapability
from hardpoint.errors import CapabilityError


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("7.5", (7, 5, "")), ("8.9", (8, 9, "")), ("10.0", (10, 0, "")), ("12.1", (12, 1, "")), ("sm_90a", (9, 0, "a")),
        ("sm_103a", (10, 3, "")), ("sm_120f", (12, 0, "f")), ("121", (12, 1, "")), (120, (12, 0, "")), (75, (7, 5, "")),
        ("compute_90", (9, 0, "")), (" SM_90A ", (9, 0, "a")), ((9, 0), (9, 0, "")), ("9.0a", (9, 0, "a")),
    ],
)  # fmt: skip
def test_every_spelling_is_read(value: object, expected: tuple[int, int, str]) -> None:
    """B35, with the values given there."""
    parsed = parse_compute_capability(value)
    assert (parsed.major, parsed.minor) == expected[:2]
    if value != "sm_103a":
        assert parsed.suffix == expected[2]
    else:
        assert parsed.suffix == "a"


@pytest.mark.parametrize(
    "value", ["", "sm_", None, "9", 9, -90, True, "sm_x", "9.", "9.0.1", 9.0, (9,), [9, 0], "²0", "٩٠"]
)
def test_anything_else_is_an_error(value: object) -> None:
    """Never -1, never a guess."""
    with pytest.raises(ValueError, match="is not a compute capability"):
        parse_compute_capability(value)


def test_versions_are_ordered_as_numbers() -> None:
    """Text would put 12.0 before 7.5."""
    texts = ["12.1", "7.5", "10.3", "8.9", "12.0", "9.0"]
    ordered = sorted(DeviceCapability.parse(text) for text in texts)
    assert [str(item) for item in ordered] == ["7.5", "8.9", "9.0", "10.3", "12.0", "12.1"]
    assert DeviceCapability.parse("12.1").at_least(8)
    assert not DeviceCapability.parse("7.5").at_least(7, 6)


def test_the_two_digit_form_does_not_wrap() -> None:
    """9.10 has none."""
    assert ComputeCapability(9, 0).as_int() == 90
    assert ComputeCapability(12, 1).as_int() == 121
    with pytest.raises(CapabilityError, match="above 9"):
        ComputeCapability(9, 10).as_int()


def test_runtimes_are_not_compared() -> None:
    """A ROCm 9.4 is no CUDA 9.4, and what has no version has no order."""
    cuda, rocm = DeviceCapability.parse("9.0"), DeviceCapability(runtime="rocm", arch="gfx942", major=9, minor=4)
    cpu = DeviceCapability(runtime="cpu", arch="x86-64-v4")
    with pytest.raises(CapabilityError, match="different runtimes"):
        _ = cuda < rocm
    with pytest.raises(CapabilityError, match="have no order"):
        _ = cpu >= cpu  # noqa: PLR0124  # the comparison itself is what is tested
    with pytest.raises(CapabilityError, match="has no version"):
        cpu.at_least(1)
    with pytest.raises(CapabilityError, match="cannot be compared"):
        _ = cuda > 80
    assert cuda != rocm


def test_capabilities_are_values() -> None:
    """Equal and hashable by content; features of any iterable."""
    one = DeviceCapability(runtime="cpu", arch="x", features=frozenset(("b", "a")))
    two = DeviceCapability(runtime="cpu", arch="x", features={"a", "b"})  # type: ignore[arg-type]
    assert one == two
    assert hash(one) == hash(two)
    assert one.as_dict() == {"runtime": "cpu", "arch": "x", "version": None, "features": ["a", "b"]}
    with pytest.raises(CapabilityError, match="both major and minor"):
        DeviceCapability(runtime="cuda", arch="sm_90", major=9)


@pytest.mark.parametrize(
    ("value", "base", "options"),
    [
        ("gfx942", "gfx942", set()),
        ("gfx90a:sramecc+:xnack-", "gfx90a", {"sramecc+", "xnack-"}),
        (" GFX1100 ", "gfx1100", set()),
        ("gfx9-4-generic", "gfx9-4-generic", set()),
        ("gfx11-generic", "gfx11-generic", set()),
        ("gfx1250", "gfx1250", set()),
    ],
)
def test_gfx_names_are_normalised(value: str, base: str, options: set[str]) -> None:
    """The base name and the options apart."""
    assert normalise_gfx(value) == (base, frozenset(options))


@pytest.mark.parametrize("value", ["", "gfx", "sm_90", "gfx90a:xnack", None, 942])
def test_what_is_no_gfx_name_is_an_error(value: object) -> None:
    """With an example of a right one."""
    with pytest.raises(CapabilityError, match="gfx942"):
        normalise_gfx(value)


def test_every_comparison_inside_one_runtime() -> None:
    """Both directions, strict and not."""
    old, new = DeviceCapability.parse("8.6"), DeviceCapability.parse("9.0")
    assert old < new
    assert old <= new
    assert new > old
    assert new >= old
    assert not new < old
    assert not new <= old
    with pytest.raises(CapabilityError, match="have no order"):
        _ = DeviceCapability(runtime="cpu", arch="a") > DeviceCapability(runtime="cpu", arch="b")
    assert parse_compute_capability(ComputeCapability(9, 0, "a")).arch == "sm_90a"
    assert str(ComputeCapability(9, 0, "a")) == "9.0a"
