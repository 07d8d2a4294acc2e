"""The profiles: what a machine of each is taken for, under every kind of mask."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

import hardpoint
from hardpoint.errors import NoPlatformError, ResolutionError

if TYPE_CHECKING:
    from pathlib import Path

    from hardpoint import Candidate, Machine
    from hardpoint.platforms import Platform

GIB = 1 << 30

# Architecture, multiprocessors, memory in GiB as sold or None where it is the machine's, features that are there, and
# those that are not.
KNOWN: dict[str, tuple[str, int, int | None, str, str]] = {
    "t4": ("sm_75", 40, 16, "fp16 int8_tensor_cores", "bf16 fp8"),
    "a100-40gb": ("sm_80", 108, 40, "bf16 tf32", "fp8 tma"),
    "a100-80gb": ("sm_80", 108, 80, "bf16 tf32", "fp8 tma"),
    "l4": ("sm_89", 58, 24, "bf16 fp8", "tma pdl wgmma"),
    "l40s": ("sm_89", 142, 48, "bf16 fp8", "tma pdl wgmma"),
    "rtx-4090": ("sm_89", 128, 24, "bf16 fp8", "tma pdl wgmma"),
    "h100": ("sm_90", 132, 80, "fp8 tma pdl wgmma", "fp4 tcgen05"),
    "h200": ("sm_90", 132, 141, "fp8 tma pdl wgmma", "fp4 tcgen05"),
    "b200": ("sm_100", 148, 180, "fp4 tcgen05 pdl", "wgmma"),
    "rtx-5090": ("sm_120", 170, 32, "fp4 pdl", "wgmma tcgen05"),
    "gb10": ("sm_121", 48, None, "fp4 pdl", "wgmma tcgen05"),
    "jetson-thor": ("sm_110", 20, None, "fp4 tcgen05", "wgmma"),
}

# What four equal devices are under a mask, by the numbers that stay. PyTorch's parser says the same.
MASKS: list[tuple[str | None, list[int]]] = [
    (None, [0, 1, 2, 3]),
    ("0", [0]),
    ("1,0", [1, 0]),
    (" 0 , 1 ", [0, 1]),
    ("0,-1,1", [0]),
    ("0,99,1", [0]),
    ("0,", [0]),
    ("+1", [1]),
    ("1gpu2,2ampere", [1, 2]),
    ("", []),
    ("-1", []),
    ("NoDevFiles", []),
    ("0,1,0", []),
    ("99,0", []),
]


def resolve(spec: str, count: int = 1, **variables: str) -> Platform:
    """The platform of a simulated machine."""
    return hardpoint.resolve(machine=hardpoint.simulate(spec, count=count, variables=variables)).platform


def rejection(machine: Machine) -> Candidate:
    """What became of CUDA on a machine that is another platform's, or none's where this plugin is alone."""
    try:
        resolution = hardpoint.resolve(machine=machine)
    except NoPlatformError as error:
        candidates = error.candidates
    else:
        assert resolution.platform.name != "cuda"
        candidates = resolution.candidates
    (candidate,) = (item for item in candidates if item.name == "cuda")
    return candidate


def codes(machine: Machine) -> list[str]:
    """The codes of CUDA's rejection."""
    return [str(reason.code) for reason in rejection(machine).reasons]


def test_every_profile_is_known() -> None:
    """The table above has them all."""
    assert {profile.name for profile in hardpoint.list_profiles() if profile.platform == "cuda"} == {*KNOWN}


@pytest.mark.parametrize("name", KNOWN)
def test_device(name: str) -> None:
    """A machine of one device resolves to CUDA, with what is known of that device and its sources."""
    architecture, multiprocessors, memory, present, absent = KNOWN[name]
    platform = resolve(name)
    (device,) = platform.devices
    assert platform.name == "cuda"
    assert device.capability is not None
    assert device.capability.arch == architecture
    assert device.properties["sm_count"] == multiprocessors
    assert device.properties["integrated"] is (memory is None)
    assert device.capability.features.issuperset(present.split())
    assert device.capability.features.isdisjoint(absent.split())
    total = platform.get_device_total_memory(0)
    assert total is not None
    # Of shared memory the firmware keeps some; of its own a device shows about what it is sold with.
    assert 0.9 <= total / ((memory or 128) * (1e9 if memory is None else GIB)) <= 1.05
    (profile,) = (profile for profile in hardpoint.list_profiles() if profile.name == name)
    assert all(source.startswith("https://") for source in profile.sources)


@pytest.mark.parametrize(("mask", "numbers"), MASKS)
@pytest.mark.parametrize("name", KNOWN)
def test_masks(name: str, mask: str | None, numbers: list[int]) -> None:
    """The devices that a mask leaves, in its order and with their own ids; none: CUDA is out, and `masked` says why."""
    every = resolve(name, 4).devices
    variables = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    machine = hardpoint.simulate(name, count=4, variables=variables)
    if not numbers:
        assert codes(machine) == ["masked"]
        return
    devices = hardpoint.resolve(machine=machine).platform.devices
    assert [device.physical_id for device in devices] == numbers
    assert [device.uuid for device in devices] == [every[number].uuid for number in numbers]
    assert [device.pci_bus_id for device in devices] == [every[number].pci_bus_id for number in numbers]
    assert [device.index for device in devices] == list(range(len(numbers)))


@pytest.mark.parametrize("name", KNOWN)
def test_ids_in_the_mask(name: str) -> None:
    """Devices are named by their ids too, or by as much of an id as means one."""
    every = resolve(name, 4).devices
    ids = [every[2].uuid or "", (every[0].uuid or "")[:14]]
    devices = resolve(name, 4, CUDA_VISIBLE_DEVICES=",".join(ids)).devices
    assert [device.physical_id for device in devices] == [2, 0]


def test_mixed_machine() -> None:
    """Models differ: devices are numbered as the driver says, which a profile's machine does in the order asked for."""
    platform = resolve("h100:2,t4,a100-40gb")
    names = [device.capability.arch for device in platform.devices if device.capability is not None]
    assert names == ["sm_90", "sm_90", "sm_75", "sm_80"]
    assert len({device.uuid for device in platform.devices}) == 4
    assert platform.supported_dtypes[0] == "float16"
    assert [device.physical_id for device in resolve("h100:2,t4,a100-40gb", CUDA_VISIBLE_DEVICES="3,1").devices] == [
        3,
        1,
    ]


def test_two_machines_are_equal() -> None:
    """A simulation is the same every time: ids and all."""
    assert resolve("h100", 8).devices == resolve("h100", 8).devices


@pytest.mark.parametrize("mask", [None, "2,0", "GPU-", ""])
@pytest.mark.parametrize("name", KNOWN)
def test_snapshot(name: str, mask: str | None, tmp_path: Path) -> None:
    """What a simulated machine was asked and answered, read back from a file, gives the same devices."""
    variables = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    machine = hardpoint.simulate(name, count=3, variables=variables)
    taken = hardpoint.snapshot(machine=machine)
    taken.write(tmp_path / "machine.json")
    again = hardpoint.read_snapshot(tmp_path / "machine.json")
    assert again.report == taken.report
    assert again.recompute().changes == ()
    if mask in ("GPU-", ""):
        assert codes(machine) == codes(again.machine())
        return
    devices, replayed = (hardpoint.resolve(machine=item).platform.devices for item in (machine, again.machine()))
    assert [(device.name, device.capability, device.physical_id) for device in devices] == [
        (device.name, device.capability, device.physical_id) for device in replayed
    ]


def test_cpu_wheel_on_a_simulated_device() -> None:
    """Installed distributions are the caller's to say, and a torch for the CPU makes the devices unusable."""
    machine = hardpoint.simulate("h100", distributions={"torch": "2.13.0+cpu"})
    assert codes(machine) == ["other_build"]
    assert "CUDA 12.8" in (rejection(machine).reasons[0].remedy or "")
    with pytest.raises(ResolutionError, match="built for the CPU only"):
        hardpoint.resolve("cuda", machine=machine)


def test_no_torch_and_no_library_is_loaded() -> None:
    """Import and resolution on a simulated machine load neither torch nor NVML."""
    program = (
        "import sys, hardpoint; "
        "print(hardpoint.resolve(machine=hardpoint.simulate('b200:8')).platform.name, "
        "sorted({'torch', 'numpy', 'pynvml', 'ctypes'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "cuda []"


@pytest.mark.parametrize(
    ("mask", "remedy"),
    [
        ("", None), ("-1", None), ("NoDevFiles", None),
        *(
            (mask, "unset CUDA_VISIBLE_DEVICES, or give it devices that exist")
            for mask in ("GPU-typo", "7", "0,0", "abc", "MIG-x")
        ),
    ],
)  # fmt: skip
def test_a_mask_that_is_a_mistake_has_a_remedy(mask: str, remedy: str | None) -> None:
    """B01, B03: it costs the platform a WARNING; hiding every device in one of the usual ways does not."""
    machine = hardpoint.simulate("h100", count=2, variables={"CUDA_VISIBLE_DEVICES": mask})
    assert [reason.remedy for reason in rejection(machine).reasons] == [remedy]
    if find_spec("hardpoint_cpu") is not None:
        assert hardpoint.resolve(machine=machine).is_fallback is (remedy is not None)


@pytest.mark.parametrize("mask", ["9" * 100_000, "GPU-" + "f" * 100_000, "MIG-" + "f" * 100_000])
def test_a_mask_of_any_length_is_told_in_a_few_words(mask: str) -> None:
    """A message shows its beginning."""
    machine = hardpoint.simulate("h100", variables={"CUDA_VISIBLE_DEVICES": mask})
    assert len(rejection(machine).describe()) < 500
