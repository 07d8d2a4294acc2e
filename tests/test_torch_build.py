from __future__ import annotations

import pytest

from hardpoint import InMemoryMachine
from hardpoint._torch_build import TorchBuild, read_torch_build, version_file

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
    ("build", "target", "text"),
    [
        (TorchBuild("2.9", "cuda", "12.8"), "CUDA 12.8", "2.9, built for cuda 12.8"),
        (TorchBuild("2.9", "hip", "6.4"), "ROCm 6.4", "2.9, built for hip 6.4"),
        (TorchBuild("2.9", "cpu"), "the CPU only", "2.9, built for cpu"),
        (TorchBuild("2.9", None), "the CPU only", "2.9, built for what its files do not say"),
        (TorchBuild(None, None), "the CPU only", "not installed"),
    ],
)
def test_words(build: TorchBuild, target: str, text: str) -> None:
    """A build is described in words, for reasons and for the doctor."""
    assert (build.target, str(build)) == (target, text)


@pytest.mark.parametrize(
    ("version", "build"),
    [
        ("2.13.0+cpu", ("cpu", None)),
        ("2.13.0+cu128", ("cuda", "12.8")),
        ("2.13.0+cu130", ("cuda", "13.0")),
        ("2.13.0+rocm6.4", ("hip", "6.4")),
        ("2.13.0+xpu", ("xpu", "1")),
        ("2.13.0+git1234", (None, None)),
        ("2.13.0", (None, None)),
    ],
)
def test_build_by_the_end_of_a_version(version: str, build: tuple[str | None, str | None]) -> None:
    """A simulated machine's torch has the build that its version names, read as any other."""
    text = version_file(version)
    machine = InMemoryMachine(
        distributions={"torch": version},
        distribution_folders={"torch": "/site"},
        files={} if text is None else {"/site/torch/version.py": text},
    )
    assert read_torch_build(machine)[1:] == build
