"""Whether torch has kernels for the devices. Each of its builds is compiled for a list of compute capabilities.

The list stands in none of torch's files, and importing torch takes seconds. So it is asked for only where the answer
may be no, in a child process; and not even there where the CUDA that torch was built with cannot compile for a device.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hardpoint import Reason, ReasonCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hardpoint import Machine
    from hardpoint._machine import Json
    from hardpoint._torch_build import TorchBuild
    from hardpoint.hookspecs import Device

_FLOORS: Final = ((13, (7, 5)), (12, (5, 0)), (11, (3, 5)))
"""From that major version on, CUDA compiles for nothing older: the release notes of CUDA 13.0, 12.0 and 11.0."""

_TURING: Final = (7, 5)
_BLACKWELL: Final = (10, 0)
_CHANGE: Final = (12, 8)
"""torch's wheels for CUDA before it have kernels from 5.0 on and none for Blackwell; those for it have dropped some."""

_ARCH: Final = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)\Z", re.ASCII)

_TORCH_SECONDS: Final = 60.0
"""As for asking torch for devices."""


def without_kernels(
    machine: Machine, build: TorchBuild, devices: Sequence[Device]
) -> tuple[Reason | None, Reason | None]:
    """Why torch can compute on none of the devices, if so; else what is worth a note: that it cannot on some."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", build.version or "", re.ASCII)
    if build.runtime != "cuda" or found is None:
        return None, None
    built = int(found[1]), int(found[2])
    floor = next((lowest for major, lowest in _FLOORS if built[0] >= major), (0, 0))
    versions = {device.index: device.capability.version for device in devices if device.capability is not None}
    known = {index: version for index, version in versions.items() if version is not None}
    refused = {index for index, version in known.items() if version < floor}
    doubtful = {index for index, version in known.items() if index not in refused and _is_doubtful(version, built)}
    archs = _ask(machine) if doubtful else ()
    if archs:
        refused |= {index for index in doubtful if not _has_kernels(archs, known[index])}
    if not refused:
        return None, None
    reason = _reason(build, [device for device in devices if device.index in refused], floor, archs)
    return (reason, None) if len(refused) == len(devices) else (None, reason)


def _is_doubtful(version: tuple[int, int], built: tuple[int, int]) -> bool:
    return version < _TURING if built >= _CHANGE else version >= _BLACKWELL


def _ask(machine: Machine) -> tuple[str, ...]:
    """What torch was compiled for, in its own words; nothing where it does not say."""
    try:
        answer: Json = machine.probe(
            "cuda.torch_archs",
            "hardpoint_cuda._torch_probe:read_archs",
            isolated=True,
            timeout_seconds=_TORCH_SECONDS,
        )
    except (ImportError, OSError):
        # That torch does not load is told where it is loaded.
        return ()
    return tuple(item for item in answer if isinstance(item, str)) if isinstance(answer, list) else ()


def _has_kernels(archs: Iterable[str], version: tuple[int, int]) -> bool:
    """Binary code runs on later devices of its major version, PTX on all later ones, and what ends in ``a`` on its own.

    The rules are those of NVIDIA's CUDA programming guide.
    """
    for arch in archs:
        parts = _ARCH.match(arch)
        if parts is None:
            continue
        target = int(parts[2]), int(parts[3])
        if parts[4] == "a":
            fits = target == version
        elif parts[1] == "sm" or parts[4] == "f":
            fits = target[0] == version[0] and target <= version
        else:
            fits = target <= version
        if fits:
            return True
    return False


def _reason(build: TorchBuild, devices: Sequence[Device], floor: tuple[int, int], archs: Sequence[str]) -> Reason:
    named = ", ".join(dict.fromkeys(f"{device.name} (compute capability {device.capability})" for device in devices))
    accepted = ", ".join(archs) or f"compute capability {floor[0]}.{floor[1]} and later"
    is_old = all(device.capability is not None and (device.capability.major or 0) < _BLACKWELL[0] for device in devices)
    old = "install a torch wheel for CUDA 12.6 (its version ends in +cu126): they have kernels from 5.0 on"
    new = "install a torch wheel for CUDA 12.8 or later (its version ends in +cu128 or a higher number)"
    return Reason(
        code=ReasonCode.KERNEL_ARCH,
        message=(
            f"torch {build.installed}, built for CUDA {build.version}, has no kernels for {named}; it has {accepted}"
        ),
        requested=tuple(dict.fromkeys(str(device.capability) for device in devices)),
        accepted=accepted,
        remedy=old if is_old else new,
    )
