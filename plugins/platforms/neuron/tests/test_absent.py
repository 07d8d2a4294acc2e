from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hardpoint import InMemoryMachine, LiveMachine, ReasonCode
from hardpoint._machine_recorded import RecordedMachine
from hardpoint.hookspecs import DetectionStatus
from hardpoint_neuron.plugin import plugin

if TYPE_CHECKING:
    from pathlib import Path

PRODUCT = "/sys/devices/virtual/dmi/id/product_name"


def test_no_hardware() -> None:
    """Without a trace of it there is no such hardware: two names are looked up, and in mere data two versions."""
    machine = InMemoryMachine()
    detection = plugin.hardpoint_detect(machine)
    assert detection.status is DetectionStatus.ABSENT
    assert detection.reasons[0].message == "no Neuron device: neither device nodes nor a driver"
    assert dict(machine.questions) == {
        "list /dev": 1,
        "exists /sys/devices/virtual/neuron_device": 1,
        "distribution neuronx-cc": 1,
        "distribution torch-neuronx": 1,
    }


def test_no_hardware_on_a_live_host(host: Any) -> None:
    """There three names are looked up, and nothing else."""
    machine = host.machine
    assert plugin.hardpoint_detect(machine).status is DetectionStatus.ABSENT
    facts = machine.recorded_facts()
    assert {kind: len(entries) for kind, entries in facts.items() if entries} == {
        "directories": 1,
        "exists": 1,
        "machine": 1,
        "tool_paths": 1,
    }


@pytest.mark.parametrize("system", ["Darwin", "Windows", "FreeBSD", ""])
def test_other_systems(system: str) -> None:
    """There is a driver for Linux alone: elsewhere nothing is asked."""
    machine = InMemoryMachine(system=system, distributions={"neuronx-cc": "2.20"})
    assert plugin.hardpoint_detect(machine).status is DetectionStatus.ABSENT
    assert not machine.questions


@pytest.mark.parametrize("names", [("neuron", "neuronx0", "neuron00", "neuron-1", "neuron²"), ("nvidia0", "null")])
def test_other_nodes(names: tuple[str, ...]) -> None:
    """Names that only look like a Neuron device's are none."""
    machine = InMemoryMachine(files={f"/dev/{name}": "" for name in names})
    assert plugin.hardpoint_detect(machine).status is DetectionStatus.ABSENT


@pytest.mark.parametrize(
    ("installed", "words"),
    [
        ({"neuronx-cc": "2.20.1"}, "neuronx-cc 2.20.1 is installed"),
        ({"torch-neuronx": "2.9.0"}, "torch-neuronx 2.9.0 is installed"),
        ({"torch_neuronx": "2.9.0", "neuronx-cc": "2.20.1"}, "neuronx-cc 2.20.1 and torch-neuronx 2.9.0 is installed"),
    ],
)
def test_compile_only(installed: dict[str, str], words: str) -> None:
    """B12: packages without a device make a host that compiles and does not run, never a usable platform."""
    detection = plugin.hardpoint_detect(InMemoryMachine(distributions=installed))
    assert (detection.status, detection.devices) == (DetectionStatus.UNUSABLE, ())
    (reason,) = detection.reasons
    assert reason.code is ReasonCode.NO_DEVICE
    assert reason.message.startswith(f"compile-only: {words} and there is no Neuron device")


def test_compile_only_host(host: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a live host it is the compiler on the search path that makes it one; its package alone is not looked for."""
    site = tmp_path / "site"
    (site / "neuronx_cc-2.20.1.dist-info").mkdir(parents=True)
    (site / "neuronx_cc-2.20.1.dist-info/METADATA").write_text("Name: neuronx-cc\nVersion: 2.20.1\n")
    monkeypatch.syspath_prepend(site)
    machine = host.machine
    assert plugin.hardpoint_detect(machine).status is DetectionStatus.ABSENT
    assert "distributions" not in machine.recorded_facts()
    (host.programs / "neuronx-cc").write_text("#!/bin/sh\n")
    (host.programs / "neuronx-cc").chmod(0o755)
    detection = plugin.hardpoint_detect(host.machine)
    assert detection.status is DetectionStatus.UNUSABLE
    assert detection.reasons[0].message.startswith("compile-only: neuronx-cc 2.20.1 is installed")


def test_replayed_hosts() -> None:
    """What was not asked there, because nothing called for it, is no failure where the facts are replayed."""
    machine = LiveMachine()
    there = plugin.hardpoint_detect(machine)
    replayed = RecordedMachine(machine.recorded_facts(), ())
    assert plugin.hardpoint_detect(replayed) == there


def test_driver_that_is_not_loaded() -> None:
    """On an instance that has devices, packages without device nodes mean that the driver is missing."""
    machine = InMemoryMachine(distributions={"neuronx-cc": "2.20.1"}, files={PRODUCT: "trn2.48xlarge\n"})
    (reason,) = plugin.hardpoint_detect(machine).reasons
    assert reason.code is ReasonCode.DRIVER
    assert reason.message.startswith("the Neuron driver is not loaded: trn2.48xlarge has Trainium2 devices")
    assert reason.remedy == "install aws-neuronx-dkms, then modprobe neuron"
    build_host = InMemoryMachine(distributions={"neuronx-cc": "2.20.1"}, files={PRODUCT: "c7i.4xlarge\n"})
    assert plugin.hardpoint_detect(build_host).reasons[0].code is ReasonCode.NO_DEVICE


def test_tool_alone() -> None:
    """B12: the vendor's tool on the path is no hardware, and is not run."""
    machine = InMemoryMachine(tools={"neuron-ls": '[{"neuron_device": 0, "nc_count": 2}]'})
    assert plugin.hardpoint_detect(machine).status is DetectionStatus.ABSENT
    assert not [question for question in machine.questions if "neuron-ls" in question]
