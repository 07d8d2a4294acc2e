"""The remedy of a reason: the one it brings, or what helps against its kind of cause."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    Json = Any  # what JSON can hold

_DISTRIBUTIONS: Final = {
    "aiter": "amd-aiter",
    "amdsmi": "amdsmi",
    "flash_attn": "flash-attn",
    "flashinfer": "flashinfer-python",
    "numpy": "numpy",
    "pynvml": "nvidia-ml-py",
    "torch": "torch",
    "torch_neuronx": "torch-neuronx",
    "triton": "triton",
}
"""What to install for a module that is missing, of those that are known here."""
_BY_CODE: Final = {
    "driver": "see what the driver says (dmesg); reload it, reinstall it, or reboot",
    "stub_library": "take the toolkit's 'stubs' folder out of LD_LIBRARY_PATH and ldconfig: it is for linking only",
    "no_device": "load the driver; give a container or virtual machine the device (for NVIDIA: --gpus all)",
    "permission": "give this user access to it (the group that owns it, or the container's --group-add)",
    "missing_library": "install what brings the library, or add its folder to LD_LIBRARY_PATH",
    "other_build": "install a build of torch for this accelerator",
    "timeout": "see why it does not answer (a wedged driver needs a reboot); HARDPOINT_PROBE_TIMEOUT sets the limit",
    "duplicate": "uninstall all but one of them",
    "compiler": "install a C compiler and the headers that it needs",
}
_DRIVER: Final = (
    (("mismatch",), "make the driver one version: reboot after its upgrade, or reinstall it"),
    (
        ("is lost", "fallen off the bus", "requires reset", "needs reset", "uncorrectable", "ecc"),
        "reset the device or reboot; if it comes again, see what the driver says (dmesg) and have the hardware checked",
    ),
    (
        ("not yet initialized", "fabric"),
        "start the service that initialises the devices (for NVIDIA's with NVSwitch: nvidia-fabricmanager)",
    ),
)
"""What helps against what a driver says."""
_VARIABLE: Final = re.compile(r"([A-Z][A-Z0-9_]{3,})=")
_MODULE: Final = re.compile(r"No module named '([\w.]+)'")
_SYMBOL: Final = ("undefined symbol", "symbol not found")
_PYTHON_SYMBOL: Final = re.compile(r"(?:undefined symbol: |namespace ')_*Py[A-Z_]")
_BLUNT: Final = ("file too short", "invalid ELF header", "wrong ELF class", "not a mach-o file")


def reason_of(item: Mapping[str, Json]) -> Json:
    """The first reason that brings a remedy, or else the first one: a cause with something to do about it."""
    return next((reason for reason in item["reasons"] if reason.get("remedy")), item["reasons"][0])


def remedy_for(
    reason: Mapping[str, Json], provenance: Mapping[str, Json] | None, module: str | None = None
) -> str | None:
    """What to do or type next; None where nothing is known to help."""
    if reason.get("remedy"):
        return str(reason["remedy"])
    code, message = reason["code"], reason["message"]
    plugin = provenance["plugin"] if provenance else None
    distribution = provenance["distribution"] if provenance else None
    without = f"HARDPOINT_DISABLED_PLUGINS={plugin} leaves it out" if plugin else None
    if code == "masked":
        found = _VARIABLE.search(message)
        return f"unset {found[1]}, or give it devices that exist" if found else "correct the mask of visible devices"
    if code in ("broken_import", "kernel_missing", "missing_library", "other") and any(
        sign in message for sign in _SYMBOL
    ):
        what = distribution or (f"the package of {module}" if module else "it")
        if _PYTHON_SYMBOL.search(message):
            return f"it was built for another Python: reinstall or rebuild {what} for this one"
        return f"it was built for another torch: reinstall or rebuild {what} for the torch that is installed"
    if any(sign in message for sign in _BLUNT):
        what = distribution or (f"the package of {module}" if module else "the package")
        return f"the file is damaged: pip install --force-reinstall --no-cache-dir {what}"
    if code == "missing_dependency" and (missing := _MODULE.search(message)):
        return _bring(missing[1], provenance)
    if code == "circular_import":
        return f"report it to its authors: the import belongs into a function; {without}" if without else None
    if code == "incompatible_api":
        return f"install versions that fit: pip install --upgrade hardpoint {distribution or ''}".rstrip()
    if code == "contract":
        upgrade = f"pip install --upgrade {distribution}" if distribution else "correct the plugin"
        return f"{upgrade}; {without}" if without else upgrade
    if code == "driver":
        told = message.lower()
        return next((help_ for signs, help_ in _DRIVER if any(sign in told for sign in signs)), _BY_CODE[code])
    if code == "crashed" and " for probe " in message:
        # Not the plugin's own code: it asks in a process of its own because it knows.
        return "; ".join(
            filter(None, ("the vendor's library crashes when it is asked: reinstall it and its driver", without))
        )
    if code in ("broken_import", "crashed"):
        again = f"pip install --force-reinstall {distribution}" if distribution else None
        return "; ".join(filter(None, (again, without))) or None
    return _BY_CODE.get(code)


def _bring(module: str, provenance: Mapping[str, Json] | None) -> str:
    """What brings a module. Never a guess from its name: whoever owns that name on an index would be installed."""
    name = module.partition(".")[0]
    if name in _DISTRIBUTIONS:
        return f"pip install {_DISTRIBUTIONS[name]}"
    distribution = provenance["distribution"] if provenance else None
    if distribution is None:
        return f"install what brings the module {module}"
    if re.sub(r"[-_.]+", "_", distribution).lower() == name.lower():
        return f"its own package is incomplete: pip install --force-reinstall --no-cache-dir {distribution}"
    return f"install what brings the module {module}, as {distribution} says"
