"""The plugin object that the entry point names. Light: neither torch nor a kernel module is imported here."""

from __future__ import annotations

from hardpoint.attention import ANYTHING, AttentionSupport, AttentionVariant, Integers, OneOf
from hardpoint.hookspecs import API_VERSION, BackendSpec, hookimpl

DTYPES = ("float32", "bfloat16", "float16")
CACHE_DTYPES = ("auto", *DTYPES, "float8_e4m3fn", "int8")

SUPPORT = AttentionSupport(
    (
        AttentionVariant(
            head_size=Integers(minimum=16, maximum=256, multiple_of=16),
            v_head_size=Integers(minimum=16, maximum=256, multiple_of=16),
            num_kv_heads=ANYTHING,
            group_size=Integers(maximum=256),
            dtype=OneOf(*DTYPES),
            kv_cache_dtype=OneOf(*CACHE_DTYPES),
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

LATENT_SUPPORT = AttentionSupport(
    (
        AttentionVariant(
            head_size=Integers(minimum=16, maximum=1024, multiple_of=16),
            v_head_size=Integers(minimum=16, maximum=1024, multiple_of=16),
            num_kv_heads=ANYTHING,
            group_size=Integers(maximum=256),
            kv_lora_rank=ANYTHING,
            qk_rope_head_dim=ANYTHING,
            dtype=OneOf(*DTYPES),
            kv_cache_dtype=OneOf(*CACHE_DTYPES),
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


class CpuNativePlugin:
    """Describes the backend of heads with keys of their own, or that of the latent form."""

    def __init__(self, kind: str, target: str, support: AttentionSupport) -> None:
        self._kind, self._target, self._support = kind, target, support

    @hookimpl
    def hardpoint_backend(self) -> BackendSpec:
        """A CPU on which one of the kernel modules was imported."""
        return BackendSpec(
            api=API_VERSION,
            kind=self._kind,
            platforms=("cpu",),
            target=self._target,
            requires=("torch>=2.5",),
            kernel_modules=("cpu_native",),
            support=self._support,
        )


plugin = CpuNativePlugin("attention", "hardpoint_cpu_native.backend:CpuNativeBackend", SUPPORT)
latent = CpuNativePlugin("mla_attention", "hardpoint_cpu_native.mla_backend:CpuNativeMlaBackend", LATENT_SUPPORT)
