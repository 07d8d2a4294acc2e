from __future__ import annotations

import pytest

from hardpoint import ReasonCode
from hardpoint._torch_build import TorchBuild
from hardpoint_rocm._arch import parse_arch
from hardpoint_rocm._torch_build import judge


def arches(*names: str) -> list[object]:
    """Parsed names."""
    return [parse_arch(name) for name in names]


@pytest.mark.parametrize(
    ("names", "needed", "example"),
    [
        (["gfx90a"], "5.0", "6.4"),
        (["gfx942"], "6.0", "6.4"),
        (["gfx942", "gfx950"], "7.0", "7.0"),
        (["gfx1201"], "6.4", "6.4"),
        (["gfx1100", "gfx1036"], "5.7", "6.4"),
    ],
)
def test_other_build(names: list[str], needed: str, example: str) -> None:
    """Another build refuses, and the remedy names the release of ROCm that all of the devices need, and a wheel."""
    refusal, note = judge(TorchBuild("2.13.0", "cpu"), arches(*names))  # type: ignore[arg-type]
    assert refusal is not None
    assert note is None
    assert refusal.code is ReasonCode.OTHER_BUILD
    assert refusal.message == "torch 2.13.0 is built for the CPU only, not for ROCm"
    assert refusal.remedy == (
        f"install a torch wheel for ROCm {needed} or later (its version ends in +rocm{example}, for example): "
        f"pip install torch --index-url https://download.pytorch.org/whl/rocm{example}"
    )


@pytest.mark.parametrize("names", [[], ["gfx1036"], ["gfx1250"]])
def test_unknown_release(names: list[str]) -> None:
    """Where nobody knows which release supports a device, the remedy names none."""
    refusal, _ = judge(TorchBuild("2.13.0", "cuda", "12.8"), [*arches(*names), None])  # type: ignore[list-item]
    assert refusal is not None
    assert refusal.remedy == "install a torch wheel for ROCm (its version ends in +rocm and a number)"


def test_what_is_only_a_note() -> None:
    """No torch, an unknown build, and one for a release before the device's refuse nothing."""
    new = arches("gfx950")
    assert judge(TorchBuild("2.9", "hip", "7.0.51831"), new) == (None, None)  # type: ignore[arg-type]
    assert judge(TorchBuild("2.9", "hip", "odd"), new) == (None, None)  # type: ignore[arg-type]
    for build, code, words in (
        (TorchBuild(None, None), ReasonCode.NOT_INSTALLED, "torch is not installed"),
        (TorchBuild("2.9", None), ReasonCode.OTHER, "does not say in its files"),
        (TorchBuild("2.9", "hip", "6.2"), ReasonCode.KERNEL_ARCH, "gfx950 is supported from 7.0 on"),
    ):
        refusal, note = judge(build, new)  # type: ignore[arg-type]
        assert refusal is None
        assert note is not None
        assert (note.code, words in note.message) == (code, True)
