"""Whether the torch that is installed can drive NVIDIA devices."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hardpoint import Reason, ReasonCode
from hardpoint._torch_build import UNKNOWN_BUILD_REMEDY

if TYPE_CHECKING:
    from hardpoint._torch_build import TorchBuild


def judge(build: TorchBuild, cuda_version: tuple[int, int] | None) -> tuple[Reason | None, Reason | None]:
    """Why this torch cannot drive NVIDIA devices, if so; else what is worth a note."""
    if build.installed is None:
        note = "torch is not installed: devices can be detected and backends judged, and nothing can run"
        return None, Reason(code=ReasonCode.NOT_INSTALLED, message=note, remedy="pip install torch")
    if build.runtime is None:
        note = f"torch {build.installed} does not say in its files what it was built for"
        return None, Reason(code=ReasonCode.OTHER, message=note, remedy=UNKNOWN_BUILD_REMEDY)
    if build.runtime != "cuda":
        return (
            Reason(
                code=ReasonCode.OTHER_BUILD,
                message=f"torch {build.installed} is built for {build.target}, not for CUDA",
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
