from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardpoint import EnvironmentFailure, InMemoryMachine, ReasonCode
from hardpoint._machine import ToolResult
from hardpoint.hookspecs import Detection, DetectionStatus
from hardpoint_rocm._rocminfo import parse_agents
from hardpoint_rocm.plugin import plugin

WSL = "5.15.167.4-microsoft-standard-WSL2"


def agent(number: int, kind: str, **fields: str) -> str:
    """One agent as the tool prints it; after it a memory pool and an instruction set, with fields of the same names."""
    values = {"Uuid": "GPU-XX", "Marketing Name": "AMD Radeon RX 7900 XTX", "Compute Unit": "96", **fields}
    lines = "".join(f"  {name}:                    {value}\n" for name, value in values.items())
    return (
        f"*******\nAgent {number}\n*******\n  Name:                    {fields.get('Name', 'gfx1100')}\n{lines}"
        f"  Device Type:             {kind}\n  Pool Info:\n    Pool 1\n      Segment:                 GLOBAL\n"
        "      Size:                    25149440(0x17fc000) KB\n    Pool 2\n      Size:               64(0x40) KB\n"
        "  ISA Info:\n    ISA 1\n      Name:                    amdgcn-amd-amdhsa--gfx1100\n"
    )


TEXT = (
    "WSL environment detected.\n=====\nHSA Agents\n=====\n"
    + agent(1, "CPU", Name="AMD Ryzen 9")
    + agent(2, "GPU")
    + agent(3, "GPU", Name="gfx1201", **{"Uuid": "GPU-00000000000000ab", "Marketing Name": "AMD Radeon RX 9070 XT"})
)


def detect(answer: ToolResult | str | Exception, **facts: object) -> Detection:
    """What the hook answers in WSL, where the tool answers so."""
    machine = InMemoryMachine(
        kernel_release=WSL, files={"/dev/dxg": ""}, tools={"rocminfo": answer}, **facts  # type: ignore[arg-type]
    )  # fmt: skip
    return plugin.hardpoint_detect(machine)


def test_devices() -> None:
    """In WSL the runtime's own tool tells the devices: names, architectures, memory, ids where there are some."""
    one, two = detect(TEXT).devices
    assert one.capability is not None
    assert (one.name, one.capability.arch, one.uuid) == ("AMD Radeon RX 7900 XTX", "gfx1100", None)
    assert (one.total_memory_bytes, one.properties["compute_units"]) == (25149440 << 10, 96)
    assert (two.name, two.uuid, two.physical_id) == ("AMD Radeon RX 9070 XT", "GPU-00000000000000ab", 1)


def test_masks() -> None:
    """The tool applies the runtime's mask itself; HIP's counts in what it lists."""
    (device,) = detect(TEXT, variables={"ROCR_VISIBLE_DEVICES": "3,2", "HIP_VISIBLE_DEVICES": "1"}).devices
    assert device.name == "AMD Radeon RX 9070 XT"
    none = detect("no agents", variables={"ROCR_VISIBLE_DEVICES": "9"})
    assert (none.status, none.reasons[0].code) == (DetectionStatus.UNUSABLE, ReasonCode.MASKED)
    assert "ROCR_VISIBLE_DEVICES='9'" in none.reasons[0].message


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (ToolResult(134, "", "an assertion\nfailed"), "driver", "rocminfo ended with 134: an assertion failed"),
        (ToolResult(1, "ROCk module is NOT loaded", ""), "driver", "ended with 1: ROCk module is NOT loaded"),
        (ToolResult(1, "", ""), "driver", "it says nothing"),
        (EnvironmentFailure("timed out after 5 s running rocminfo", code="timeout"), "timeout", "timed out after 5 s"),
        (PermissionError(13, "Permission denied", "rocminfo"), "permission", "Permission denied"),
    ],
)
def test_tool_that_fails(answer: ToolResult | Exception, code: str, words: str) -> None:
    """B14: a tool that fails or hangs is a reason with its words."""
    detection = detect(answer)
    assert (detection.status, [reason.code for reason in detection.reasons]) == (DetectionStatus.UNUSABLE, [code])
    assert words in detection.reasons[0].message


def test_no_devices() -> None:
    """WSL's graphics node says nothing of the vendor: without the tool, or without a device in it, there is none."""
    without = InMemoryMachine(kernel_release=WSL, files={"/dev/dxg": ""})
    detection = plugin.hardpoint_detect(without)
    assert (detection.status, "no rocminfo" in detection.reasons[0].message) == (DetectionStatus.ABSENT, True)
    listed = detect(agent(1, "CPU"))
    assert (listed.status, listed.reasons[0].code) == (DetectionStatus.ABSENT, ReasonCode.NO_DEVICE)


def test_tool_off_the_search_path() -> None:
    """Where only ROCm's folder has the tool it is called from there."""
    files = {"/dev/dxg": "", "/opt/rocm/bin/rocminfo": ""}
    machine = InMemoryMachine(kernel_release=WSL, files=files, tools={"/opt/rocm/bin/rocminfo": TEXT})
    assert len(plugin.hardpoint_detect(machine).devices) == 2


@given(
    st.lists(st.sampled_from([*TEXT.splitlines(), "Agent 4", "  Device Type:  GPU", "  Size: 9(0x9) KB"]) | st.text())
)
def test_garbage_of_the_tool(lines: list[str]) -> None:
    """Whatever the tool prints, detection ends with devices or with a reason."""
    text = "\n".join(lines)
    detection = detect(text)
    assert len(detection.devices) == len(parse_agents(text))
    assert detection.devices or detection.reasons
