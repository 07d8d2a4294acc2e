"""Every profile, alone and mixed, under the masks of the case tables."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from typing import Any

import pytest

import hardpoint
from hardpoint.errors import HardpointError
from hardpoint_rocm.plugin import plugin

MIB = 1 << 20
PROFILES = {
    "mi250x": ("AMD Instinct MI250X", "gfx90a", 65520, 110, 2),
    "mi300x": ("AMD Instinct MI300X OAM", "gfx942", 196592, 304, 1),
    "mi355x": ("AMD Instinct MI355X", "gfx950", 294896, 256, 1),
    "rx-7900-xtx": ("AMD Radeon RX 7900 XTX", "gfx1100", 24560, 96, 1),
    "rx-9070-xt": ("AMD Radeon RX 9070 XT", "gfx1201", 16304, 64, 1),
}
MIXED = "mi300x:2,rx-7900-xtx,rx-9070-xt,mi250x"


def test_list() -> None:
    """These are the profiles, and each states where its figures come from."""
    folder = files("hardpoint_rocm") / "profiles"
    names = sorted(item.name.removesuffix(".json") for item in folder.iterdir())
    assert names == sorted(PROFILES)
    for name in names:
        data = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        assert len(data["sources"]) >= 4
        assert all(": " in source or "https://" in source for source in data["sources"])


@pytest.mark.parametrize("name", PROFILES)
def test_alone(name: str) -> None:
    """A simulated card is detected as a real one: name, architecture, memory, compute units, how many devices it is."""
    machine = hardpoint.simulate(name)
    detection = plugin.hardpoint_detect(machine)
    title, arch, memory, units, count = PROFILES[name]
    assert len(detection.devices) == count
    for device in detection.devices:
        assert device.capability is not None
        assert (device.name, device.capability.arch) == (title, arch)
        assert (device.total_memory_bytes, device.properties["compute_units"]) == (memory * MIB, units)
        assert device.numa_node == 0
        assert device.uuid is not None
    resolution = hardpoint.resolve(machine=machine)
    assert (resolution.platform.name, resolution.platform.device_count()) == ("rocm", count)


def test_mixed() -> None:
    """Different cards in one machine keep their own names and capabilities, and have different ids and addresses."""
    devices = plugin.hardpoint_detect(hardpoint.simulate(MIXED)).devices
    assert [device.capability and device.capability.arch for device in devices] == [
        "gfx942", "gfx942", "gfx1100", "gfx1201", "gfx90a", "gfx90a",
    ]  # fmt: skip
    assert [device.physical_id for device in devices] == list(range(6))
    assert devices[3].name == "AMD Radeon RX 9070 XT"
    assert len({device.uuid for device in devices}) == len({device.pci_bus_id for device in devices}) == 6


NODES = "/sys/class/kfd/kfd/topology/nodes"
HIP, CUDA, ROCR = "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
TABLE = [
    (None, [0, 1, 2, 3]), ("", []), ("-1", []), ("-1,0", []), ("NoDevFiles", []), ("void", []), ("none", []),
    ("0,-1,1", [0]), ("0,0", []), ("0,1,0", []), ("1,0", [1, 0]), (" 0 , 1 ", [0, 1]), ("0,", [0]), ("0,,1", [0]),
    ("1gpu2,2ampere", [1, 2]), ("+1", [1]), ("99,0", []), ("0,99,1", [0]),
]  # fmt: skip
COMPOSED: list[tuple[dict[str, str], list[int]]] = [
    ({ROCR: "2,3"}, [2, 3]), ({ROCR: "2,3", HIP: "1"}, [3]), ({ROCR: "3,0", CUDA: "1,0"}, [0, 3]),
    ({HIP: "1", CUDA: "1"}, [1]), ({ROCR: "1", HIP: "0,1"}, []), ({HIP: "0", CUDA: "1"}, [0]), ({ROCR: ""}, []),
]  # fmt: skip
EVERY: list[tuple[dict[str, str], list[int]]] = [
    *(({} if text is None else {name: text}, expected) for name in (HIP, CUDA) for text, expected in TABLE),
    *COMPOSED,
]


@pytest.mark.parametrize("name", [*PROFILES, "mixed"])
def test_masks(name: str) -> None:
    """B03, B06: under every mask the devices left are the whole machine's by number, id, address and capability."""
    spec = "mi355x,rx-7900-xtx,rx-9070-xt,mi300x" if name == "mixed" else f"{name}:{4 // PROFILES[name][-1]}"
    whole = plugin.hardpoint_detect(hardpoint.simulate(spec)).devices
    assert len(whole) == 4
    for variables, expected in EVERY:
        machine = hardpoint.simulate(spec, variables=variables)
        detection = plugin.hardpoint_detect(machine)
        assert [device.physical_id for device in detection.devices] == expected, variables
        assert [facts(device) for device in detection.devices] == [facts(whole[place]) for place in expected]
        if expected:
            assert hardpoint.resolve("rocm", machine=machine).platform.device_count() == len(expected)
        else:
            assert [reason.code for reason in detection.reasons] == ["masked"]
            with pytest.raises(HardpointError, match=next(iter(variables))):
                hardpoint.resolve("rocm", machine=machine)


def facts(device: hardpoint.Device) -> tuple[Any, ...]:
    """What a device has whatever its logical number."""
    return device.uuid, device.pci_bus_id, device.capability, device.name, device.total_memory_bytes


@pytest.mark.parametrize("name", PROFILES)
def test_ids_in_the_mask(name: str) -> None:
    """B01: a device can be named by its id, in either variable, and is then called by it."""
    count = 4 // PROFILES[name][-1]
    ids = [device.uuid or "" for device in plugin.hardpoint_detect(hardpoint.simulate(name, count=count)).devices]
    for variables in ({HIP: f"{ids[2]},{ids[0]}"}, {ROCR: f"{ids[2]},{ids[0]}".upper()}):
        machine = hardpoint.simulate(name, count=count, variables=variables)
        devices = plugin.hardpoint_detect(machine).devices
        assert [device.physical_id for device in devices] == [2, 0]
        assert [str(device.visible_id).lower() for device in devices] == [ids[2].lower(), ids[0].lower()]


@pytest.mark.parametrize(("torch", "outcome"), [("hip: Optional[str] = '7.0'\n", "rocm"), ("hip = None\n", "cpu")])
def test_torch_settles_it(torch: str, outcome: str) -> None:
    """B11: with a torch for ROCm the platform is taken; with one for the CPU it is told why not."""
    pytest.importorskip("hardpoint_cpu")
    machine = hardpoint.simulate(
        "mi300x",
        distributions={"torch": "2.9.0"},
        files={"/usr/lib/python3/site-packages/torch/version.py": f"cuda: Optional[str] = None\n{torch}"},
    )
    resolution = hardpoint.resolve(machine=machine)
    assert resolution.platform.name == outcome
    candidates = {candidate.name: candidate for candidate in resolution.candidates}
    if outcome == "cpu":
        assert [reason.code for reason in candidates["rocm"].reasons] == ["other_build"]


@pytest.mark.parametrize("name", [*PROFILES, "mixed"])
def test_snapshot(name: str) -> None:
    """A snapshot of such a machine shows other ids, and decides the same again, under masks by number and by id too."""
    spec = MIXED if name == "mixed" else f"{name}:{4 // PROFILES[name][-1]}"
    whole = plugin.hardpoint_detect(hardpoint.simulate(spec)).devices
    ids = [device.uuid or "" for device in whole]
    words = hardpoint.simulate(spec).read_text(f"{NODES}/1/properties").split()
    numbers = [word for word in words if word.isdigit() and len(word) > 15]
    for variables, expected in (
        ({}, list(range(len(whole)))),
        ({HIP: "3,1"}, [3, 1]),
        ({ROCR: "1,2", HIP: "1"}, [2]),
        ({HIP: f"{ids[2]},{ids[0]}"}, [2, 0]),
        ({ROCR: f"{ids[1]},{ids[3]}".upper(), CUDA: "1"}, [3]),
    ):
        taken = hardpoint.snapshot(machine=hardpoint.simulate(spec, variables=variables))
        platform = hardpoint.resolve("rocm", machine=taken.machine()).platform
        assert [device.physical_id for device in platform.devices] == expected
        assert [device.as_dict() for device in platform.devices] == taken.report.as_dict()["platform"]["devices"]
        assert [device.capability for device in platform.devices] == [whole[place].capability for place in expected]
        text = taken.to_json().lower()
        assert not [private for private in (*ids, *numbers) if private.lower() in text]


@pytest.mark.parametrize(("torch", "outcome", "refused"), [("hip", "rocm", "cuda"), ("cuda", "cuda", "rocm")])
def test_two_vendors_in_one_machine(torch: str, outcome: str, refused: str) -> None:
    """B11: where NVIDIA's devices are there as well, what torch is built for settles it, and the other one is told."""
    pytest.importorskip("hardpoint_cuda")
    site = "/usr/lib/python3/site-packages/torch/version.py"
    amd = hardpoint.simulate("mi300x", distributions={"torch": "2.9.0"}, files={"/dev/nvidiactl": "", site: ""})
    card = {"index": 0, "name": "NVIDIA H100", "uuid": "GPU-1", "capability": [9, 0], "cores": 16896}
    versions = {"hip": "None", "cuda": "None", torch: "'9.1'"}
    text = "".join(f"{name} = {version}\n" for name, version in versions.items())
    amd._files[site] = text
    amd._probes["cuda.nvml"] = {"devices": [card], "cuda_version": [12, 8]}
    resolution = hardpoint.resolve(machine=amd, strict=True)
    assert resolution.platform.name == outcome
    (other,) = (candidate for candidate in resolution.candidates if candidate.name == refused)
    assert [reason.code for reason in other.reasons] == ["other_build"]


def test_nothing_heavy_is_loaded() -> None:
    """On simulated machines import, resolution and static selection load no torch, whichever card it is."""
    code = (
        "import sys, hardpoint\n"
        f"for name in {sorted(PROFILES)!r}:\n"
        "    platform = hardpoint.resolve(machine=hardpoint.simulate(name)).platform\n"
        "    config = hardpoint.AttentionConfig(head_size=128, num_heads=8, dtype='bfloat16', block_size=16)\n"
        "    platform.get_valid_backends(platform.get_device_capability(), config, depth='static')\n"
        "    print(platform.name, *(name for name in ('torch', 'numpy', 'amdsmi') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["rocm"] * len(PROFILES)


def test_hive() -> None:
    """Cards of one kind in one machine are connected by XGMI where the kind has it; of Radeon cards nobody knows."""
    instinct = hardpoint.resolve(machine=hardpoint.simulate("mi300x", count=2)).platform
    radeon = hardpoint.resolve(machine=hardpoint.simulate("rx-7900-xtx", count=2)).platform
    assert (instinct.are_peers(0, 1), radeon.are_peers(0, 1)) == (True, None)
