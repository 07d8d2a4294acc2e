"""What kind of EC2 instance this is, by what its firmware says; nobody is asked over the network."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hardpoint_neuron._traces import PRODUCT

if TYPE_CHECKING:
    from hardpoint import Machine

_TYPE: Final = re.compile(r"[a-z][a-z0-9-]{1,30}\.[a-z0-9-]{1,30}\Z", re.ASCII)


def read_instance_type(machine: Machine) -> str | None:
    """``trn2.48xlarge``; None: this is none, or it does not say."""
    try:
        return as_instance_type(machine.read_text(PRODUCT, limit=256))
    except OSError:
        return None


def as_instance_type(value: object) -> str | None:
    """The type's name in a value that may hold anything."""
    text = value.strip().lower() if isinstance(value, str) and len(value) < 256 else ""
    return text if _TYPE.match(text) else None
