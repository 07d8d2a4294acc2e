"""What a device is sold as: from its own memory of it, else from the list that libdrm installs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hardpoint._pci import read_attribute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint import Machine
    from hardpoint_rocm._inventory import Gpu

_LISTS: Final = ("/usr/share/libdrm/amdgpu.ids", "/opt/amdgpu/share/libdrm/amdgpu.ids")


def with_names(machine: Machine, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The devices, each with a name."""
    listed: dict[tuple[int, int], str] | None = None
    named = []
    for gpu in gpus:
        # amdsmi gives the number of a device that it has no name for.
        name = None if gpu.name is None or gpu.name.startswith("0x") else gpu.name
        # Server cards hold their name; on others the file is there and empty.
        name = name or read_attribute(machine, gpu.pci_bus_id, "product_name", limit=256)
        if name is None and gpu.device_id is not None:
            listed = _read_list(machine) if listed is None else listed
            revision = _hexadecimal(read_attribute(machine, gpu.pci_bus_id, "revision", limit=16))
            name = listed.get((gpu.device_id, -1 if revision is None else revision))
        named.append(gpu._replace(name=name or _plain(gpu)))
    return tuple(named)


def _plain(gpu: Gpu) -> str:
    what = "device" if gpu.arch is None else gpu.arch.name
    return f"AMD {what}" if gpu.device_id is None else f"AMD {what} (0x{gpu.device_id:04x})"


def _read_list(machine: Machine) -> dict[tuple[int, int], str]:
    """Names by device and revision: lines such as ``744C, C8, AMD Radeon RX 7900 XTX``."""
    for path in _LISTS:
        try:
            text = machine.read_text(path)
        except OSError:
            continue
        found = {}
        for line in text.splitlines():
            device, revision, name = (*(part.strip() for part in line.split(",", 2)), "", "")[:3]
            key = (_hexadecimal(device), _hexadecimal(revision))
            if name and key[0] is not None and key[1] is not None:
                found[key[0], key[1]] = name
        return found
    return {}


def _hexadecimal(text: str | None) -> int | None:
    try:
        return None if text is None or len(text) > 10 else int(text, 16)
    except ValueError:
        return None
