from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardpoint_rocm._arch import Arch, arch_of_override, arch_of_version, capability_of, parse_arch


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gfx942", Arch("gfx942", 9, 4, 2)),
        ("gfx942:sramecc+:xnack-", Arch("gfx942", 9, 4, 2, frozenset(("sramecc+", "xnack-")))),
        ("GFX90A", Arch("gfx90a", 9, 0, 10)),
        (" gfx90a:xnack+ ", Arch("gfx90a", 9, 0, 10, frozenset(("xnack+",)))),
        ("gfx950", Arch("gfx950", 9, 5, 0)),
        ("gfx1100", Arch("gfx1100", 11, 0, 0)),
        ("gfx1201", Arch("gfx1201", 12, 0, 1)),
        ("gfx1250", Arch("gfx1250", 12, 5, 0)),
        ("gfx9-4-generic", Arch("gfx9-4-generic", 9, 4, None)),
        ("gfx11-generic", Arch("gfx11-generic", 11, None, None)),
        ("gfx10-3-generic", Arch("gfx10-3-generic", 10, 3, None)),
    ],
)
def test_names(text: str, expected: Arch) -> None:
    """A name is read in any case, with its options; the last two of its digits are hexadecimal."""
    assert parse_arch(text) == expected


@pytest.mark.parametrize(
    "value", ["", "gfx", "gfx9", "gfx94", "gfx000", "gfx9422f1", "sm_90", "gfx942:xnack", "942", None, 942, b"gfx942"]
)
def test_what_is_no_name(value: object) -> None:
    """What is no name of an architecture, or that of a CPU, is None."""
    assert parse_arch(value) is None


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (90402, "gfx942"), (90010, "gfx90a"), (90500, "gfx950"), (90008, "gfx908"), (90012, "gfx90c"),
        (100300, "gfx1030"), (110000, "gfx1100"), (110501, "gfx1151"), (120001, "gfx1201"), (120500, "gfx1250"),
    ],
)  # fmt: skip
def test_kernel_numbers(number: int, name: str) -> None:
    """The kernel writes a version in decimal, two digits for each part, of which the name has one hexadecimal one."""
    arch = arch_of_version(number)
    assert arch is not None
    assert arch.name == name


@pytest.mark.parametrize("number", [0, 1, 9999, 90099, 91600, -1, None, "90402", True, 10**12])
def test_what_is_no_kernel_number(number: Any) -> None:
    """A CPU's 0, and a number whose parts no name can have, are None."""
    assert arch_of_version(number) is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("10.3.0", "gfx1030"), ("9.0.10", "gfx90a"), (" 11.0.0", "gfx1100"), ("11.0.0\n", None), ("10.3", None),
        ("gfx1030", None), ("", None), (None, None), ("1.2.3.4", None), ("10.3.99", None),
    ],
)  # fmt: skip
def test_override(text: str | None, name: str | None) -> None:
    """HSA_OVERRIDE_GFX_VERSION is three decimal numbers; anything else says nothing."""
    arch = arch_of_override(text)
    assert (arch and arch.name) == name


@pytest.mark.parametrize(
    ("name", "family", "has", "lacks"),
    [
        ("gfx908", "CDNA1", {"bf16", "mfma", "wave64"}, {"fp8", "wmma", "wave32"}),
        ("gfx90a", "CDNA2", {"bf16", "mfma", "wave64"}, {"fp8", "fp8_fnuz", "wmma", "mx"}),
        ("gfx942", "CDNA3", {"bf16", "mfma", "fp8", "fp8_fnuz", "xf32", "wave64"}, {"fp8_ocp", "mx", "wmma"}),
        ("gfx950", "CDNA4", {"mfma", "fp8", "fp8_ocp", "mx", "fp4", "fp6"}, {"fp8_fnuz", "xf32"}),
        ("gfx1030", "RDNA2", {"fp16", "wave32"}, {"bf16", "wmma", "fp8"}),
        ("gfx1100", "RDNA3", {"bf16", "wmma", "wave32"}, {"fp8", "mfma", "wave64"}),
        ("gfx1151", "RDNA3.5", {"bf16", "wmma"}, {"fp8"}),
        ("gfx1201", "RDNA4", {"bf16", "wmma", "fp8", "fp8_ocp"}, {"fp8_fnuz", "mx"}),
        ("gfx1250", "CDNA5", {"bf16", "wmma", "fp8", "fp8_ocp", "mx", "fp4"}, {"fp8_fnuz", "mfma", "wave64"}),
        ("gfx906", None, {"fp16", "wave64"}, {"bf16", "mfma"}),
        ("gfx9-4-generic", "CDNA3", {"mfma", "fp8"}, {"wmma"}),
        ("gfx11-generic", "RDNA3", {"wmma"}, {"fp8"}),
        ("gfx803", None, set(), {"fp16"}),
    ],
)
def test_features(name: str, family: str | None, has: set[str], lacks: set[str]) -> None:
    """Features belong to architectures by name; the encoding of 8-bit floating point is FNUZ on gfx94x alone."""
    arch = parse_arch(name)
    assert arch is not None
    capability = capability_of(arch)
    assert capability is not None
    assert (capability.runtime, capability.arch, capability.version, arch.family) == ("rocm", name, None, family)
    assert has <= capability.features
    assert not lacks & capability.features


def test_options_are_no_part_of_the_architecture() -> None:
    """Capabilities are compared by the bare name; without one there is none."""
    assert capability_of(parse_arch("gfx90a:xnack+")) == capability_of(parse_arch("GFX90A"))
    assert capability_of(None) is None


NAMES = st.from_regex(r"\A(gfx|GFX)?[0-9a-f-]{0,6}(generic)?(:(xnack|sramecc)[+-]?)?\Z") | st.text(max_size=12)


@given(st.one_of(NAMES, st.integers(), st.none(), st.binary(max_size=4)))
def test_any_name(value: Any) -> None:
    """Whatever it is, it is an architecture whose name reads as itself, or None."""
    arch = parse_arch(value)
    if arch is not None:
        assert parse_arch(arch.name) == arch._replace(options=frozenset())
        assert capability_of(arch) is not None


@given(st.integers(min_value=-10, max_value=10**7))
def test_any_kernel_number(number: int) -> None:
    """A number is None or the architecture with its three parts."""
    arch = arch_of_version(number)
    if arch is not None:
        assert (arch.major, arch.minor, arch.stepping) == (number // 10000, number // 100 % 100, number % 100)
