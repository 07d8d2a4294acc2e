"""The plugin objects that the entry points name. Light: torch is not imported here."""

from __future__ import annotations

from hardpoint.hookspecs import API_VERSION, BackendSpec, hookimpl
from hardpoint_flashinfer._support import ARCHITECTURES, DENSE, LATENT, PACKAGE


class FlashInferPlugin:
    """Describes ``flashinfer``."""

    @hookimpl
    def hardpoint_backend(self) -> BackendSpec:
        """Paged attention of decoders."""
        return BackendSpec(
            api=API_VERSION,
            kind="attention",
            platforms=("cuda",),
            target="hardpoint_flashinfer.backend:FlashInferBackend",
            requires=("torch>=2.5", PACKAGE),
            kernel_architectures=ARCHITECTURES,
            support=DENSE,
        )


class FlashInferMlaPlugin:
    """Describes ``flashinfer_mla``."""

    @hookimpl
    def hardpoint_backend(self) -> BackendSpec:
        """The latent form."""
        return BackendSpec(
            api=API_VERSION,
            kind="mla_attention",
            platforms=("cuda",),
            target="hardpoint_flashinfer.mla:FlashInferMlaBackend",
            requires=("torch>=2.5", PACKAGE),
            kernel_architectures=ARCHITECTURES,
            support=LATENT,
        )


dense = FlashInferPlugin()
latent = FlashInferMlaPlugin()
