"""The plugin object that the entry point names. Light: torch is not imported here."""

from __future__ import annotations

from hardpoint.attention import ANYTHING, AttentionSupport, AttentionVariant, OneOf
from hardpoint.hookspecs import API_VERSION, BackendSpec, hookimpl

DTYPES = ("float16", "bfloat16", "float32", "float64")
CACHE_DTYPES = (*DTYPES, "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "int8")

# Not mentioned, so refused: the soft cap (SDPA has no hook between the scale and the softmax) and the latent form,
# which is the plugin beside this one.
SUPPORT = AttentionSupport(
    (
        AttentionVariant(
            head_size=ANYTHING,
            v_head_size=ANYTHING,
            num_kv_heads=ANYTHING,
            dtype=OneOf(*DTYPES),
            kv_cache_dtype=OneOf("auto", *CACHE_DTYPES),
            block_size=ANYTHING,
            attention_type=OneOf("decoder", "encoder", "encoder_only", "encoder_decoder"),
            causal=ANYTHING,
            sliding_window=ANYTHING,
            sinks=ANYTHING,
            alibi=ANYTHING,
            kv_sharing=ANYTHING,
            batch_invariant=ANYTHING,
        ),
    )
)


class TorchSdpaPlugin:
    """Describes the backend."""

    @hookimpl
    def hardpoint_backend(self) -> BackendSpec:
        """Any device on which torch has its usual operators and scaled_dot_product_attention."""
        return BackendSpec(
            api=API_VERSION,
            kind="attention",
            platforms=("torch-device",),
            torch_features=("aten", "sdpa"),
            target="hardpoint_torch_sdpa.backend:TorchSdpaBackend",
            requires=("torch>=2.5",),
            support=SUPPORT,
        )


plugin = TorchSdpaPlugin()
