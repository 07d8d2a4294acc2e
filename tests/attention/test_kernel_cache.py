"""The caches of kernel libraries."""

from __future__ import annotations

import pytest

from hardpoint.attention._kernel_cache import BY_HEAD, BY_TOKEN, dense_cache, latent_cache
from hardpoint.errors import ConfigError
from tests.plugins import config


def test_keys_and_values_are_apart() -> None:
    """Of the sizes and the dtype that the config gives, in either order of memory."""
    spec = dense_cache(config(head_size=64, v_head_size=32, num_kv_heads=2, block_size=16, kv_cache_dtype="float16"))
    assert [(item.role, item.sizes, item.dtype) for item in spec.tensors] == [
        ("key", (16, 2, 64), "float16"),
        ("value", (16, 2, 32), "float16"),
    ]
    assert {item.stride_orders for item in spec.tensors} == {(BY_TOKEN, BY_HEAD)}


def test_the_latent_is_one_tensor() -> None:
    """With its rotary part behind it."""
    latent = config(
        kind="mla_attention", head_size=576, num_kv_heads=1, kv_lora_rank=512, qk_rope_head_dim=64, block_size=64
    )
    (tensor,) = latent_cache(latent).tensors
    assert (tensor.role, tensor.sizes) == ("latent", (64, 576))


def test_without_a_block_size_there_is_none() -> None:
    """The error names the field."""
    with pytest.raises(ConfigError, match="a cache needs block_size"):
        dense_cache(config(block_size=None, attention_type="encoder_only"))
