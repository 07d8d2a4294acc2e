"""The plugin object that the entry point names. Light: torch is not imported here.

What is declared is what torch 2.13's implementation takes (paths are of its wheel):

- CPU: `torch/_inductor/kernel/flex/flex_cpu.py` (`lower_cpu`) takes float32, float16 and bfloat16, query, key and value
  of one dtype, so the cache has the layer's dtype; it needs AVX2 (`check_cpu_supported`) and has no lse, which is why
  the lse, and sinks with it, cost a second multiplication here. Its template
  (`torch/_inductor/codegen/cpp_flex_attention_template.py`) has no limit on head sizes or blocks, and no promise that
  a sequence's bits do not depend on the batch (`need_pack` looks at all of it): no batch invariance.
- Triton: `torch/_inductor/kernel/flex/flex_attention.py` refuses head sizes below 16, and key blocks that its tile of
  at least 16 keys does not divide. `torch/_inductor/scheduler.py` refuses GPUs below 7.0; bfloat16 needs 8.0. Runs on
  no device of this project's tests; the same code does on the CPU.
- ``torch/nn/attention/flex_attention.py`` (`_validate_device`) knows cpu, cuda (with rocm), xpu, hpu and mps; the last
  two, whose kernels lack what is used here, are not declared.

8-bit caches are refused: a scale per tensor would have to be applied to what the kernel reads.
"""

from __future__ import annotations

from typing import Any, Final

from hardpoint.attention import ANYTHING, AttentionSupport, AttentionVariant, Integers, OneOf
from hardpoint.hookspecs import API_VERSION, BackendSpec, hookimpl

_EVERYWHERE: Final[dict[str, Any]] = {
    "num_kv_heads": ANYTHING,
    "attention_type": OneOf("decoder", "encoder", "encoder_only", "encoder_decoder"),
    "causal": ANYTHING,
    "sliding_window": ANYTHING,
    "sinks": ANYTHING,
    "alibi": ANYTHING,
    "soft_cap": ANYTHING,
    "kv_sharing": ANYTHING,
}  # Any: limits of several types
_TRITON: Final[dict[str, Any]] = {
    **_EVERYWHERE,
    "head_size": Integers(minimum=16),
    "v_head_size": Integers(minimum=16),
    "block_size": Integers(multiple_of=16, or_none=True),
}  # Any: as above

SUPPORT: Final = AttentionSupport(
    (
        AttentionVariant(
            runtimes=("cpu",),
            features=("avx2",),
            dtype=OneOf("float32", "bfloat16", "float16"),
            head_size=ANYTHING,
            v_head_size=ANYTHING,
            block_size=ANYTHING,
            **_EVERYWHERE,
        ),
        AttentionVariant(
            runtimes=("cuda",), capability_floor=(8, 0), dtype=OneOf("bfloat16", "float16", "float32"), **_TRITON
        ),
        AttentionVariant(runtimes=("cuda",), capability_floor=(7, 0), dtype=OneOf("float16", "float32"), **_TRITON),
        AttentionVariant(runtimes=("rocm", "xpu"), dtype=OneOf("bfloat16", "float16", "float32"), **_TRITON),
    )
)


class FlexAttentionPlugin:
    """Describes the backend."""

    @hookimpl
    def hardpoint_backend(self) -> BackendSpec:
        """Any device for which torch compiles."""
        return BackendSpec(
            api=API_VERSION,
            kind="attention",
            platforms=("torch-device",),
            torch_features=("aten", "compile"),
            target="hardpoint_flex_attention.backend:FlexAttentionBackend",
            requires=("torch>=2.13",),
            support=SUPPORT,
        )


plugin = FlexAttentionPlugin()
