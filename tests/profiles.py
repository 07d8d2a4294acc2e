"""A platform plugin with device profiles, for the tests of simulation and snapshots."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugins import Site

DETECT = """
    try:
        answer = machine.probe("{name}.devices", "{name}_library:devices")
    except OSError as error:
        return Detection.absent(str(error))
    mask = machine.variable("{NAME}_VISIBLE_DEVICES")
    found = answer["devices"]
    if mask is not None:
        found = [item for entry in mask.split(",") for item in found
                 if item["uuid"].startswith(entry) or entry == str(item["index"])]
    if not found:
        return Detection.absent("no device is visible")
    return Detection.usable([
        Device(index=place, name=item["name"], physical_id=item["index"], uuid=item["uuid"], pci_bus_id=item["pci"],
               capability=DeviceCapability.parse(item["capability"], runtime="{name}"))
        for place, item in enumerate(found)
    ])
"""


def profile(name: str = "fake", capability: str = "9.0", **changes: Any) -> dict[str, Any]:
    """The data of a profile with every part of the format."""
    data = {
        "schema": 1,
        "platform": name,
        "description": f"a device of {capability}",
        "sources": ["https://example.org/device"],
        "machine": {"system": "Linux", "architecture": "x86_64"},
        "per_machine": {
            "files": {f"/proc/driver/{name}": "version 1"},
            "tools": {f"{name}-smi": {"json": []}},
            "probes": {f"{name}.devices": {"driver": f"driver of {capability}", "devices": []}},
        },
        "per_device": {
            "files": {f"/dev/{name}{{index}}": ""},
            "tools": {f"{name}-smi": {"json": [{"id": "{index:d}"}]}},
            "probes": {
                f"{name}.devices": {
                    "devices": [
                        {
                            "index": "{index:d}",
                            "name": f"Fake {capability}",
                            "uuid": "GPU-{uuid}",
                            "pci": "0000:{bus:02x}:00.0",
                            "node": "{node:d}",
                            "capability": capability,
                        }
                    ]
                }
            },
        },
    }
    return {**data, **changes}


def add_platform(
    site: Site, name: str = "fake", profiles: dict[str, Any] | None = None, *, folder: str = "profiles", **options: Any
) -> Path:
    """Install a platform whose plugin brings these profiles (data, or the raw text of a file); returns their folder."""
    number = len(list(site.folder.glob("*.dist-info")))
    resources = f"profiles_of_{name}_{number}"
    where = site.folder / resources / folder
    where.mkdir(parents=True)
    # Whoever imports the package to get at its files pays for all that it imports.
    (site.folder / resources / "__init__.py").write_text("raise RuntimeError('imported')\n")
    for file, content in (profiles if profiles is not None else {"fast": profile(name)}).items():
        text = content if isinstance(content, str) else json.dumps(content)
        (where / f"{file}.json").write_text(text)
    detect = options.pop("detect", DETECT.format(name=name, NAME=name.upper()))
    settings = f"(Setting('{name.upper()}_VISIBLE_DEVICES', 'the mask'),)"
    options.setdefault("spec", f"profiles='{resources}:{folder}', settings={settings}")
    site.platform(name, detect=detect, **options)
    return where
