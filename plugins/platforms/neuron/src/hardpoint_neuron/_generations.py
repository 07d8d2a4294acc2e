"""The generations of Neuron devices, and what the cores of each can do, by name.

Sources: the driver publishes the names (``info/architecture`` in sysfs: ``Trainium2``, ``Trn2``, ``NCv3``); numbers of
cores, data types and logical cores are those of AWS's architecture pages (NeuronCore-v2, -v3, -v4; data types; logical
NeuronCore configuration).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from hardpoint import DeviceCapability

_V1: Final = frozenset({"bf16", "fp16"})
_V2: Final = _V1 | {"tf32", "cfp8", "stochastic_rounding", "dynamic_shapes"}
_V3: Final = _V2 | {"fp8", "structured_sparsity", "logical_cores"}
_V4: Final = (_V3 - {"cfp8"}) | {"mx", "fp4"}


class Generation(NamedTuple):
    """`family` is the instance family and the compiler's target; `core_version` the NeuronCore's.

    `logical_size`: how many physical cores form a logical one unless somebody says otherwise. It can be changed only
    where it is not 1.
    """

    family: str
    name: str
    core_version: int
    features: frozenset[str]
    logical_size: int = 1

    @property
    def capability(self) -> DeviceCapability:
        """``neuron``, with the compiler's target as architecture. There is no version to compare: features decide."""
        core = f"neuroncore_v{self.core_version}"
        return DeviceCapability(runtime="neuron", arch=self.family, features=self.features | {core})


GENERATIONS: Final = (
    Generation("inf1", "Inferentia", 1, _V1),
    Generation("trn1", "Trainium1", 2, _V2),
    Generation("inf2", "Inferentia2", 2, _V2),
    Generation("trn2", "Trainium2", 3, _V3, logical_size=2),
    Generation("trn3", "Trainium3", 4, _V4, logical_size=2),
)
LOGICAL_SIZES: Final = (1, 2)
"""What the runtime takes where cores can be joined at all (AWS: logical NeuronCore configuration)."""

_BY_NAME: Final = {item.name.lower(): item for item in GENERATIONS}
_BY_FAMILY: Final = {item.family: item for item in GENERATIONS}
_FAMILY: Final = re.compile(r"((?:inf|trn)[0-9])[a-z]{0,8}(?:-[a-z0-9-]{1,16})?\Z", re.ASCII)


def generation_of_name(text: str | None) -> Generation | None:
    """By the device's name (``Trainium2``)."""
    return None if text is None else _BY_NAME.get(text.strip().lower())


def generation_of_instance(text: str | None) -> Generation | None:
    """By an instance's type or its family: ``trn2u.48xlarge``, ``trn1n``, ``Inf2``."""
    found = _FAMILY.match((text or "").strip().lower().partition(".")[0])
    return None if found is None else _BY_FAMILY.get(found[1])
