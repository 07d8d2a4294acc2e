"""What each generation of FlashAttention does, as variants of declared support. Light: torch is not imported here.

Read from the packages: flash-attn 2.8.3.post2 (``csrc/flash_attn/flash_api.cpp``, ``setup.py``,
``flash_attn/flash_attn_interface.py``), its folder ``hopper`` (flash-attn-3 3.0.0b1: ``flash_attn_interface.py``), and
flash-attn-4 4.0.0b36 (``flash_attn/cute/interface.py``). Where other engines say otherwise, they run forks of these.

- A paged cache of FlashAttention 2 has blocks of a multiple of 256 (``mha_varlen_fwd``); 3 and 4 take any size.
- None takes a cache in another dtype than the query's: what 8-bit kernels there are want an 8-bit query too.
- ALiBi is 2's alone, and its bias is minus slope x distance on both sides: the same as ours under a causal mask only.
- Sinks are 4's alone (``learnable_sink``).
- On AMD devices 2 is Composable Kernel (``csrc/flash_attn_ck``): for gfx90a, gfx942 and gfx950, blocks of a multiple of
  128, and a soft cap that ``mha_varlen_fwd`` takes and leaves out.
- Equal bits whatever else is in the batch are 3's alone, with ``num_splits=1``: 2 splits by a heuristic over the batch.
"""

from __future__ import annotations

from typing import Final

from hardpoint.attention import ANYTHING, AttentionSupport, AttentionVariant, Integers, OneOf

FA2_PACKAGE: Final = "flash-attn>=2.6,<3"
FA3_PACKAGE: Final = "flash-attn-3>=3.0.0b1,<4"
FA4_PACKAGE: Final = "flash-attn-4>=4.0.0b36"

_DTYPES: Final = OneOf("float16", "bfloat16")
_FA2_MAJORS: Final = (8, 9, 10, 12)
_FA2_HEADS: Final = Integers(minimum=8, maximum=256, multiple_of=8)
_PAGED: Final = OneOf("decoder", "encoder_decoder")
_UNPAGED: Final = OneOf("decoder", "encoder", "encoder_only")
_EVERY_TYPE: Final = OneOf("decoder", "encoder", "encoder_only", "encoder_decoder")

# Written out in full, one per way in which it works: a variant is read alone.
_FA2: Final = (
    AttentionVariant(
        runtimes=("cuda",),
        capability_majors=_FA2_MAJORS,
        package=FA2_PACKAGE,
        head_size=_FA2_HEADS,
        num_kv_heads=ANYTHING,
        dtype=_DTYPES,
        block_size=Integers(minimum=256, multiple_of=256),
        attention_type=_PAGED,
        causal=ANYTHING,
        sliding_window=ANYTHING,
        soft_cap=ANYTHING,
        kv_sharing=ANYTHING,
    ),
    AttentionVariant(
        runtimes=("cuda",),
        capability_majors=_FA2_MAJORS,
        package=FA2_PACKAGE,
        head_size=_FA2_HEADS,
        num_kv_heads=ANYTHING,
        dtype=_DTYPES,
        attention_type=_UNPAGED,
        causal=ANYTHING,
        sliding_window=ANYTHING,
        soft_cap=ANYTHING,
    ),
    AttentionVariant(
        runtimes=("cuda",),
        capability_majors=_FA2_MAJORS,
        package=FA2_PACKAGE,
        head_size=_FA2_HEADS,
        num_kv_heads=ANYTHING,
        dtype=_DTYPES,
        block_size=Integers(minimum=256, multiple_of=256, or_none=True),
        sliding_window=ANYTHING,
        alibi=ANYTHING,
        soft_cap=ANYTHING,
        kv_sharing=ANYTHING,
    ),
)
_FA2_ROCM: Final = (
    AttentionVariant(
        runtimes=("rocm",),
        architectures=("gfx90a", "gfx942", "gfx950"),
        package=FA2_PACKAGE,
        head_size=_FA2_HEADS,
        num_kv_heads=ANYTHING,
        dtype=_DTYPES,
        block_size=Integers(minimum=128, multiple_of=128),
        attention_type=_PAGED,
        causal=ANYTHING,
        sliding_window=ANYTHING,
        kv_sharing=ANYTHING,
    ),
    AttentionVariant(
        runtimes=("rocm",),
        architectures=("gfx90a", "gfx942", "gfx950"),
        package=FA2_PACKAGE,
        head_size=_FA2_HEADS,
        num_kv_heads=ANYTHING,
        dtype=_DTYPES,
        attention_type=_UNPAGED,
        causal=ANYTHING,
        sliding_window=ANYTHING,
    ),
)
_FA3: Final = (
    AttentionVariant(
        runtimes=("cuda",),
        capability_majors=(9,),
        package=FA3_PACKAGE,
        head_size=_FA2_HEADS,
        num_kv_heads=ANYTHING,
        dtype=_DTYPES,
        block_size=Integers(or_none=True),
        attention_type=_EVERY_TYPE,
        causal=ANYTHING,
        sliding_window=ANYTHING,
        soft_cap=ANYTHING,
        kv_sharing=ANYTHING,
        batch_invariant=ANYTHING,
    ),
    AttentionVariant(
        runtimes=("cuda",),
        capability_majors=(9,),
        package=FA3_PACKAGE,
        head_size=OneOf(192),
        v_head_size=OneOf(128),
        num_kv_heads=ANYTHING,
        dtype=_DTYPES,
        block_size=Integers(or_none=True),
        attention_type=_EVERY_TYPE,
        causal=ANYTHING,
        sliding_window=ANYTHING,
        soft_cap=ANYTHING,
        kv_sharing=ANYTHING,
        batch_invariant=ANYTHING,
    ),
)
_FA4: Final = (
    AttentionVariant(
        runtimes=("cuda",),
        capability_majors=(9,),
        package=FA4_PACKAGE,
        head_size=_FA2_HEADS,
        v_head_size=_FA2_HEADS,
        num_kv_heads=ANYTHING,
        dtype=_DTYPES,
        block_size=Integers(or_none=True),
        attention_type=_EVERY_TYPE,
        causal=ANYTHING,
        sliding_window=ANYTHING,
        sinks=ANYTHING,
        soft_cap=ANYTHING,
        kv_sharing=ANYTHING,
    ),
    AttentionVariant(
        runtimes=("cuda",),
        capability_majors=(10, 11),
        package=FA4_PACKAGE,
        head_size=Integers(minimum=8, maximum=128, multiple_of=8),
        v_head_size=Integers(minimum=8, maximum=128, multiple_of=8),
        num_kv_heads=ANYTHING,
        dtype=_DTYPES,
        block_size=Integers(or_none=True),
        attention_type=_EVERY_TYPE,
        causal=ANYTHING,
        sliding_window=ANYTHING,
        sinks=ANYTHING,
        soft_cap=ANYTHING,
        kv_sharing=ANYTHING,
    ),
    AttentionVariant(
        runtimes=("cuda",),
        capability_majors=(10, 11),
        package=FA4_PACKAGE,
        head_size=OneOf(192),
        v_head_size=OneOf(128),
        num_kv_heads=ANYTHING,
        dtype=_DTYPES,
        block_size=Integers(or_none=True),
        attention_type=_EVERY_TYPE,
        causal=ANYTHING,
        sliding_window=ANYTHING,
        sinks=ANYTHING,
        soft_cap=ANYTHING,
        kv_sharing=ANYTHING,
    ),
    # A kernel of its own, with its own tiles; what else it takes is not said, and engines do not trust it with more.
    AttentionVariant(
        runtimes=("cuda",),
        capability_majors=(10, 11),
        package=FA4_PACKAGE,
        head_size=OneOf(256),
        num_kv_heads=ANYTHING,
        dtype=_DTYPES,
        block_size=Integers(minimum=128, multiple_of=128, or_none=True),
        attention_type=_EVERY_TYPE,
        causal=ANYTHING,
        sliding_window=ANYTHING,
        kv_sharing=ANYTHING,
    ),
)

_MLA_FA3: Final = AttentionVariant(
    runtimes=("cuda",),
    capability_majors=(9,),
    package=FA3_PACKAGE,
    head_size=OneOf(320, 576),
    v_head_size=OneOf(256, 512),
    num_kv_heads=ANYTHING,
    dtype=_DTYPES,
    block_size=Integers(),
    causal=ANYTHING,
    kv_sharing=ANYTHING,
    batch_invariant=ANYTHING,
    kv_lora_rank=OneOf(256, 512),
    qk_rope_head_dim=OneOf(64),
)
# Heads are packed into tiles of 128 rows, and only these numbers of them are tried there.
_MLA_FA4: Final = AttentionVariant(
    runtimes=("cuda",),
    capability_majors=(10, 11),
    package=FA4_PACKAGE,
    head_size=OneOf(576),
    v_head_size=OneOf(512),
    num_heads=OneOf(16, 32, 64, 128),
    num_kv_heads=ANYTHING,
    dtype=_DTYPES,
    block_size=Integers(),
    causal=ANYTHING,
    kv_sharing=ANYTHING,
    kv_lora_rank=OneOf(512),
    qk_rope_head_dim=OneOf(64),
)

DENSE: Final = {"fa2": (*_FA2, *_FA2_ROCM), "fa3": _FA3, "fa4": _FA4}
LATENT: Final[dict[str, tuple[AttentionVariant, ...]]] = {"fa3": (_MLA_FA3,), "fa4": (_MLA_FA4,)}

# The first of two equally near variants explains a refusal: the package that most people lack is named.
DENSE_SUPPORT: Final = AttentionSupport((*_FA2, *_FA2_ROCM, *_FA3, *_FA4))
LATENT_SUPPORT: Final = AttentionSupport((_MLA_FA3, _MLA_FA4))

ARCHITECTURES: Final = ("sm_8*", "sm_9*", "sm_10*", "sm_11*", "sm_12*", "gfx90a", "gfx942", "gfx950")
"""2 is built for sm_80, sm_90, sm_100 and sm_120, each binary also for the later minors; 3 for sm_90; 4 compiles."""
