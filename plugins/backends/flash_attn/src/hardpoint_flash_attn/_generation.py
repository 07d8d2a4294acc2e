"""Which generation of FlashAttention serves a config on a device, by the same data that declared the support."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint import DeviceCapability, LiveMachine, normalise_gfx
from hardpoint._importing import import_library
from hardpoint._requirements import requirement_reason
from hardpoint.errors import EnvironmentFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hardpoint.attention import AttentionConfig, AttentionVariant

MODULES: Final = {"fa2": "flash_attn", "fa3": "flash_attn_interface", "fa4": "flash_attn.cute"}


@dataclass(frozen=True, slots=True)
class Library:
    """One generation, imported. Its functions differ from one another in name, arguments and results."""

    generation: str
    module: Any  # none of the three is typed

    def function(self, name: str) -> Callable[..., Any]:  # Any: as the module
        """One of its functions. Errors: `EnvironmentFailure` where the installed package has none of that name."""
        found: Callable[..., Any] | None = getattr(self.module, name, None)
        if found is None:
            raise EnvironmentFailure(
                f"{MODULES[self.generation]} has no {name}: the package is another than its metadata says",
                code="incompatible_dependency",
            )
        return found


def find(
    generations: Mapping[str, tuple[AttentionVariant, ...]],
    capability: DeviceCapability | None,
    config: AttentionConfig,
) -> str | None:
    """The best generation that declares support, with its package here: 4 on 10.x and 11.x, 3 on 9.x, then the others.

    On 9.x 4 stands behind 3, which splits long keys for few queries and gives equal bits in every batch.
    """
    # Asked anew each time: what is installed may change until the first layer is built.
    package_reason = partial(requirement_reason, machine=LiveMachine())
    major = None if capability is None or capability.version is None else capability.version[0]
    for generation in ("fa4", "fa3", "fa2") if major in (10, 11) else ("fa3", "fa4", "fa2"):
        for variant in generations.get(generation, ()):
            if not variant.guard_reasons(capability, package_reason) and not variant.refused_fields(config):
                return generation
    return None


def load(generation: str) -> Library:
    """Import it. Errors: `ImportError`, `OSError`."""
    return Library(generation, import_library(MODULES[generation]))


def capability_of(device: torch.device | str) -> DeviceCapability:
    """The device's capability, as torch says. Errors: `EnvironmentFailure` where it has no such device."""
    try:
        if torch.version.hip is not None:
            arch, features = normalise_gfx(torch.cuda.get_device_properties(torch.device(device)).gcnArchName)
            return DeviceCapability(runtime="rocm", arch=arch, features=features)
        return DeviceCapability.parse(torch.cuda.get_device_capability(torch.device(device)), runtime="cuda")
    except (RuntimeError, AssertionError, ValueError) as error:
        raise EnvironmentFailure(f"torch has no GPU {device}: {error}", code="no_device") from error
