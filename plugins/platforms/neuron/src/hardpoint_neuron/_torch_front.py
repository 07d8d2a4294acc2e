"""Which of the two ways torch reaches Neuron cores is installed. Read from metadata: importing it is for activation.

``torch-neuronx`` drives NeuronCore-v2 and later through torch-xla (device ``xla``). From 2.13 on it is another thing
under the same name: it registers a device of its own, ``neuron``, through PrivateUse1, and drives Trainium2 and later
only. Source: AWS's TorchNeuron pages and the release notes of torch-neuronx.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from hardpoint import Reason, ReasonCode
from hardpoint_neuron._traces import TORCH

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hardpoint import Machine

MODULE: Final = "torch_neuronx"
REMEDY: Final = "install torch-neuronx from AWS's Neuron package index, in the release that fits torch"
_NATIVE_SINCE: Final = (2, 13)
_RELEASE: Final = re.compile(r"v?([0-9]{1,6})\.([0-9]{1,6})", re.ASCII)
_BUILD: Final = re.compile(r"""^(cuda|hip|xpu)\s*(?::[^=\n]*)?=\s*['"]([^'"\n]+)['"]""", re.MULTILINE)
_RUNTIMES: Final = {"cuda": "CUDA", "hip": "ROCm", "xpu": "Intel's XPU"}


class TorchFront(NamedTuple):
    """What torch calls the device, its dispatch key and its backend of torch.distributed; and the cores it drives.

    `version` is that of ``torch-neuronx``; None: it is not installed.
    """

    version: str | None
    device_type: str
    dispatch_key: str
    dist_backend: str
    lowest_core: int


def front_of(version: str | None, core_versions: Iterable[int | None] = ()) -> TorchFront:
    """By the version of ``torch-neuronx``; where there is none, the one that the cores would need."""
    found = _RELEASE.match(version or "")
    if found is not None:
        is_native = (int(found[1]), int(found[2])) >= _NATIVE_SINCE
    else:
        is_native = all(core is None or core >= 3 for core in core_versions)
    if is_native:
        return TorchFront(version, "neuron", "PrivateUse1", "neuron", 3)
    return TorchFront(version, "xla", "XLA", "xla", 2)


def judge(
    machine: Machine, installed: Mapping[str, str | None], cores: Mapping[int, str]
) -> tuple[Reason | None, Reason | None]:
    """Why what is installed cannot drive these devices, if so; else what is worth a note.

    `installed`: versions of ``torch`` and ``torch-neuronx``; `cores`: names of devices by the version of their cores.
    """
    oldest = min(cores, default=None)
    if oldest == 1:
        message = f"{TORCH} does not drive {cores[oldest]}: its cores are NeuronCore-v1"
        return Reason(code=ReasonCode.CAPABILITY, message=message, requested=1, accepted="NeuronCore-v2 or later"), None
    version = installed.get(TORCH)
    if version is None:
        return _judge_torch(machine, installed.get("torch"))
    front = front_of(version, cores)
    if oldest is not None and oldest < front.lowest_core:
        return (
            Reason(
                code=ReasonCode.OTHER_BUILD,
                message=f"{TORCH} {version} drives Trainium2 and later, and here is {cores[oldest]}",
                requested=cores[oldest],
                accepted=f"NeuronCore-v{front.lowest_core} or later",
                remedy=f"install a {TORCH} below {_NATIVE_SINCE[0]}.{_NATIVE_SINCE[1]}, which works through torch-xla",
            ),
            None,
        )
    return None, None


def _judge_torch(machine: Machine, torch: str | None) -> tuple[Reason | None, Reason | None]:
    """Without ``torch-neuronx``: a torch that is built for another accelerator belongs to that one."""
    other = None if torch is None else _other_build(machine)
    if other is not None:
        message = f"{TORCH} is not installed, and torch {torch} is built for {other}"
        return Reason(code=ReasonCode.OTHER_BUILD, message=message, accepted=TORCH, remedy=REMEDY), None
    message = f"{TORCH} is not installed: devices can be detected, and nothing can run"
    return None, Reason(code=ReasonCode.NOT_INSTALLED, message=message, remedy=REMEDY)


def _other_build(machine: Machine) -> str | None:
    path = machine.distribution_file("torch", "torch/version.py")
    try:
        text = "" if path is None else machine.read_text(path)
    except OSError:
        return None
    values = {found[1]: found[2] for found in _BUILD.finditer(text)}
    return next((f"{name} {values[key]}" for key, name in _RUNTIMES.items() if key in values), None)
