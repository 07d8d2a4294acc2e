from __future__ import annotations

import pytest

from hardpoint import ReasonCode
from hardpoint._torch_build import TorchBuild
from hardpoint_cuda._torch_build import judge


@pytest.mark.parametrize(
    ("runtime", "version", "words"),
    [("cpu", None, "the CPU only"), ("hip", "6.4", "ROCm 6.4"), ("xpu", "1", "Intel's XPU 1")],
)
def test_other_build(runtime: str, version: str | None, words: str) -> None:
    """Another build refuses, and the remedy says which wheel the driver allows."""
    refusal, note = judge(TorchBuild("2.13.0", runtime, version), (12, 8))
    assert refusal is not None
    assert note is None
    assert (refusal.code, refusal.message) == (
        ReasonCode.OTHER_BUILD,
        f"torch 2.13.0 is built for {words}, not for CUDA",
    )
    assert refusal.remedy == (
        "install a torch wheel for CUDA 12.8 or an earlier 12.x (its version ends in +cu12 and a digit up to 8)"
    )
    unknown, _ = judge(TorchBuild("2.13.0", runtime, version), None)
    assert unknown is not None
    assert unknown.remedy == "install a torch wheel for CUDA (its version ends in +cu and a number)"


def test_what_is_only_a_note() -> None:
    """No torch, an unknown build, and a newer CUDA than the driver's refuse nothing."""
    assert judge(TorchBuild("2.13.0", "cuda", "12.8"), (12, 4)) == (None, None)
    for build, words in (
        (TorchBuild(None, None), "torch is not installed"),
        (TorchBuild("2.13.0", None), "does not say in its files"),
        (TorchBuild("2.13.0", "cuda", "13.0"), "built for CUDA 13.0; the driver is for CUDA 12.8 and may be too old"),
    ):
        refusal, note = judge(build, (12, 8))
        assert refusal is None
        assert note is not None
        assert words in note.message
