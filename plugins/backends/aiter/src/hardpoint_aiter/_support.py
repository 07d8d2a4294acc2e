"""What AITER's functions do, as declared support. Light: torch is not imported here.

Read from amd-aiter 0.1.7.post2.dev18 (``aiter/ops/mha.py``, ``aiter/ops/triton/unified_attention.py``,
``aiter/mla.py``, and below ``aiter_meta/csrc``). Where other engines say otherwise, they call other versions.

``aiter_fa`` (``mha_batch_prefill_func``, ``flash_attn_varlen_func``): the cache is read token by token, so blocks may
have any size, but kernels for that are made for head sizes up to 128 alone (``fmha_batch_prefill.py`` in
``3rdparty/composable_kernel/example/ck_tile/01_fmha/codegen/ops``; larger ones pass ``mha_batch_prefill_kernels.cu``'s
own check, and find none); there are no sinks among the arguments, and no cache of another dtype than the query's.

``aiter_unified`` (``unified_attention``): asserts a causal mask. Blocks are tiles of a Triton kernel where every query
decodes (``select_2d_config``, ``select_3d_config``), so powers of two, 16 at least; 64 at most, because 64 keys and
values of 128 elements in two stages fill a compute unit's 64 KB of local memory, as one stage of 256 does. A tile of
128 rows holds at least one query of a group. ALiBi is measured from the first key of the step and not from the query's
own: the softmax does not mind, but a sink would, so not both.

``aiter_mla`` (``mla_decode_fwd``, not persistent): ``asm_mla.cu`` has kernels for bfloat16 with 16 or 128 heads, and
``get_meta_param`` asserts the same; 8-bit caches need an 8-bit query.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hardpoint.attention import ANYTHING, AttentionSupport, AttentionVariant, Integers, OneOf

PACKAGE: Final = "amd-aiter>=0.1.7"
ARCHITECTURES: Final = ("gfx942", "gfx950")
"""For these the wheel holds binaries (``aiter_meta/hsa``)."""

_PAGED: Final = AttentionVariant(
    runtimes=("rocm",),
    architectures=ARCHITECTURES,
    head_size=Integers(minimum=8, maximum=128, multiple_of=8),
    num_kv_heads=ANYTHING,
    dtype=OneOf("float16", "bfloat16"),
    block_size=Integers(or_none=True),
    attention_type=OneOf("decoder", "encoder", "encoder_only", "encoder_decoder"),
    causal=ANYTHING,
    sliding_window=ANYTHING,
    soft_cap=ANYTHING,
    kv_sharing=ANYTHING,
)
_PACKED: Final = replace(_PAGED, head_size=Integers(minimum=8, maximum=256, multiple_of=8), block_size=None)
DENSE: Final = AttentionSupport((_PAGED, _PACKED, replace(_PACKED, head_size=OneOf(192), v_head_size=OneOf(128))))

_BLOCKS: Final = OneOf(16, 32, 64)
_UNIFIED_HEADS: Final = Integers(minimum=32, maximum=256)


def _unified(architecture: str, caches: OneOf, *, sinks: bool) -> AttentionVariant:
    return AttentionVariant(
        runtimes=("rocm",),
        architectures=(architecture,),
        group_size=Integers(maximum=128),
        head_size=_UNIFIED_HEADS,
        num_kv_heads=ANYTHING,
        dtype=OneOf("float16", "bfloat16"),
        kv_cache_dtype=caches,
        block_size=_BLOCKS,
        sliding_window=ANYTHING,
        soft_cap=ANYTHING,
        kv_sharing=ANYTHING,
        sinks=ANYTHING if sinks else None,
        alibi=None if sinks else ANYTHING,
    )


# Each generation has the 8-bit floats of its own kind.
_FNUZ: Final = OneOf("auto", "float8_e4m3fnuz", "float8_e5m2fnuz")
_OCP: Final = OneOf("auto", "float8_e4m3fn", "float8_e5m2")
UNIFIED: Final = AttentionSupport(
    (
        _unified("gfx942", _FNUZ, sinks=True),
        _unified("gfx942", _FNUZ, sinks=False),
        _unified("gfx950", _OCP, sinks=True),
        _unified("gfx950", _OCP, sinks=False),
    )
)
LATENT: Final = AttentionSupport(
    (
        AttentionVariant(
            runtimes=("rocm",),
            architectures=ARCHITECTURES,
            head_size=OneOf(576),
            v_head_size=OneOf(512),
            num_heads=OneOf(16, 128),
            num_kv_heads=ANYTHING,
            dtype=OneOf("bfloat16"),
            block_size=Integers(),
            causal=ANYTHING,
            kv_sharing=ANYTHING,
            kv_lora_rank=OneOf(512),
            qk_rope_head_dim=OneOf(64),
        ),
    )
)
