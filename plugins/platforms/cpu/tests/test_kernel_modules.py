from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hardpoint import Device, InMemoryMachine, KernelModule, Reason, ReasonCode
from hardpoint_cpu._detect import detect
from hardpoint_cpu._kernel_modules import BUILDS, DISTRIBUTION, GROUP, OPERATORS, kernel_modules

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., InMemoryMachine]


def of(machine: InMemoryMachine) -> dict[str, KernelModule]:
    """The machine's modules by the last part of their names."""
    return {module.name.rpartition(".")[2]: module for module in kernel_modules(detect(machine).devices[0])}


def tried(machine: InMemoryMachine) -> list[str]:
    """Those that would be imported, in order."""
    return [name for name, module in of(machine).items() if module.unsupported is None]


def refusal(machine: InMemoryMachine, name: str) -> Reason:
    """Why that one is not tried."""
    reason = of(machine)[name].unsupported
    assert reason is not None
    return reason


def test_every_module_is_an_alternative_of_one_group(make_machine: Make) -> None:
    """All promise the same operators, are optional, and come with one distribution that need not be installed."""
    modules = of(make_machine()).values()
    assert {module.name for module in modules} == {
        f"hardpoint_cpu_native.{name}" for name in ("_amx", "_avx512_bf16", "_avx512", "_avx2", "_neon")
    }
    assert {(module.group, module.distribution, tuple(module.operators), module.required) for module in modules} == {
        (GROUP, DISTRIBUTION, OPERATORS, False)
    }


@pytest.mark.parametrize(
    ("cpu", "names"),
    [
        ("nehalem", []),
        ("haswell", ["_avx2"]),
        ("skylake", ["_avx512", "_avx2"]),
        ("cooper lake", ["_avx512_bf16", "_avx512", "_avx2"]),
        ("sapphire rapids", ["_amx", "_avx512_bf16", "_avx512", "_avx2"]),
    ],
)
def test_widest_first(make_machine: Make, cpu: str, names: list[str]) -> None:
    """What the system has switched on is tried, the widest first, and the narrower ones behind it."""
    assert tried(make_machine(cpu, probes={"cpu.amx": True})) == names


def test_arm(make_arm_machine: Make) -> None:
    """On Arm with BF16 its own module is tried and no x86 module is."""
    assert tried(make_arm_machine("grace")) == ["_neon"]
    assert refusal(make_arm_machine("grace"), "_amx") == Reason(
        code=ReasonCode.KERNEL_ARCH,
        message="hardpoint_cpu_native._amx is built for x86_64; this CPU is aarch64",
        requested="aarch64",
        accepted="x86_64",
    )


def test_arm_without_bf16(make_arm_machine: Make) -> None:
    """The module is built with the BF16 extension, which Armv8.2 lacks."""
    assert tried(make_arm_machine("graviton 2")) == []
    assert refusal(make_arm_machine("graviton 2"), "_neon").requested == ("bf16",)


def test_name_of_a_model_chooses_nothing(make_machine: Make) -> None:
    """A part that is known for AVX-512 and AMX, without their flags, gets the AVX2 module; others say why not."""
    machine = make_machine("haswell", model="Intel(R) Xeon(R) Platinum 8480+")
    assert tried(machine) == ["_avx2"]
    assert refusal(machine, "_avx512") == Reason(
        code=ReasonCode.CAPABILITY,
        message=(
            "hardpoint_cpu_native._avx512 needs avx512f, avx512bw, avx512dq, avx512vl, "
            "which the system does not show on every usable CPU"
        ),
        requested=("avx512f", "avx512bw", "avx512dq", "avx512vl"),
        accepted="a CPU with avx2, fma, f16c, avx512f, avx512bw, avx512dq, avx512vl",
    )


def test_avx512_without_bf16(make_machine: Make) -> None:
    """The bfloat16 module needs its own flag beside AVX-512's."""
    assert refusal(make_machine("skylake"), "_avx512_bf16").message == (
        "hardpoint_cpu_native._avx512_bf16 needs avx512_bf16, which the system does not show on every usable CPU"
    )


def test_bf16_without_avx512(make_machine: Make) -> None:
    """One flag alone does not make up for those that it builds on."""
    assert tried(make_machine(["avx2 fma f16c avx512_bf16"])) == ["_avx2"]


def test_tiles_that_are_not_permitted(make_machine: Make) -> None:
    """The reason is the kernel's refusal, and the next module is tried."""
    machine = make_machine("sapphire rapids", probes={"cpu.amx": PermissionError(1, "Operation not permitted")})
    assert refusal(machine, "_amx") == Reason(
        code=ReasonCode.PERMISSION,
        message="AMX not permitted: PermissionError: [Errno 1] Operation not permitted",
        requested=("amx_tile", "amx_bf16", "amx_int8"),
    )
    assert tried(machine)[0] == "_avx512_bf16"


def test_tiles_are_not_the_only_thing_missing(make_machine: Make) -> None:
    """Where a virtual machine shows tiles and hides AVX-512's bfloat16, both are named."""
    flags = "avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512vbmi amx_tile amx_bf16 amx_int8"
    machine = make_machine([flags], probes={"cpu.amx": False})
    assert refusal(machine, "_amx").requested == ("avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")


def test_only_amx_has_something_to_set_up(make_machine: Make) -> None:
    """The permission is asked for when the module is about to be imported, not before."""
    setups = {name: module.setup for name, module in of(make_machine()).items() if module.setup is not None}
    assert setups == {"_amx": "hardpoint_cpu._amx:request_permission"}


@pytest.mark.parametrize("architecture", ["riscv64", "s390x", "ppc64le", "i686", ""])
def test_family_without_a_module(architecture: str) -> None:
    """Elsewhere every module is listed, none is tried, and each says what it is built for."""
    machine = InMemoryMachine(system="Linux", architecture=architecture)
    assert tried(machine) == []
    assert {module.unsupported.code for module in of(machine).values() if module.unsupported} == {
        ReasonCode.KERNEL_ARCH
    }


def test_unknown_cpu() -> None:
    """A device of which nothing is known, as a simulation may have it, loads nothing."""
    modules = kernel_modules(Device(index=0, name="CPU"))
    assert [module.unsupported is None for module in modules] == [False] * len(BUILDS)


def test_order_goes_from_wide_to_narrow() -> None:
    """A module that needs all that another needs, and more, stands before it."""
    for position, build in enumerate(BUILDS):
        later = BUILDS[position + 1 :]
        assert not any(set(build.features) < set(other.features) for other in later)


@pytest.mark.checkout
def test_readme_lists_what_each_module_needs() -> None:
    """The README's table has every module, every feature that it needs beyond the narrower one, and the operators."""
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    rows = {
        line.split("|")[1].strip(" `"): line
        for line in readme.splitlines()
        if line.startswith("| `hardpoint_cpu_native")
    }
    assert set(rows) == {build.name for build in BUILDS}
    for build, narrower in zip(BUILDS, (*BUILDS[1:], None), strict=True):
        inherited = set(narrower.features) if narrower is not None and narrower.family == build.family else set()
        assert set(re.findall(r"`(\w+)`", rows[build.name])) == set(build.features) - inherited
    assert all(f"`{name}`" in readme for name in OPERATORS)
