"""The plugin object that the entry point names. Light: neither torch nor a kernel module is imported here."""

from __future__ import annotations

from hardpoint.attention import ANYTHING, AttentionSupport, AttentionVariant, Integers, OneOf
from hardpoint.hookspecs import API_VERSION, BackendSpec, hookimpl

# Not mentioned, so refused: a cache of another dtype than the query's (8-bit ones among them) and the latent form.
SUPPORT = AttentionSupport(
    (
        AttentionVariant(
            runtimes=("cpu",),
            head_size=Integers(minimum=16, maximum=256, multiple_of=16),
            v_head_size=Integers(minimum=16, maximum=256, multiple_of=16),
            num_kv_heads=ANYTHING,
            group_size=Integers(maximum=256),
            dtype=OneOf("float32", "bfloat16", "float16"),
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
    """Describes the backend."""

    @hookimpl
    def hardpoint_backend(self) -> BackendSpec:
        """A CPU on which one of the kernel modules was imported."""
        return BackendSpec(
            api=API_VERSION,
            kind="attention",
            platforms=("cpu",),
            target="hardpoint_cpu_native.backend:CpuNativeBackend",
            requires=("torch>=2.5",),
            kernel_modules=("cpu_native",),
            support=SUPPORT,
        )


plugin = CpuNativePlugin()
