"""The two forms of cache that kernel libraries read: keys and values apart, and the latent with its rotary part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hardpoint.attention._contract import CacheTensorSpec, KVCacheSpec
from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint.attention._config import AttentionConfig

BY_TOKEN: Final = ("block", "token", "head", "content")
"""How the tensors of keys and values are indexed, and one order in memory."""
BY_HEAD: Final = ("block", "head", "token", "content")
_LATENT: Final = ("block", "token", "content")


def dense_cache(
    config: AttentionConfig,
    stride_orders: Sequence[tuple[str, ...]] = (BY_TOKEN, BY_HEAD),
    *,
    alignment_bytes: int = 128,
) -> KVCacheSpec:
    """Key and value tensors, best memory order first. Errors: `ConfigError` without a block size."""
    return KVCacheSpec(
        tensors=tuple(
            CacheTensorSpec(
                role=role,
                axes=BY_TOKEN,
                sizes=(_block_size(config), config.num_kv_heads, size),
                dtype=config.cache_dtype,
                stride_orders=tuple(stride_orders),
                alignment_bytes=alignment_bytes,
            )
            for role, size in (("key", config.head_size), ("value", config.v_head_size))
        )
    )


def latent_cache(config: AttentionConfig, *, alignment_bytes: int = 128) -> KVCacheSpec:
    """One tensor: latent and rotary part behind one another. Errors: `ConfigError` without a block size."""
    return KVCacheSpec(
        tensors=(
            CacheTensorSpec(
                role="latent",
                axes=_LATENT,
                sizes=(_block_size(config), config.head_size),
                dtype=config.cache_dtype,
                stride_orders=(_LATENT,),
                alignment_bytes=alignment_bytes,
            ),
        )
    )


def _block_size(config: AttentionConfig) -> int:
    if config.block_size is None:
        raise ConfigError("a cache needs block_size", field="block_size")
    return config.block_size
