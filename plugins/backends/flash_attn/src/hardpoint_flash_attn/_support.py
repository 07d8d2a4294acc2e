"""What each generation of FlashAttention does, as variants of declared support. Light: torch is not imported here.

Read from the packages: flash-attn 2.6.0 to 2.8.3.post2 (``csrc/flash_attn/flash_api.cpp``, ``setup.py``,
``flash_attn/flash_attn_interface.py``), flash-attn-3 3.0.0b1 (``hopper/flash_attn_interface.py`` in the sdist of 2.8.3;
``hopper/flash_api.cpp`` and ``hopper/tile_size.h`` in its repository, which the sdist leaves out), and flash-attn-4
4.0.0b36 (``flash_attn/cute``: ``interface.py``, ``flash_fwd_sm90.py``, ``flash_fwd_sm100.py``). Where other engines say
otherwise, they run forks of these.

- A paged cache of FlashAttention 2 has blocks of a multiple of 256 (``mha_varlen_fwd``); 3 and 4 take any size.
- 2 is built for sm_100 and sm_120 from 2.7.3 on, before that for sm_80 and sm_90 alone, without PTX (``setup.py``).
- None takes a cache in another dtype than the query's: what 8-bit kernels there are want an 8-bit query too.
- ALiBi is 2's alone, and its bias is minus slope x distance on both sides: the same as ours under a causal mask only.
- Sinks are 4's alone (``learnable_sink``), on 9.x and later.
- 4 pads head sizes to multiples of 16, but not in a page that is no whole tile of keys ("Paged KV does not support
  irregular head dim"): 128 keys on 10.x and 11.x, and on 9.x a number that depends on the mask. It has kernels for 8.x
  and 12.x too, without pages and sinks: what these take, 2 takes as well.
- On AMD devices 2 is Composable Kernel (``csrc/flash_attn_ck``): with pages from 2.7.3 on, blocks of a multiple of 128,
  for gfx950 from 2.8 on, and with a soft cap that ``mha_varlen_fwd`` takes and leaves out.
- Equal bits whatever else is in the batch are 3's alone, with ``num_splits=1`` (2 splits by a heuristic over the
  batch), and only where its tile of keys has one size: with a causal mask that is so for head sizes of 104 to 128. Else
  the tile depends on whether the longest query of the batch fills a tile, whether its longest sequence fills a window,
  and whether pages are loaded as a whole (``tile_size_fwd_sm90``, ``get_pagedkv_tma``); above 192 on the window alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hardpoint.attention import ANYTHING, AttentionSupport, AttentionVariant, Integers, OneOf

FA2_PACKAGE: Final = "flash-attn>=2.6,<3"
FA2_PACKAGE_BLACKWELL: Final = "flash-attn>=2.7.3,<3"
FA2_PACKAGE_CDNA4: Final = "flash-attn>=2.8,<3"
FA3_PACKAGE: Final = "flash-attn-3>=3.0.0b1,<4"
FA4_PACKAGE: Final = "flash-attn-4>=4.0.0b36"

_EVERY_TYPE: Final = OneOf("decoder", "encoder", "encoder_only", "encoder_decoder")
_HEADS: Final = Integers(minimum=8, maximum=256, multiple_of=8)
_SMALL_HEADS: Final = Integers(minimum=8, maximum=128, multiple_of=8)
_ANY_BLOCK: Final = Integers(or_none=True)

# What all have in common.
_PLAIN: Final = AttentionVariant(
    runtimes=("cuda",),
    head_size=_HEADS,
    num_kv_heads=ANYTHING,
    dtype=OneOf("float16", "bfloat16"),
    attention_type=_EVERY_TYPE,
    causal=ANYTHING,
    sliding_window=ANYTHING,
    soft_cap=ANYTHING,
    kv_sharing=ANYTHING,
)

_FA2_ANY: Final = replace(
    _PLAIN,
    capability_majors=(8, 9),
    package=FA2_PACKAGE,
    block_size=Integers(minimum=256, multiple_of=256, or_none=True),
)
_FA2_ALIBI: Final = replace(_FA2_ANY, attention_type=None, causal=None, alibi=ANYTHING)
_FA2: Final = tuple(
    replace(variant, capability_majors=majors, package=package)
    for majors, package in (((8, 9), FA2_PACKAGE), ((10, 12), FA2_PACKAGE_BLACKWELL))
    for variant in (_FA2_ANY, _FA2_ALIBI)
)
_FA2_ROCM: Final = tuple(
    replace(
        _PLAIN,
        runtimes=("rocm",),
        architectures=architectures,
        package=package,
        block_size=Integers(minimum=128, multiple_of=128, or_none=True),
        soft_cap=None,
    )
    for architectures, package in ((("gfx90a", "gfx942"), FA2_PACKAGE_BLACKWELL), (("gfx950",), FA2_PACKAGE_CDNA4))
)

_FA3_ANY: Final = replace(_PLAIN, capability_majors=(9,), package=FA3_PACKAGE, block_size=_ANY_BLOCK)
_FA3: Final = (
    _FA3_ANY,
    replace(_FA3_ANY, head_size=OneOf(192), v_head_size=OneOf(128)),
    replace(
        _FA3_ANY,
        head_size=Integers(minimum=104, maximum=128, multiple_of=8),
        causal=None,
        attention_type=OneOf("decoder"),
        batch_invariant=ANYTHING,
    ),
    replace(
        _FA3_ANY,
        head_size=Integers(minimum=200, maximum=256, multiple_of=8),
        sliding_window=None,
        batch_invariant=ANYTHING,
    ),
)

_FA4_HOPPER: Final = replace(_PLAIN, capability_majors=(9,), package=FA4_PACKAGE, sinks=ANYTHING, v_head_size=_HEADS)
_FA4_BLACKWELL: Final = replace(
    _FA4_HOPPER, capability_majors=(10, 11), head_size=_SMALL_HEADS, v_head_size=_SMALL_HEADS
)
_FA4: Final = (
    replace(
        _FA4_HOPPER,
        head_size=replace(_HEADS, minimum=16, multiple_of=16),
        v_head_size=replace(_HEADS, minimum=16, multiple_of=16),
        block_size=_ANY_BLOCK,
    ),
    _FA4_HOPPER,
    replace(
        _FA4_BLACKWELL,
        head_size=replace(_SMALL_HEADS, minimum=16, multiple_of=16),
        v_head_size=replace(_SMALL_HEADS, minimum=16, multiple_of=16),
        block_size=_ANY_BLOCK,
    ),
    replace(_FA4_BLACKWELL, block_size=OneOf(128, None)),
    replace(_FA4_BLACKWELL, head_size=OneOf(192), v_head_size=OneOf(128), block_size=_ANY_BLOCK),
    replace(_FA4_BLACKWELL, head_size=OneOf(256), v_head_size=OneOf(256), block_size=_ANY_BLOCK),
)

_LATENT: Final = AttentionVariant(
    runtimes=("cuda",),
    num_kv_heads=ANYTHING,
    dtype=OneOf("float16", "bfloat16"),
    block_size=Integers(),
    causal=ANYTHING,
    kv_sharing=ANYTHING,
    qk_rope_head_dim=OneOf(64),
)
_MLA_FA3: Final = replace(
    _LATENT,
    capability_majors=(9,),
    package=FA3_PACKAGE,
    head_size=OneOf(320, 576),
    v_head_size=OneOf(256, 512),
    batch_invariant=ANYTHING,
    kv_lora_rank=OneOf(256, 512),
)
# Heads are packed into tiles of 128 rows, and only these numbers of them are tried there.
_MLA_FA4: Final = replace(
    _LATENT,
    capability_majors=(10, 11),
    package=FA4_PACKAGE,
    head_size=OneOf(576),
    v_head_size=OneOf(512),
    num_heads=OneOf(16, 32, 64, 128),
    kv_lora_rank=OneOf(512),
)

DENSE: Final = {"fa2": (*_FA2, *_FA2_ROCM), "fa3": _FA3, "fa4": _FA4}
LATENT: Final[dict[str, tuple[AttentionVariant, ...]]] = {"fa3": (_MLA_FA3,), "fa4": (_MLA_FA4,)}

# The first of two equally near variants explains a refusal: the package that most people lack is named.
DENSE_SUPPORT: Final = AttentionSupport((*_FA2, *_FA2_ROCM, *_FA3, *_FA4))
LATENT_SUPPORT: Final = AttentionSupport((_MLA_FA3, _MLA_FA4))

ARCHITECTURES: Final = ("sm_8*", "sm_9*", "sm_10*", "sm_11*", "sm_12*", "gfx90a", "gfx942", "gfx950")
"""2 is built for sm_80, sm_90, sm_100 and sm_120, each binary also for the later minors; 3 for sm_90; 4 compiles."""
