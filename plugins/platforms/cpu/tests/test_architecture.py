from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hardpoint_cpu._architecture import family_of, level_of, with_meanings

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.mark.parametrize(
    ("said", "family"),
    [
        ("x86_64", "x86_64"),
        ("AMD64", "x86_64"),
        ("arm64", "aarch64"),
        ("ARM64", "aarch64"),
        ("aarch64", "aarch64"),
        ("ppc64le", "ppc64le"),
        ("s390x", "s390x"),
        ("riscv64", "riscv64"),
        ("loongarch64", "loongarch64"),
        (" ", "unknown"),
        ("", "unknown"),
    ],
)
def test_family(said: str, family: str) -> None:
    """Every system's name of an architecture leads to one family, and one that nobody listed is its own."""
    assert family_of(said) == family


@pytest.mark.parametrize(
    ("family", "cpu", "level"),
    [
        ("x86_64", "k8", "x86-64"),
        ("x86_64", "nehalem", "x86-64-v2"),
        ("x86_64", "haswell", "x86-64-v3"),
        ("x86_64", "skylake", "x86-64-v4"),
        ("x86_64", "sapphire rapids", "x86-64-v4"),
        ("aarch64", "graviton 2", "armv8.2-a"),
        ("aarch64", "graviton 3", "armv8.4-a"),
        ("aarch64", "grace", "armv9-a"),
    ],
)
def test_level(flags: Mapping[str, str], family: str, cpu: str, level: str) -> None:
    """A CPU reaches the level whose features it has, all of them."""
    assert level_of(family, frozenset(flags[cpu].split())) == level


@pytest.mark.parametrize("missing", ["avx512cd", "movbe", "popcnt"])
def test_one_missing_feature_costs_the_level(flags: Mapping[str, str], missing: str) -> None:
    """Levels build on one another: what lacks a feature of a lower one does not reach a higher one."""
    assert level_of("x86_64", frozenset(flags["skylake"].split()) - {missing}) != "x86-64-v4"


def test_family_without_levels_is_its_own() -> None:
    """POWER and others are named as the system names them."""
    assert level_of("s390x", frozenset(("vx",))) == "s390x"


@pytest.mark.parametrize(
    ("family", "shown", "means"),
    [
        ("x86_64", "avx512_bf16", {"bf16"}),
        ("x86_64", "amx_tile amx_bf16", {"bf16"}),
        ("x86_64", "amx_bf16", set()),
        ("x86_64", "avx512_fp16", {"fp16"}),
        ("aarch64", "bf16", {"bf16"}),
        ("aarch64", "fphp asimdhp", {"fp16"}),
        ("aarch64", "fphp", set()),
        ("riscv64", "avx512_bf16", set()),
    ],
)
def test_names_that_mean_the_same_everywhere(family: str, shown: str, means: set[str]) -> None:
    """bf16 and fp16 say that the CPU multiplies in them, whatever its flags are called."""
    assert with_meanings(family, frozenset(shown.split())) & {"bf16", "fp16"} == means


def test_baseline_is_always_there() -> None:
    """A feature that the family guarantees counts though nothing shows it."""
    assert with_meanings("x86_64", frozenset()) >= {"sse2"}
    assert with_meanings("aarch64", frozenset()) >= {"asimd"}
    assert with_meanings("unknown", frozenset()) == frozenset()
