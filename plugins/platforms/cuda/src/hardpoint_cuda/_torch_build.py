"""How torch was built, read from its files: importing it takes seconds, and nobody knows yet whether it is needed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from hardpoint import Reason, ReasonCode

if TYPE_CHECKING:
    from hardpoint import Machine

_LINE: Final = re.compile(r"""^(cuda|hip|xpu)\s*(?::[^=\n]*)?=\s*(?:None|['"]([^'"\n]*)['"])""", re.MULTILINE)
_RUNTIMES: Final = {"cuda": "CUDA", "hip": "ROCm", "xpu": "Intel's XPU"}


class TorchBuild(NamedTuple):
    """`runtime` is ``cuda``, ``hip``, ``xpu`` or ``cpu``, or None where its files do not say; `version` that runtime's.

    `installed` is the distribution's version; None: it is not installed.
    """

    installed: str | None
    runtime: str | None
    version: str | None = None


def read_torch_build(machine: Machine) -> TorchBuild:
    """Read ``torch/version.py``, which every build of torch writes."""
    installed = machine.distribution_version("torch")
    if installed is None:
        return TorchBuild(None, None)
    path = machine.distribution_file("torch", "torch/version.py")
    try:
        text = "" if path is None else machine.read_text(path)
    except OSError:
        text = ""
    values = {found[1]: found[2] for found in _LINE.finditer(text)}
    for runtime in _RUNTIMES:
        if values.get(runtime):
            return TorchBuild(installed, runtime, values[runtime])
    return TorchBuild(installed, "cpu" if "cuda" in values else None)


def judge(build: TorchBuild, cuda_version: tuple[int, int] | None) -> tuple[Reason | None, Reason | None]:
    """Why this torch cannot drive NVIDIA devices, if so; else what is worth a note."""
    if build.installed is None:
        note = "torch is not installed: devices can be detected and backends judged, and nothing can run"
        return None, Reason(code=ReasonCode.NOT_INSTALLED, message=note, remedy="pip install torch")
    if build.runtime is None:
        note = f"torch {build.installed} does not say in its files what it was built for"
        return None, Reason(code=ReasonCode.OTHER, message=note)
    if build.runtime != "cuda":
        what = "the CPU only" if build.runtime == "cpu" else f"{_RUNTIMES[build.runtime]} {build.version}"
        return (
            Reason(
                code=ReasonCode.OTHER_BUILD,
                message=f"torch {build.installed} is built for {what}, not for CUDA",
                requested=build.runtime,
                accepted="a build of torch for CUDA",
                remedy=_wheel(cuda_version),
            ),
            None,
        )
    built = re.match(r"(\d{1,4})\.(\d{1,4})", build.version or "", re.ASCII)
    if built is not None and cuda_version is not None and int(built[1]) > cuda_version[0]:
        # No refusal: NVIDIA's compatibility libraries lift it on some devices, and nobody sees that from here.
        note = (
            f"torch {build.installed} is built for CUDA {build.version}; the driver is for CUDA "
            f"{_dotted(cuda_version)} and may be too old"
        )
        return None, Reason(
            code=ReasonCode.DRIVER, message=note, remedy=f"update the driver, or {_wheel(cuda_version)}"
        )
    return None, None


def _wheel(cuda_version: tuple[int, int] | None) -> str:
    if cuda_version is None:
        return "install a torch wheel for CUDA (its version ends in +cu and a number)"
    return (
        f"install a torch wheel for CUDA {_dotted(cuda_version)} or an earlier {cuda_version[0]}.x "
        f"(its version ends in +cu{cuda_version[0]} and a digit up to {cuda_version[1]})"
    )


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
