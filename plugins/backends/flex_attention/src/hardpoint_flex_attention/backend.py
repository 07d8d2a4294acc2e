"""The backend class behind the plugin's target."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention import AttentionBackend, CacheTensorSpec, GraphSupport, KVCacheSpec
from hardpoint.errors import ConfigError, EnvironmentFailure
from hardpoint_flex_attention._compiled import call
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
        try:
            torch.zeros(1, dtype=getattr(torch, config.dtype), device=device)
        except (RuntimeError, AssertionError, TypeError) as error:
            # torch says it in several ways: no such device, built without it, no such dtype there.
            raise EnvironmentFailure(
                f"torch {torch.__version__} has no {config.dtype} on {device}: {error}", code="no_device"
            ) from error
        families = [Family.prefill(config, device)]
        if config.block_size is not None:
            families.append(Family.decode(config, device, config.block_size))
        for family in families:
            with torch.inference_mode(mode=False):
                inputs = family.smallest(device)
            call(family, inputs)

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
        for name, tensor, asked in (("sinks", sinks, config.sinks), ("alibi_slopes", alibi_slopes, config.alibi)):
            if asked != (tensor is not None):
                raise ConfigError(
                    f"{name} {'missing' if asked else 'given'}: the config says {name.split('_', 1)[0]}={asked}",
                    field=name,
                )
            if tensor is not None and (tuple(tensor.shape) != (config.num_heads,) or not tensor.is_floating_point()):
                raise ConfigError(
                    f"{name} of shape {tuple(tensor.shape)} and {tensor.dtype}: "
                    f"expected ({config.num_heads},), floating point",
                    field=name,
                )
        for name, factor in (("key_scale", key_scale), ("value_scale", value_scale)):
            if factor is not None:
                raise ConfigError(f"{name}={factor}: a cache of {config.cache_dtype} has no scale", field=name)
        return FlexAttentionLayer(
            config, scale=scale, device=torch.device(device), sinks=sinks, alibi_slopes=alibi_slopes
        )

    @classmethod
    def plan(cls, config: AttentionConfig, batch: AttentionBatch) -> FlexPlan:
        """Tile the step. Errors: `ConfigError` where the batch does not fit the config."""
        return FlexPlan(config, batch)
