from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from hardpoint import API_VERSION, InMemoryMachine
from hardpoint.hookspecs import Rank
from hardpoint_neuron.plugin import plugin

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., InMemoryMachine]


def test_descriptor() -> None:
    """The platform stands before the CPU and behind a vendor's, and names the variables that it reads."""
    spec = plugin.hardpoint_platform()
    assert (spec.api, spec.rank) == (API_VERSION, Rank.IN_TREE)
    assert (spec.target, spec.profiles) == ("hardpoint_neuron.platform:NeuronPlatform", "hardpoint_neuron:profiles")
    assert [setting.name for setting in spec.settings] == [
        "NEURON_RT_VISIBLE_CORES",
        "NEURON_RT_NUM_CORES",
        "NEURON_LOGICAL_NC_CONFIG",
        "NEURON_RT_VIRTUAL_CORE_SIZE",
    ]


def test_doctor(make_machine: Make) -> None:
    """The doctor sees nodes, driver, tool, packages, the variables, every core, and why they are as they are."""
    machine = make_machine(
        ["trn2"],
        installed="2.14.3",
        variables={"NEURON_RT_VISIBLE_CORES": "2-3", "NEURON_RT_NUM_CORES": "1"},
        files={"/sys/module/neuron/version": "2.26.5.0\n"},
    )
    (section,) = plugin.hardpoint_report(machine)
    assert section.title == "Neuron"
    assert section.lines == (
        ("device nodes", "/dev/neuron{0}"),
        ("driver", "2.26.5.0"),
        ("instance type", "unknown"),
        ("neuron-ls", "/usr/bin/neuron-ls"),
        ("neuronx-cc", "not installed"),
        ("torch-neuronx", "2.14.3"),
        ("NEURON_RT_VISIBLE_CORES", "'2-3'"),
        ("NEURON_RT_NUM_CORES", "'1'"),
        ("NEURON_LOGICAL_NC_CONFIG", "not set"),
        ("NEURON_RT_VIRTUAL_CORE_SIZE", "not set"),
        ("outcome", "usable"),
        ("core 0", "Trainium2, NeuronCore-v3, physical cores 4-5 of device 0, 24576 MiB, 0000:00:10.0"),
        ("core 1", "Trainium2, NeuronCore-v3, physical cores 6-7 of device 0, 24576 MiB, 0000:00:10.0"),
        ("note", "NEURON_RT_NUM_CORES='1' means nothing beside NEURON_RT_VISIBLE_CORES='2-3', which wins"),
    )


def test_doctor_of_open_choice(make_machine: Make) -> None:
    """A core that the runtime will choose has no place yet."""
    machine = make_machine(["trn1", "trn2"], tool=None, variables={"NEURON_RT_NUM_CORES": "1"})
    lines = dict(plugin.hardpoint_report(machine)[0].lines)
    assert lines["core 0"] == (
        "AWS Neuron device, unknown capability, chosen by the runtime, unknown memory, no PCI address"
    )
    assert lines["driver"] == "loaded, of unknown version"
    assert lines["note"].endswith("(install aws-neuronx-tools)")


def test_doctor_without_hardware() -> None:
    """Where nothing is there, nothing is run."""
    machine = InMemoryMachine(tools={"neuron-ls": "[]"})
    lines = dict(plugin.hardpoint_report(machine)[0].lines)
    assert (lines["device nodes"], lines["driver"], lines["neuron-ls"]) == ("none", "not loaded", "/usr/bin/neuron-ls")
    assert "outcome" not in lines
    assert not [question for question in machine.questions if question.startswith("run")]


def test_doctor_of_a_build_host() -> None:
    """A host that only compiles is called so."""
    lines = dict(plugin.hardpoint_report(InMemoryMachine(distributions={"neuronx-cc": "2.20"}))[0].lines)
    assert lines["outcome"] == "unusable"
    assert lines["reason"].startswith("compile-only: neuronx-cc 2.20 is installed")


def test_nothing_more_is_loaded_without_hardware() -> None:
    """Where there is no such hardware detection loads two small modules, and neither json, subprocess nor torch."""
    code = (
        "import sys, pluggy; from hardpoint import InMemoryMachine; import hardpoint.hookspecs\n"
        "before = set(sys.modules)\n"
        "from hardpoint_neuron.plugin import plugin\n"
        "plugin.hardpoint_platform(); plugin.hardpoint_detect(InMemoryMachine())\n"
        "print(sorted(name for name in set(sys.modules) - before if not name.startswith('_')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "['hardpoint_neuron', 'hardpoint_neuron._traces', 'hardpoint_neuron.plugin']"


def test_modules_import_without_libraries() -> None:
    """Every module imports where neither torch, torch-neuronx nor what only POSIX has is there."""
    code = (
        "import sys, pkgutil, importlib\n"
        "for name in ('torch', 'torch_neuronx', 'torch_xla', 'fcntl', 'resource', 'numpy'): sys.modules[name] = None\n"
        "import hardpoint_neuron\n"
        "for item in pkgutil.iter_modules(hardpoint_neuron.__path__):\n"
        "    importlib.import_module('hardpoint_neuron.' + item.name)\n"
        "print('done')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "done"
