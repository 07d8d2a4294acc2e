"""The plugin object of the latent form. Light: torch is not imported here."""

from __future__ import annotations

from hardpoint.attention import ANYTHING, AttentionSupport, AttentionVariant, OneOf
from hardpoint.hookspecs import API_VERSION, BackendSpec, hookimpl
from hardpoint_torch_sdpa.plugin import CACHE_DTYPES, DTYPES

# All that the latent form can be asked. Latent and rotary sizes, and the heads that share a latent, may be any.
SUPPORT = AttentionSupport(
    (
        AttentionVariant(
            head_size=ANYTHING,
            v_head_size=ANYTHING,
            num_kv_heads=ANYTHING,
            kv_lora_rank=ANYTHING,
            qk_rope_head_dim=ANYTHING,
            dtype=OneOf(*DTYPES),
            kv_cache_dtype=OneOf("auto", *CACHE_DTYPES),
            block_size=ANYTHING,
            attention_type=OneOf("decoder", "encoder", "encoder_only", "encoder_decoder"),
            causal=ANYTHING,
            sliding_window=ANYTHING,
            sinks=ANYTHING,
            alibi=ANYTHING,
            soft_cap=ANYTHING,
            kv_sharing=ANYTHING,
            batch_invariant=ANYTHING,
        ),
    )
)


class TorchMlaPlugin:
    """Describes the backend."""

    @hookimpl
    def hardpoint_backend(self) -> BackendSpec:
        """Any device on which torch has its usual operators and scaled_dot_product_attention."""
        return BackendSpec(
            api=API_VERSION,
            kind="mla_attention",
            platforms=("torch-device",),
            torch_features=("aten", "sdpa"),
            target="hardpoint_torch_sdpa.mla_backend:TorchMlaBackend",
            requires=("torch>=2.5",),
            support=SUPPORT,
        )


plugin = TorchMlaPlugin()
