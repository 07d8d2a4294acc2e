from __future__ import annotations

import pytest

from hardpoint import InMemoryMachine, ReasonCode
from hardpoint_cuda._torch_build import TorchBuild, judge, read_torch_build

NEW = "from typing import Optional\n\n__version__ = '2.13.0'\n"
CASES = [
    (NEW + "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\nxpu: Optional[str] = None\n", "cuda", "13.0"),
    (NEW + "cuda: Optional[str] = None\nhip: Optional[str] = None\nxpu: Optional[str] = None\n", "cpu", None),
    (NEW + "cuda: Optional[str] = None\nhip: Optional[str] = '6.4.43482'\n", "hip", "6.4.43482"),
    (NEW + "cuda: Optional[str] = None\nxpu: Optional[str] = '20250101'\n", "xpu", "20250101"),
    ("__version__ = '1.8.0'\ncuda = '11.1'\nhip = None\n", "cuda", "11.1"),
    ('cuda: str | None = "12.8"\n', "cuda", "12.8"),
    ("# cuda = '12.8'\n__version__ = '2'\n", None, None),
    ("", None, None),
    ("cuda = load()\n", None, None),
]


def machine(text: str | OSError | None) -> InMemoryMachine:
    """A machine with a torch of this version file; None: it has no such file."""
    files = {} if text is None else {"/site/torch/version.py": text}
    return InMemoryMachine(distributions={"torch": "2.13.0"}, distribution_folders={"torch": "/site"}, files=files)


@pytest.mark.parametrize(("text", "runtime", "version"), CASES)
def test_build(text: str, runtime: str | None, version: str | None) -> None:
    """What torch was built for stands in its version file, as every release has written it."""
    assert read_torch_build(machine(text)) == ("2.13.0", runtime, version)


def test_unknown_build() -> None:
    """A torch without that file, or with one that cannot be read, is of unknown build; none at all is not installed."""
    assert read_torch_build(machine(None)) == ("2.13.0", None, None)
    assert read_torch_build(machine(PermissionError(13, "Permission denied"))) == ("2.13.0", None, None)
    assert read_torch_build(InMemoryMachine()) == (None, None, None)


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
