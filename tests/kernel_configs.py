"""Hypothesis strategies for requests: every field, mostly values that a backend takes, now and then any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from hardpoint.attention import AttentionConfig, AttentionType

if TYPE_CHECKING:
    from collections.abc import Sequence

CACHE_DTYPES = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "int8", "float16")


def _mostly(likely: Sequence[Any], *others: Any) -> st.SearchStrategy[Any]:
    """One of the likely values in eleven of twelve cases."""
    often = st.sampled_from(likely)
    return st.integers(0, 11).flatmap(lambda number: st.sampled_from(others) if number == 11 else often)


@st.composite
def _shared(draw: st.DrawFn, block_sizes: Sequence[int | None]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "dtype": draw(_mostly(["bfloat16", "bfloat16", "float16"], "float32", "float64")),
        "kv_cache_dtype": draw(_mostly(["auto"], *CACHE_DTYPES)),
        "block_size": draw(_mostly(block_sizes, None, 1, 3, 16, 64, 256)),
        "sinks": draw(_mostly([False], True)),
        "alibi": draw(_mostly([False], True)),
        "soft_cap": draw(_mostly([None], 20.0)),
        "sliding_window": draw(_mostly([None, None, 3], 1, 1000)),
        "kv_sharing": draw(_mostly([False], True)),
        "batch_invariant": draw(_mostly([False], True)),
    }
    causal = draw(_mostly([None], True, False))
    return found if causal is None else {**found, "causal": causal}


@st.composite
def dense_configs(
    draw: st.DrawFn, head_sizes: Sequence[int] = (8, 64, 128), block_sizes: Sequence[int | None] = (16, 256)
) -> AttentionConfig:
    """Dense attention; the sizes are those that the backend likes."""
    kv_heads = draw(st.integers(1, 2))
    head_size = draw(_mostly(head_sizes, 8, 16, 20, 32, 64, 128, 192, 256, 512))
    return AttentionConfig(
        head_size=head_size,
        v_head_size=draw(_mostly([head_size], 128, 40)),
        num_heads=kv_heads * draw(st.sampled_from([1, 2, 5, 8])),
        num_kv_heads=kv_heads,
        attention_type=draw(_mostly([AttentionType.DECODER], *AttentionType)),
        **draw(_shared(block_sizes)),
    )


@st.composite
def latent_configs(draw: st.DrawFn, num_heads: Sequence[int] = (16,)) -> AttentionConfig:
    """The latent form; the numbers of heads are those that the backend likes."""
    rank = draw(_mostly([512], 256, 128))
    rope = draw(_mostly([64], 0, 32))
    found = draw(_shared((16, 64)))
    if found["sliding_window"] == 3:
        del found["sliding_window"]
    return AttentionConfig(
        kind="mla_attention",
        head_size=rank + rope,
        kv_lora_rank=rank,
        qk_rope_head_dim=rope,
        num_heads=draw(_mostly(num_heads, 1, 5, 8, 16, 128)),
        attention_type=draw(_mostly([AttentionType.DECODER], AttentionType.ENCODER_ONLY)),
        **found,
    )
