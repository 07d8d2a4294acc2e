"""ROCm in WSL: there is no driver of AMD's under Linux, and so no file to read. The runtime's own tool is asked.

``rocminfo`` loads the runtime in a process of its own and prints its devices in its order, under its own mask.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hardpoint import Reason, ReasonCode
from hardpoint_rocm._arch import parse_arch
from hardpoint_rocm._inventory import Gpu, format_uuid

if TYPE_CHECKING:
    from hardpoint import Machine

_TOOL: Final = "rocminfo"
_INSTALLED: Final = "/opt/rocm/bin/rocminfo"
_REMEDY: Final = "update AMD's driver for WSL in Windows, and install the librocdxg that belongs to this ROCm"

_AGENT: Final = re.compile(r"^Agent\s+\d+\s*$", re.MULTILINE)
_FIELD: Final = re.compile(r"^\s*([A-Z][A-Za-z .]{1,40}):[ \t]*(\S[^\n]*)$", re.MULTILINE)
_SIZE: Final = re.compile(r"(\d{1,15})\s*\(0x[0-9a-fA-F]+\)\s*KB", re.ASCII)


def find_tool(machine: Machine) -> str | None:
    """How to call the tool; None: it is not installed."""
    if machine.find_tool(_TOOL) is not None:
        return _TOOL
    return _INSTALLED if machine.exists(_INSTALLED) else None


def ask_tool(machine: Machine, tool: str) -> tuple[Gpu, ...] | Reason:
    """The devices in the runtime's order, under its mask, or why it cannot say. Errors: `OSError`."""
    answer = machine.run_tool([tool])
    if answer.returncode != 0:
        words = " ".join((answer.stderr or answer.stdout).split())[-300:] or "it says nothing"
        return Reason(code=ReasonCode.DRIVER, message=f"{tool} ended with {answer.returncode}: {words}", remedy=_REMEDY)
    return parse_agents(answer.stdout)


def parse_agents(text: str) -> tuple[Gpu, ...]:
    """The devices in what the tool prints; processors and what else it lists are left out."""
    gpus: list[Gpu] = []
    for section in _AGENT.split(text)[1:]:
        fields: dict[str, str] = {}
        sizes = [0]
        for name, value in _FIELD.findall(section):
            # What follows is about parts of the agent, whose fields have the same names.
            fields.setdefault(name, value.strip())
            if name == "Size" and (size := _SIZE.match(value)):
                sizes.append(int(size[1]))
        if fields.get("Device Type") != "GPU":
            continue
        units = fields.get("Compute Unit", "")
        gpus.append(
            Gpu(
                number=len(gpus),
                arch=parse_arch(fields.get("Name")),
                name=fields.get("Marketing Name"),
                uuid=format_uuid(fields.get("Uuid")),
                memory_bytes=max(sizes) << 10 or None,
                compute_units=int(units) if units.isascii() and units.isdigit() and len(units) < 6 else None,
            )
        )
    return tuple(gpus)
