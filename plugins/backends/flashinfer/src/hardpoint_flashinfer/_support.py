"""What FlashInfer's wrappers do, as declared support. Light: torch is not imported here.

Read from flashinfer-python 0.7.4 (``prefill.py``, ``decode.py``, ``mla/_batch_mla/_backends/_fa_common.py``; what is
called here takes the same arguments in 0.7.1). Where other engines say otherwise, they call further kernels of it
(TRT-LLM's, for 10.x).

- Pages may have any size in the paged kernels of generations 2 and 3; only TRT-LLM's want 16, 32 or 64.
- Sinks: ``run`` takes them, and hands them to TRT-LLM's kernels alone; the others would leave them out silently.
- ALiBi: the slopes are the library's own (``get_alibi_slopes``), a model's cannot be given.
- A window bounds the left side only (``window_left``): without a causal mask ours has two sides.
- The kernels of generation 2 are compiled for 8.x to 12.x, 11.x among them (``jit/attention/modules.py``).
- The latent form runs from 8.0 on, not on 10.x alone. A head count that does not divide a tile of queries makes its
  planner refuse some steps (``_validate_fa_causal_tile_bound``), so only counts that do are declared. 8-bit caches
  are for bfloat16 on 9.x (``_validate_generated_fa_plan``). A step has at most 16384 tiles of 64 or 128 query rows
  (``_FA_MAX_WORK_ITEMS``), that is with 128 heads 16384 tokens.
"""

from __future__ import annotations

from typing import Final

from hardpoint.attention import ANYTHING, AttentionSupport, AttentionVariant, Integers, OneOf

PACKAGE: Final = "flashinfer-python>=0.7.1"
"""Earlier plans reserve a group's size times more for split keys, which overflows the 128 MB that are recommended."""
MAJORS: Final = (8, 9, 10, 11, 12)
ARCHITECTURES: Final = ("sm_8*", "sm_9*", "sm_10*", "sm_11*", "sm_12*")
"""Kernels are compiled for the device at hand; its sources have these generations."""

_HEADS: Final = OneOf(64, 128, 256, 512)
_CACHES: Final = OneOf("auto", "float8_e4m3fn", "float8_e5m2")

DENSE: Final = AttentionSupport(
    (
        AttentionVariant(
            runtimes=("cuda",),
            capability_majors=MAJORS,
            head_size=_HEADS,
            num_kv_heads=ANYTHING,
            dtype=OneOf("float16", "bfloat16"),
            kv_cache_dtype=_CACHES,
            block_size=Integers(),
            sliding_window=ANYTHING,
            soft_cap=ANYTHING,
            kv_sharing=ANYTHING,
        ),
        AttentionVariant(
            runtimes=("cuda",),
            capability_majors=MAJORS,
            head_size=_HEADS,
            num_kv_heads=ANYTHING,
            dtype=OneOf("float16", "bfloat16"),
            kv_cache_dtype=_CACHES,
            block_size=Integers(),
            causal=ANYTHING,
            soft_cap=ANYTHING,
            kv_sharing=ANYTHING,
        ),
    )
)
LATENT: Final = AttentionSupport(
    (
        AttentionVariant(
            runtimes=("cuda",),
            capability_majors=MAJORS,
            head_size=OneOf(320, 576),
            v_head_size=OneOf(256, 512),
            num_heads=OneOf(1, 2, 4, 8, 16, 32, 64, 128),
            num_kv_heads=ANYTHING,
            dtype=OneOf("float16", "bfloat16"),
            block_size=Integers(),
            causal=ANYTHING,
            kv_sharing=ANYTHING,
            kv_lora_rank=OneOf(256, 512),
            qk_rope_head_dim=OneOf(64),
        ),
        AttentionVariant(
            runtimes=("cuda",),
            capability_majors=(9,),
            head_size=OneOf(576),
            v_head_size=OneOf(512),
            num_heads=OneOf(1, 2, 4, 8, 16, 32, 64, 128),
            num_kv_heads=ANYTHING,
            dtype=OneOf("bfloat16"),
            kv_cache_dtype=OneOf("auto", "float8_e4m3fn"),
            block_size=Integers(),
            causal=ANYTHING,
            kv_sharing=ANYTHING,
            kv_lora_rank=OneOf(512),
            qk_rope_head_dim=OneOf(64),
        ),
    )
)
