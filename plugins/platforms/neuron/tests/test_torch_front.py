from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hardpoint import InMemoryMachine, ReasonCode
from hardpoint.hookspecs import DetectionStatus
from hardpoint_neuron._torch_front import front_of
from hardpoint_neuron.plugin import plugin

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., InMemoryMachine]


@pytest.mark.parametrize(
    ("version", "device_type", "key"),
    [
        ("2.14.3.0.1", "neuron", "PrivateUse1"),
        ("2.13.3.0.7", "neuron", "PrivateUse1"),
        ("3.0", "neuron", "PrivateUse1"),
        ("2.9.0.2.10.1", "xla", "XLA"),
        ("2.1.2", "xla", "XLA"),
        ("1.13.1", "xla", "XLA"),
    ],
)
def test_two_distributions_of_one_name(version: str, device_type: str, key: str) -> None:
    """From 2.13 on torch-neuronx has a device of its own; before, it works through torch-xla."""
    front = front_of(version, [2])
    assert (front.device_type, front.dispatch_key, front.dist_backend) == (device_type, key, device_type)


@pytest.mark.parametrize(
    ("version", "cores", "device_type"),
    [(None, [2], "xla"), (None, [3], "neuron"), ("unknown", [2, 3], "xla"), ("9" * 9, [4, None], "neuron")],
)
def test_without_a_version(version: str | None, cores: list[int | None], device_type: str) -> None:
    """Where its version says nothing, it is the one that the cores would need."""
    assert front_of(version, cores).device_type == device_type


@pytest.mark.parametrize(("kind", "name"), [("trn1", "Trainium1"), ("inf2", "Inferentia2")])
def test_release_that_does_not_drive_them(make_machine: Make, kind: str, name: str) -> None:
    """The later distribution drives NeuronCore-v3 and up: older cores are seen and cannot be used with it."""
    detection = plugin.hardpoint_detect(make_machine([kind], installed="2.14.3"))
    assert detection.status is DetectionStatus.UNUSABLE
    (reason,) = detection.reasons
    assert (reason.code, reason.requested, reason.accepted) == (
        ReasonCode.OTHER_BUILD,
        name,
        "NeuronCore-v3 or later",
    )
    assert "below 2.13" in str(reason.remedy)


def test_not_installed(make_machine: Make) -> None:
    """Devices are detected without it, and a note says that nothing can run."""
    detection = plugin.hardpoint_detect(make_machine(installed=None))
    assert (detection.status, len(detection.devices)) == (DetectionStatus.USABLE, 2)
    assert [note.code for note in detection.notes] == [ReasonCode.NOT_INSTALLED]


CPU = "cuda: Optional[str] = None\nhip: Optional[str] = None\n"
CUDA = "cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"
HIP = "cuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n"


@pytest.mark.parametrize(
    ("text", "installed", "other"),
    [
        (CPU, None, None),
        (CUDA, None, "CUDA 12.8"),
        (HIP, None, "ROCm 6.4"),
        (CUDA, "2.9.0", None),
        (None, None, None),
        (OSError(5, "Input/output error"), None, None),
    ],
)
def test_build_of_torch(
    make_machine: Make, text: str | OSError | None, installed: str | None, other: str | None
) -> None:
    """B11: without torch-neuronx, a torch that is built for another accelerator belongs to that one."""
    machine = make_machine(
        installed=installed,
        distributions={"torch": "2.9.0"},
        distribution_folders={} if text is None else {"torch": "/site"},
        files={} if text is None else {"/site/torch/version.py": text},
    )
    detection = plugin.hardpoint_detect(machine)
    if other is None:
        assert detection.status is DetectionStatus.USABLE
        return
    assert detection.status is DetectionStatus.UNUSABLE
    (reason,) = detection.reasons
    assert reason.code is ReasonCode.OTHER_BUILD
    assert reason.message == f"torch-neuronx is not installed, and torch 2.9.0 is built for {other}"
