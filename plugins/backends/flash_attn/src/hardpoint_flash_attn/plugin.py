"""The plugin objects that the entry points name. Light: torch is not imported here."""

from __future__ import annotations

from hardpoint.hookspecs import API_VERSION, BackendSpec, Order, hookimpl
from hardpoint_flash_attn._support import ARCHITECTURES, DENSE_SUPPORT, LATENT_SUPPORT


class FlashAttnPlugin:
    """Describes ``flash_attn``."""

    @hookimpl
    def hardpoint_backend(self) -> BackendSpec:
        """Each variant names the package that it needs: one of the three is enough."""
        return BackendSpec(
            api=API_VERSION,
            kind="attention",
            platforms=("cuda", "rocm"),
            target="hardpoint_flash_attn.backend:FlashAttnBackend",
            requires=("torch>=2.5",),
            kernel_architectures=ARCHITECTURES,
            support=DENSE_SUPPORT,
            # ROCm's table of encoders on CDNA3 and 4 does not list it: AITER takes all of it. Without AITER it is next.
            order=Order(before=("triton_attn", "torch_sdpa"), platforms=("rocm",)),
        )


class FlashAttnMlaPlugin:
    """Describes ``flash_attn_mla``."""

    @hookimpl
    def hardpoint_backend(self) -> BackendSpec:
        """The latent form of FlashAttention 3 and 4."""
        return BackendSpec(
            api=API_VERSION,
            kind="mla_attention",
            platforms=("cuda",),
            target="hardpoint_flash_attn.mla:FlashAttnMlaBackend",
            requires=("torch>=2.5",),
            kernel_architectures=("sm_9*", "sm_10*", "sm_11*"),
            support=LATENT_SUPPORT,
            # CUDA's table for 10.x does not list it: FlashInfer takes all that it takes. Without FlashInfer it is next.
            order=Order(before=("triton_mla", "torch_mla")),
        )


dense = FlashAttnPlugin()
latent = FlashAttnMlaPlugin()
