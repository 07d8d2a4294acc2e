"""The plugin objects that the entry points name. Light: torch is not imported here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint.hookspecs import API_VERSION, BackendSpec, hookimpl
from hardpoint_aiter._support import ARCHITECTURES, DENSE, LATENT, PACKAGE, UNIFIED

if TYPE_CHECKING:
    from hardpoint.attention import AttentionSupport


class AiterPlugin:
    """Describes one of AITER's functions as a backend."""

    def __init__(self, kind: str, target: str, support: AttentionSupport) -> None:
        self._kind = kind
        self._target = target
        self._support = support

    @hookimpl
    def hardpoint_backend(self) -> BackendSpec:
        """CDNA 3 and 4."""
        return BackendSpec(
            api=API_VERSION,
            kind=self._kind,
            platforms=("rocm",),
            target=self._target,
            requires=("torch>=2.5", PACKAGE),
            kernel_architectures=ARCHITECTURES,
            support=self._support,
        )


dense = AiterPlugin("attention", "hardpoint_aiter.backend:AiterFaBackend", DENSE)
unified = AiterPlugin("attention", "hardpoint_aiter.unified:AiterUnifiedBackend", UNIFIED)
latent = AiterPlugin("mla_attention", "hardpoint_aiter.mla:AiterMlaBackend", LATENT)
