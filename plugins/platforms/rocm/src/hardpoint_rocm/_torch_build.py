"""Whether the torch that is installed can drive AMD devices."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hardpoint import Reason, ReasonCode
from hardpoint._torch_build import UNKNOWN_BUILD_REMEDY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hardpoint._torch_build import TorchBuild
    from hardpoint_rocm._arch import Arch

_SINCE: Final = (
    # The first release of ROCm whose notes list an architecture as supported.
    ("gfx90a", (5, 0)),
    ("gfx94", (6, 0)),
    ("gfx95", (7, 0)),
    ("gfx1100 gfx1101", (5, 7)),
    ("gfx1200 gfx1201", (6, 4)),
)


def judge(build: TorchBuild, arches: Iterable[Arch | None]) -> tuple[Reason | None, Reason | None]:
    """Why this torch cannot drive these devices, if so; else what is worth a note."""
    needed, name = _needed(arches)
    if build.installed is None:
        note = "torch is not installed: devices can be detected and backends judged, and nothing can run"
        return None, Reason(code=ReasonCode.NOT_INSTALLED, message=note, remedy=_wheel(needed))
    if build.runtime is None:
        note = f"torch {build.installed} does not say in its files what it was built for"
        return None, Reason(code=ReasonCode.OTHER, message=note, remedy=UNKNOWN_BUILD_REMEDY)
    if build.runtime != "hip":
        return (
            Reason(
                code=ReasonCode.OTHER_BUILD,
                message=f"torch {build.installed} is built for {build.target}, not for ROCm",
                requested=build.runtime,
                accepted="a build of torch for ROCm",
                remedy=_wheel(needed),
            ),
            None,
        )
    built = re.match(r"(\d{1,4})\.(\d{1,4})", build.version or "", re.ASCII)
    if built is not None and needed is not None and (int(built[1]), int(built[2])) < needed:
        # No refusal: who builds torch chooses the architectures, and nobody sees them from here.
        note = (
            f"torch {build.installed} is built for ROCm {build.version}; {name} is supported from {_dotted(needed)} on "
            "and its kernels may be missing"
        )
        return None, Reason(code=ReasonCode.KERNEL_ARCH, message=note, remedy=_wheel(needed))
    return None, None


def _needed(arches: Iterable[Arch | None]) -> tuple[tuple[int, int] | None, str]:
    """The release that all of the devices need, and which asks for it."""
    found: tuple[tuple[int, int] | None, str] = (None, "")
    for arch in arches:
        since = next((version for names, version in _SINCE if arch is not None and arch.matches(names)), None)
        if arch is not None and since is not None and (found[0] is None or since > found[0]):
            found = (since, arch.name)
    return found


def _wheel(needed: tuple[int, int] | None) -> str:
    if needed is None:
        return "install a torch wheel for ROCm (its version ends in +rocm and a number)"
    # Of releases before this one there are no wheels of a torch that is still maintained.
    release = _dotted(max(needed, (6, 4)))
    return (
        f"install a torch wheel for ROCm {_dotted(needed)} or later (its version ends in +rocm{release}, for example): "
        f"pip install torch --index-url https://download.pytorch.org/whl/rocm{release}"
    )


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
