"""How torch was built, read from its files: importing it takes seconds, and nobody knows yet whether it is needed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from hardpoint._machine import Machine

_LINE: Final = re.compile(r"""^(cuda|hip|xpu)\s*(?::[^=\n]*)?=\s*(?:None|['"]([^'"\n]*)['"])""", re.MULTILINE)

RUNTIMES: Final = {"cuda": "CUDA", "hip": "ROCm", "xpu": "Intel's XPU"}
"""What torch can be built for, and what people call it."""


UNKNOWN_BUILD_REMEDY: Final = (
    "reinstall torch, whose file torch/version.py says it (of a simulated machine name the build: "
    "--with torch==2.13.0+cu128, or +rocm6.4)"
)

_LOCAL: Final = re.compile(r"(?:(cpu)|(cu|rocm)(\d[\d.]*)|(xpu))\Z")


class TorchBuild(NamedTuple):
    """`runtime` is ``cuda``, ``hip``, ``xpu`` or ``cpu``, or None where its files do not say; `version` that runtime's.

    `installed` is the distribution's version; None: it is not installed.
    """

    installed: str | None
    runtime: str | None
    version: str | None = None

    @property
    def target(self) -> str:
        """What it is built for, in words: ``CUDA 12.8``, ``the CPU only``."""
        name = RUNTIMES.get(self.runtime or "")
        return "the CPU only" if name is None else f"{name} {self.version}"

    def __str__(self) -> str:
        if self.installed is None:
            return "not installed"
        version = f" {self.version}" if self.version else ""
        return f"{self.installed}, built for {self.runtime or 'what its files do not say'}{version}"


def read_torch_build(machine: Machine) -> TorchBuild:
    """Read ``torch/version.py``, which every build of torch writes. Imports nothing."""
    installed = machine.distribution_version("torch")
    if installed is None:
        return TorchBuild(None, None)
    path = machine.distribution_file("torch", "torch/version.py")
    try:
        text = "" if path is None else machine.read_text(path)
    except OSError:
        text = ""
    values = {found[1]: found[2] for found in _LINE.finditer(text)}
    for runtime in RUNTIMES:
        if values.get(runtime):
            return TorchBuild(installed, runtime, values[runtime])
    return TorchBuild(installed, "cpu" if "cuda" in values else None)


def version_file(version: str) -> str | None:
    """The ``torch/version.py`` of a wheel whose version ends in ``+cpu``, ``+cu128``, ``+rocm6.4`` or ``+xpu``.

    None where the version does not tell the build.
    """
    found = _LOCAL.match(version.partition("+")[2])
    if found is None:
        return None
    _, runtime, number, xpu = found.groups()
    if runtime == "cu" and "." not in number:
        number = f"{number[:-1]}.{number[-1]}"
    values = {
        "cuda": number if runtime == "cu" else None,
        "hip": number if runtime == "rocm" else None,
        "xpu": "1" if xpu else None,
    }
    return "".join(f"{name} = {value!r}\n" for name, value in values.items())
