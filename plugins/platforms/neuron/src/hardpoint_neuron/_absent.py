"""Why a host that has Neuron's packages has no Neuron device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint import Reason, ReasonCode
from hardpoint_neuron._generations import generation_of_instance
from hardpoint_neuron._instance import read_instance_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hardpoint import Machine


def judge(machine: Machine, installed: Mapping[str, str]) -> Reason:
    """Either the driver of an instance that has devices is not loaded, or the host has none and can only compile."""
    packages = " and ".join(f"{name} {version}" for name, version in installed.items())
    instance = read_instance_type(machine)
    generation = generation_of_instance(instance)
    if generation is not None:
        return Reason(
            code=ReasonCode.DRIVER,
            message=f"the Neuron driver is not loaded: {instance} has {generation.name} devices, {packages} is "
            "installed, and there is no device node",
            remedy="install aws-neuronx-dkms, then modprobe neuron",
        )
    return Reason(
        code=ReasonCode.NO_DEVICE,
        message=f"compile-only: {packages} is installed and there is no Neuron device, so models can be compiled here "
        "and not run",
    )
