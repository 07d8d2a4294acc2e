from __future__ import annotations

import itertools
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import hardpoint
from hardpoint import ReasonCode
from hardpoint.hookspecs import Detection, DetectionStatus
from hardpoint_neuron.plugin import plugin

if TYPE_CHECKING:
    from collections.abc import Sequence

GIB = 1 << 30
VISIBLE = "NEURON_RT_VISIBLE_CORES"
SIZE = "NEURON_LOGICAL_NC_CONFIG"

# Name, cores of one device, memory of each, architecture, version of its cores.
PROFILES = {
    "inferentia2": ("Inferentia2", 2, 16 * GIB, "inf2", "v2"),
    "trainium1": ("Trainium1", 2, 16 * GIB, "trn1", "v2"),
    "trainium2": ("Trainium2", 4, 24 * GIB, "trn2", "v3"),
}
MACHINES = [names for count in (1, 2, 3) for names in itertools.permutations(PROFILES, count)]

# The texts of the case table of masks, read as the runtime's own variable.
MASKS: Sequence[tuple[str | None, Sequence[int] | None]] = [
    (None, None),
    *((text, []) for text in ("", "-1", "-1,0", "NoDevFiles", "void", "none", "0,-1,1", "0,0", "0,1,0", "0,", "0,,1")),
    *((text, []) for text in ("1gpu2,2ampere", "+1", "GPU-a,0", "0,GPU-a", "99,0", "0,99,1", "1-0", "0-1,1")),
    ("1,0", [1, 0]),
    (" 0 , 1 ", [0, 1]),
    ("0-1", [0, 1]),
    ("1", [1]),
    ("00,1", [0, 1]),
]


def detect(names: Sequence[str], **variables: str) -> Detection:
    """What the hook answers on such a machine."""
    return plugin.hardpoint_detect(hardpoint.simulate(list(names), variables=variables))


def test_profiles_are_listed() -> None:
    """The distribution brings these, each with its sources and without a fault."""
    found = [profile for profile in hardpoint.list_profiles() if profile.platform == "neuron"]
    assert [(profile.name, profile.aliases) for profile in found] == [
        ("inferentia2", ("inf2",)),
        ("trainium1", ("trn1",)),
        ("trainium2", ("trn2",)),
    ]
    for profile in found:
        assert profile.fault is None
        assert len(profile.sources) >= 3


@pytest.mark.parametrize("names", MACHINES, ids="+".join)
def test_devices(names: Sequence[str]) -> None:
    """Alone and mixed: cores in the order of their devices, with ids, memory and capability."""
    detection = detect(names)
    assert detection.status is DetectionStatus.USABLE
    assert [note.code for note in detection.notes] == [ReasonCode.NOT_INSTALLED]
    rows = [PROFILES[name] for name in names for _ in range(PROFILES[name][1])]
    assert [
        (device.name, device.total_memory_bytes, device.capability and device.capability.arch)
        for device in detection.devices
    ] == [(name, memory, arch) for name, _, memory, arch, _ in rows]
    assert [device.properties["neuroncore"] for device in detection.devices] == [row[4] for row in rows]
    assert [device.physical_id for device in detection.devices] == list(range(len(rows)))
    assert len({device.pci_bus_id for device in detection.devices}) == len(names)


@pytest.mark.parametrize("names", MACHINES, ids="+".join)
@pytest.mark.parametrize(("mask", "numbers"), MASKS)
def test_masks(names: Sequence[str], mask: str | None, numbers: Sequence[int] | None) -> None:
    """Every mask on every machine: the cores that it names, or a reason that names it."""
    detection = detect(names, **({} if mask is None else {VISIBLE: mask}))
    if numbers is None:
        assert len(detection.devices) == sum(PROFILES[name][1] for name in names)
    elif numbers:
        assert [device.physical_id for device in detection.devices] == numbers
        assert [device.visible_id for device in detection.devices] == [str(number) for number in numbers]
    else:
        assert (detection.status, detection.devices) == (DetectionStatus.UNUSABLE, ())
        assert [reason.code for reason in detection.reasons] == [ReasonCode.MASKED]
        assert detection.reasons[0].message.startswith(f"{VISIBLE}={mask!r} leaves no core: ")


def test_masks_of_other_vendors() -> None:
    """Variables that mask others' devices mean nothing here."""
    variables = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1", "ROCR_VISIBLE_DEVICES": "9"}
    assert len(detect(["trainium2"], **variables).devices) == 4


def test_several_devices() -> None:
    """Sixteen chips of Trainium2 have 64 logical cores, or 128 with logical cores of one."""
    machine = hardpoint.simulate("trn2", count=16)
    assert len(plugin.hardpoint_detect(machine).devices) == 64
    machine = hardpoint.simulate("trn2:16", variables={SIZE: "1", VISIBLE: "120-127"})
    devices = plugin.hardpoint_detect(machine).devices
    assert [device.properties["neuron_device"] for device in devices] == [15] * 8
    assert {device.total_memory_bytes for device in devices} == {12 * GIB}


@pytest.mark.parametrize("names", MACHINES, ids="+".join)
def test_resolution(names: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The platform is picked, selects no backend, and a snapshot of it, read again, decides the same."""
    from hardpoint._snapshot import parse

    monkeypatch.setenv("HARDPOINT_PLUGINS", "platform/neuron")
    machine = hardpoint.simulate(list(names), variables={VISIBLE: "0-1"})
    config = hardpoint.AttentionConfig(head_size=64, num_heads=8, num_kv_heads=8, dtype="bfloat16", block_size=16)
    resolution = hardpoint.resolve(machine=machine)
    assert (resolution.platform.name, resolution.is_fallback) == ("neuron", False)
    assert resolution.platform.device_count() == 2
    assert resolution.platform.select_backend(config).backend is None
    taken = hardpoint.snapshot([config], machine=machine)
    again = parse(taken.to_json().encode())
    assert again.report.to_text() == taken.report.to_text()
    assert "no selectable backend: attention lives in the compiled graph" in again.report.to_text()
    recomputation = again.recompute()
    assert recomputation.changes == ()
    assert recomputation.report.as_dict()["resolution"]["platform"] == "neuron"


@pytest.mark.parametrize("name", PROFILES)
def test_nothing_heavy_is_loaded(name: str) -> None:
    """Import, simulation and resolution load no torch and nothing of Neuron's."""
    code = (
        "import sys, hardpoint\n"
        f"print(hardpoint.resolve(machine=hardpoint.simulate({name!r})).platform.name)\n"
        "print([name for name in ('torch', 'torch_neuronx', 'torch_xla', 'numpy') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["neuron", "[]"]
