"""The backend class behind the plugin's target."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention import AttentionBackend, CacheTensorSpec, GraphSupport, KVCacheSpec
from hardpoint.attention._kernel_checks import check_per_head, check_scales
from hardpoint.attention._kernel_smallest import check_device
from hardpoint.errors import ConfigError
from hardpoint_flex_attention._compiled import call, smallest
from hardpoint_flex_attention._family import Family
from hardpoint_flex_attention._layer import FlexAttentionLayer
from hardpoint_flex_attention._plan import FlexPlan

if TYPE_CHECKING:
    from hardpoint.attention import AttentionBatch, AttentionConfig


class FlexAttentionBackend(AttentionBackend):
    """flex_attention with a block mask: the kernel reads a decode's keys from the cache's own blocks.

    Two functions are compiled per config, one for one-token sequences and one for longer ones, at depth ``ready``; a
    layer that was not prepared compiles them in its first forward. A plan's block lists depend on the step's lengths,
    so no graph of them can be replayed.
    """

    graph_support = GraphSupport.NEVER

    @classmethod
    def prepare(cls, config: AttentionConfig, device: torch.device | str) -> None:
        """Compile. Errors: `EnvironmentFailure` where nothing can be compiled for the device."""
        device = torch.device(device)
        check_device(device, config.dtype)
        families = [Family.prefill(config, device)]
        if config.block_size is not None:
            families.append(Family.decode(config, device, config.block_size))
        for family in families:
            call(family, smallest(family, device))

    @classmethod
    def kv_cache_spec(cls, config: AttentionConfig) -> KVCacheSpec:
        """Key and value tensors, separately: blocks behind one another are one row of tokens, as the kernel wants."""
        if config.block_size is None:
            raise ConfigError("a cache needs block_size", field="block_size")
        axes = ("block", "token", "head", "content")
        return KVCacheSpec(
            tensors=tuple(
                CacheTensorSpec(
                    role=role,
                    axes=axes,
                    sizes=(config.block_size, config.num_kv_heads, size),
                    dtype=config.cache_dtype,
                    stride_orders=(axes,),
                )
                for role, size in (("key", config.head_size), ("value", config.v_head_size))
            )
        )

    @classmethod
    def create_layer(
        cls,
        config: AttentionConfig,
        *,
        scale: float,
        device: torch.device | str,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        key_scale: float | None = None,
        value_scale: float | None = None,
    ) -> FlexAttentionLayer:
        """Build one layer. Errors: `ConfigError` as the contract says."""
        if config.kind != "attention" or config.cache_dtype != config.dtype:
            raise ConfigError(f"flex_attention cannot do {config.describe()}", field="kv_cache_dtype")
        check_per_head(config, sinks=sinks, alibi_slopes=alibi_slopes)
        check_scales(config, key_scale=key_scale, value_scale=value_scale)
        return FlexAttentionLayer(
            config, scale=scale, device=torch.device(device), sinks=sinks, alibi_slopes=alibi_slopes
        )

    @classmethod
    def plan(cls, config: AttentionConfig, batch: AttentionBatch) -> FlexPlan:
        """Tile the step. Errors: `ConfigError` where the batch does not fit the config."""
        return FlexPlan(config, batch)
