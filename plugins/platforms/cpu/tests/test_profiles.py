"""The profiles that this plugin brings, each detected by the very code that looks at a real machine."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

import pytest

import hardpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

AVX512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
PROFILES = {
    "x86-64-v3": ("x86-64-v3", {"avx2", "fma", "f16c"}, {*AVX512, "bf16", "fp16", "amx_tile"}, "unknown"),
    "x86-64-v4": ("x86-64-v4", {"avx2", *AVX512}, {"bf16", "fp16", "amx_tile"}, "unknown"),
    "sapphire-rapids": ("x86-64-v4", {"bf16", "fp16", "amx_tile", "amx_bf16", "amx_int8"}, set(), "Intel"),
    "zen5": ("x86-64-v4", {"bf16", "avx512_bf16", "avx512_vnni", "avx512_vp2intersect"}, {"fp16", "amx_tile"}, "AMD"),
    "graviton4": ("armv9-a", {"bf16", "fp16", "sve2", "i8mm", "asimddp"}, {"sme", "avx2"}, "Arm"),
    "apple-m1": ("armv8.4-a", {"fp16", "asimddp"}, {"bf16", "i8mm", "sve", "sme"}, "Apple"),
    "apple-m2": ("armv8.6-a", {"bf16", "fp16", "i8mm"}, {"sve", "sme"}, "Apple"),
}
ALIASES = {"amx": "sapphire-rapids", "spr": "sapphire-rapids", "apple-m": "apple-m2", "turin": "zen5"}


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No other plugin takes part."""
    monkeypatch.setenv("HARDPOINT_PLUGINS", "platform/cpu")
    hardpoint.reset()
    yield
    hardpoint.reset()


def test_every_file_is_a_profile() -> None:
    """No file has a fault, each says where its figures come from, and these tests know all of them."""
    found = [item for item in hardpoint.list_profiles() if item.platform == "cpu"]
    assert [item.fault for item in found if item.fault] == []
    assert {item.name for item in found} == set(PROFILES)
    assert {file.name for file in files("hardpoint_cpu").joinpath("profiles").iterdir()} == {
        f"{name}.json" for name in PROFILES
    }
    assert all(source.startswith("https://") for item in found for source in item.sources)


@pytest.mark.parametrize("name", PROFILES)
def test_capability(name: str) -> None:
    """Each has the level, the features and the vendor of the real one, and not those that it lacks."""
    arch, present, absent, vendor = PROFILES[name]
    (device,) = hardpoint.resolve(machine=hardpoint.simulate(name)).platform.devices
    assert device.capability is not None
    assert (device.capability.runtime, device.capability.arch) == ("cpu", arch)
    assert device.capability.features >= present
    assert not device.capability.features & absent
    assert device.properties["vendor"] == vendor
    assert device.properties["amx_refusal"] is None
    assert device.total_memory_bytes
    assert isinstance(device.properties["usable_cpus"], int)
    assert device.properties["usable_cpus"] >= 4


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_alias(alias: str, name: str) -> None:
    """What people call it is accepted too."""
    one, other = (hardpoint.resolve(machine=hardpoint.simulate(item)).platform.devices for item in (alias, name))
    assert one == other


@pytest.mark.parametrize("name", PROFILES)
def test_snapshot_of_each(name: str) -> None:
    """What was simulated, put into a snapshot and replayed is detected as the same."""
    machine = hardpoint.simulate(name)
    replayed = hardpoint.snapshot(machine=machine).machine()
    assert hardpoint.resolve(machine=replayed).platform.devices == hardpoint.resolve(machine=machine).platform.devices


def test_hardware_threads_of_one_core() -> None:
    """A processor with two threads per core computes with one of them, one without with all."""
    platforms = [hardpoint.resolve(machine=hardpoint.simulate(name)).platform for name in ("amx", "zen5")]
    assert [platform.recommended_threads() for platform in platforms] == [2, 4]  # type: ignore[attr-defined]  # the CPU's own


def test_mac_answers_through_its_tool() -> None:
    """The profile of a Mac holds what sysctl prints, and nothing of Linux."""
    machine = hardpoint.simulate("apple-m")
    assert machine.system == "Darwin"
    assert "Apple M2" in machine.run_tool(["sysctl", "hw.optional", "machdep.cpu"]).stdout
    assert not machine.exists("/proc/cpuinfo")
