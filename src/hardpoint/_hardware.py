"""Which accelerators the machine shows on its PCI bus and among its device nodes, whatever plugins are installed.

The knowledge is data (`hardware.json`), so that a vendor's device can be named where nothing of that vendor is there.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from hardpoint.errors import NotRecorded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hardpoint._machine import Machine

_BUS: Final = "/sys/bus/pci/devices"
_MAX_DEVICES: Final = 512
"""A large server has some two hundred PCI functions."""


@lru_cache(maxsize=1)
def known_accelerators() -> tuple[dict[str, Any], ...]:  # Any: JSON
    """The entries of the data file."""
    import json
    import pkgutil

    text = pkgutil.get_data("hardpoint", "hardware.json") or b"{}"
    return tuple(json.loads(text)["accelerators"])


def find_hardware(machine: Machine) -> list[dict[str, Any]]:  # Any: JSON
    """The accelerators seen: name, the platform and distribution that drive it, how many, and what speaks for it.

    `count` is that of PCI functions; None where only a device node is seen. Reads a few small files; asks no driver.
    """
    functions = list(_functions(machine))
    found = []
    for entry in known_accelerators():
        addresses = [address for address, facts in functions if any(_matches(rule, facts) for rule in entry["pci"])]
        nodes = [path for path in entry["nodes"] if _exists(machine, path)]
        if addresses or nodes:
            found.append(
                {
                    "name": entry["name"],
                    "platform": entry["platform"],
                    "distribution": entry["distribution"],
                    "count": len(addresses) or None,
                    "evidence": [*(f"PCI {address}" for address in addresses[:16]), *nodes],
                    "remedy": entry["remedy"],
                }
            )
    return found


def _functions(machine: Machine) -> Iterator[tuple[str, dict[str, str]]]:
    try:
        addresses = machine.list_directory(_BUS)
    except OSError:
        # No such bus, no /sys, or nobody recorded it.
        return
    for address in addresses[:_MAX_DEVICES]:
        try:
            vendor = machine.read_text(f"{_BUS}/{address}/vendor", limit=16).strip().lower()
            if vendor not in _vendors():
                continue
            facts = {"vendor": vendor}
            for name in ("device", "class"):
                facts[name] = machine.read_text(f"{_BUS}/{address}/{name}", limit=16).strip().lower()
        except OSError:
            continue
        yield address, facts


def _exists(machine: Machine, path: str) -> bool:
    try:
        return machine.exists(path)
    except NotRecorded:
        return False


@lru_cache(maxsize=1)
def _vendors() -> frozenset[str]:
    return frozenset(rule["vendor"] for entry in known_accelerators() for rule in entry["pci"])


def _matches(rule: dict[str, Any], facts: dict[str, str]) -> bool:
    if rule["vendor"] != facts["vendor"]:
        return False
    # The class is 0x030200: base class, subclass, programming interface.
    return facts["device"] in rule.get("devices", ()) or facts["class"][:6] in rule.get("classes", ())
