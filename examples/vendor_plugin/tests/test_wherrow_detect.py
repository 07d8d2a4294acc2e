"""Detection: what the machine and the driver say, and every way in which they can fail to."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from examples.vendor_plugin.tests.conftest import HERE, MEBIBYTE
from hardpoint import EnvironmentFailure, InMemoryMachine, LiveMachine
from hardpoint.hookspecs import DetectionStatus

if TYPE_CHECKING:
    from examples.vendor_plugin.tests.conftest import MakeRoot
    from hardpoint.hookspecs import Detection

PROFILE = HERE / "src" / "wherrow" / "profiles" / "wherrow-w1.json"


def detect(machine: LiveMachine | InMemoryMachine) -> Detection:
    """What the plugin answers."""
    from wherrow.plugin import platform_plugin

    return platform_plugin.hardpoint_detect(machine)


def remembered(count: int, **variables: str) -> InMemoryMachine:
    """A machine of `count` such devices, made of the profile's facts."""
    profile = json.loads(PROFILE.read_text())

    def filled(value: Any, index: int) -> Any:
        if isinstance(value, dict):
            return {filled(name, index): filled(item, index) for name, item in value.items()}
        if isinstance(value, list):
            return [filled(item, index) for item in value]
        if value == "{index:d}":
            return index
        return value.format(index=index, uuid=f"u{index}") if isinstance(value, str) else value

    parts = [filled(profile["per_device"], index) for index in range(count)]
    answer = dict(profile["per_machine"]["probes"]["wherrow.devices"])
    answer["devices"] = [found for part in parts for found in part["probes"]["wherrow.devices"]["devices"]]
    files = {path: text for part in parts for path, text in part["files"].items()}
    return InMemoryMachine(
        files=files,
        probes={"wherrow.devices": answer},
        variables=variables,
        distributions={"torch": "2.13.0", "wherrow-hardpoint": "1.4.0"},
    )


def test_without_a_node_nothing_else_is_asked() -> None:
    """Where there is no such hardware, detection is two variables and one look at the file tree."""
    machine = InMemoryMachine()
    found = detect(machine)
    assert found.status is DetectionStatus.ABSENT
    assert found.reasons[0].message == "no device node /dev/wherrow0"
    assert {question.split()[0] for question in machine.questions} == {"variable", "exists"}
    assert [question for question in machine.questions if question.startswith("exists")] == ["exists /dev/wherrow0"]


def test_the_profile_is_detected_as_a_device() -> None:
    """The facts of the profile go through the same detection as a real machine's."""
    found = detect(remembered(2))
    assert found.status is DetectionStatus.USABLE
    assert [(item.index, item.physical_id, item.uuid) for item in found.devices] == [(0, 0, "WHR-u0"), (1, 1, "WHR-u1")]
    capability = found.devices[0].capability
    assert capability is not None
    assert (capability.runtime, capability.arch, capability.version) == ("wherrow", "w1", None)
    assert capability.features == {"fp32", "bf16", "paged_attention"}


def test_the_mask_chooses_and_orders() -> None:
    """Logical numbers follow the mask; what the driver calls a device is kept beside them."""
    found = detect(remembered(3, WHERROW_VISIBLE_DEVICES="2, 0"))
    assert [(item.index, item.physical_id, item.visible_id) for item in found.devices] == [(0, 2, "2"), (1, 0, "0")]


@pytest.mark.parametrize(
    ("mask", "code", "said"),
    [
        ("", "masked", "WHERROW_VISIBLE_DEVICES is empty: it hides every device"),
        ("0,0", "masked", "WHERROW_VISIBLE_DEVICES='0,0': expected different ones of 0, 1"),
        ("7", "masked", "WHERROW_VISIBLE_DEVICES='7': expected different ones of 0, 1"),
        ("-1", "masked", "expected different ones of 0, 1"),
        ("²", "masked", "expected different ones of 0, 1"),
        ("9" * 5000, "masked", "expected different ones of 0, 1"),
    ],
)
def test_a_mask_that_leaves_nothing_is_a_reason(mask: str, code: str, said: str) -> None:
    """An empty mask is the user's own word; one that means nothing is a loss, with its value."""
    found = detect(remembered(2, WHERROW_VISIBLE_DEVICES=mask))
    assert found.status is DetectionStatus.UNUSABLE
    assert found.reasons[0].code == code
    assert said in found.reasons[0].message


def test_a_device_that_the_driver_does_not_know_is_a_reason() -> None:
    """A node alone is no device."""
    machine = remembered(1)
    answer = machine.probe("wherrow.devices", "")
    found = detect(InMemoryMachine(files={"/dev/wherrow0": ""}, probes={"wherrow.devices": {**answer, "devices": []}}))
    assert found.status is DetectionStatus.UNUSABLE
    assert "the driver does not know /dev/wherrow0" in found.reasons[0].message


@pytest.mark.compiler
def test_the_real_driver_is_asked(make_root: MakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's library is loaded and queried; no device is opened, and torch is not imported by it."""
    monkeypatch.setenv("WHERROW_ROOT", str(make_root(2)))
    before = "torch" in sys.modules
    found = detect(LiveMachine())
    assert [item.uuid for item in found.devices] == ["WHR-0", "WHR-1"]
    assert found.devices[0].total_memory_bytes == 64 * MEBIBYTE
    assert found.devices[0].properties["driver"] == "1.4.2"
    assert ("torch" in sys.modules) == before


@pytest.mark.compiler
def test_of_an_unknown_architecture_little_is_certain(make_root: MakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is newer than the plugin is usable, with the features that every one has."""
    from wherrow.platform import WherrowPlatform

    monkeypatch.setenv("WHERROW_ROOT", str(make_root(arch="w9")))
    machine = LiveMachine()
    platform = WherrowPlatform(machine, detect(machine).devices)
    capability = platform.get_device_capability(0)
    assert capability is not None
    assert (capability.arch, capability.features) == ("w9", frozenset({"fp32"}))
    assert platform.supported_dtypes == ("float32",)


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("kept", "code", "said"),
    [
        (40, "broken_import", "file too short"),
        (9000, "broken_import", "file too short: it has 9000 bytes"),
    ],
)
def test_a_library_that_was_cut_off_is_a_reason(
    kept: int, code: str, said: str, make_root: MakeRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hardware with a broken driver is unusable, with the library's path and what is wrong with it."""
    root = make_root(kept=kept)
    monkeypatch.setenv("WHERROW_ROOT", str(root))
    found = detect(LiveMachine())
    assert found.status is DetectionStatus.UNUSABLE
    assert found.reasons[0].code == code
    assert said in found.reasons[0].message
    assert str(root / "lib" / "libwherrow.so.1") in found.reasons[0].message


@pytest.mark.compiler
def test_a_missing_library_is_a_reason(make_root: MakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node is there and the library is not."""
    root = make_root()
    (root / "lib" / "libwherrow.so.1").unlink()
    monkeypatch.setenv("WHERROW_ROOT", str(root))
    found = detect(LiveMachine())
    assert (found.status, found.reasons[0].code) == (DetectionStatus.UNUSABLE, "missing_library")
    assert f"{root}/dev/wherrow0 is there, and the device cannot be used" in found.reasons[0].message


@pytest.mark.compiler
def test_another_library_of_that_name_is_a_reason(make_root: MakeRoot, library: object) -> None:
    """A library that lacks a function is no driver of ours, and is named with the function."""
    import subprocess

    from wherrow._driver import Driver

    root = make_root()
    target = root / "lib" / "libwherrow.so.1"
    target.unlink()
    subprocess.run(
        ["cc", "-shared", "-x", "c", "-o", str(target), "-"], input=b"int wherrow_query(void) { return 0; }", check=True
    )
    with pytest.raises(EnvironmentFailure, match="has no wherrow_error_text") as caught:
        Driver(str(root))
    assert (caught.value.code, caught.value.remedy) == ("driver", "install the driver 1.4 or newer")


@pytest.mark.compiler
def test_the_doctor_is_told_what_was_found(make_root: MakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """The section has the driver's folder, the mask, the devices, and the reasons where there are some."""
    from wherrow.plugin import platform_plugin

    root = make_root()
    monkeypatch.setenv("WHERROW_ROOT", str(root))
    (section,) = platform_plugin.hardpoint_report(LiveMachine())
    assert section.title == "Wherrow"
    lines = dict(section.lines)
    assert (lines["driver folder"], lines["mask"], lines["outcome"]) == (str(root), "None", "usable")
    assert lines["device 0"] == "Wherrow W1, w1, WHR-0"
    (root / "lib" / "libwherrow.so.1").unlink()
    (section,) = platform_plugin.hardpoint_report(LiveMachine())
    assert "no such library" in dict(section.lines)["reason"]
    (section,) = platform_plugin.hardpoint_report(InMemoryMachine())
    assert [label for label, _ in section.lines] == ["driver folder", "mask"]
