"""The attention backend: the vendor's operator behind Hardpoint's contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hardpoint import EnvironmentFailure
from hardpoint.attention import (
    AttentionBackend,
    AttentionBatch,
    AttentionLayer,
    AttentionPlan,
    CacheTensorSpec,
    KVCacheSpec,
)
from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint.attention import AttentionConfig

_AXES = ("block", "token", "head", "content")


class WherrowPlan(AttentionPlan):
    """The step itself: the kernel takes all sequences at once."""

    def __init__(self, config: AttentionConfig, batch: AttentionBatch) -> None:
        self.config = config
        self.update(batch)

    def update(self, batch: AttentionBatch) -> None:
        """Take another step."""
        if not batch.causal:
            raise ConfigError("wherrow_attention: this step is not causal, and the kernel is", field="causal")
        if batch.kv_start_loc_host is not None:
            raise ConfigError("wherrow_attention: new keys that are not the queries' own", field="kv_lens")
        if batch.block_table is None or batch.slot_mapping is None:
            raise ConfigError("wherrow_attention: keys are read from a cache only", field="block_table")
        self.tables = batch.block_table, batch.slot_mapping
        self.starts, self.lens = list(batch.query_start_loc_host), list(batch.seq_lens_host)


class WherrowLayer(AttentionLayer):
    """One layer. All work is queued in the current stream."""

    def __init__(self, config: AttentionConfig, scale: float) -> None:
        self.config, self.scale = config, scale

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: Sequence[torch.Tensor] | None,
        plan: AttentionPlan,
        *,
        out: torch.Tensor | None = None,
        return_lse: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """As the contract says. Errors: `ConfigError` where the plan is another layer's, or there is no cache."""
        if not isinstance(plan, WherrowPlan) or plan.config != self.config:
            raise ConfigError("the plan was not made for this layer", field="plan")
        if kv_cache is None:
            raise ConfigError("wherrow_attention: keys are read from a cache only", field="kv_cache")
        if out is None:
            out = query.new_empty(query.shape[0], self.config.num_heads, self.config.v_head_size)
        lse = query.new_empty(self.config.num_heads, query.shape[0], dtype=torch.float32) if return_lse else None
        torch.ops.wherrow.attention(
            query, key, value, *kv_cache, *plan.tables, plan.starts, plan.lens, self.scale, out, lse
        )
        return out if lse is None else (out, lse)


class WherrowAttention(AttentionBackend):
    """Causal attention over a paged cache."""

    @classmethod
    def prepare(cls, config: AttentionConfig, device: torch.device | str) -> None:
        """Run one token, so that what does not work is met here. Opens the device."""
        try:
            cache = cls.kv_cache_spec(config).allocate(1, device=device)
            batch = AttentionBatch.build(
                query_lens=[1], seq_lens=[1], block_table=[[0]], slot_mapping=[0], device=device
            )
            shape = {"dtype": getattr(torch, config.dtype), "device": device}
            query = torch.zeros(1, config.num_heads, config.head_size, **shape)
            key = torch.zeros(1, config.num_kv_heads, config.head_size, **shape)
            layer = cls.create_layer(config, scale=1.0, device=device)
            layer.forward(query, key, key, cache, cls.plan(config, batch))
            torch.get_device_module(device).synchronize(device)
        except (torch.OutOfMemoryError, NotImplementedError) as error:
            raise EnvironmentFailure(f"wherrow_attention does not start on {device}: {error}", code="driver") from error

    @classmethod
    def kv_cache_spec(cls, config: AttentionConfig) -> KVCacheSpec:
        """Key and value, a block's tokens behind one another."""
        if config.block_size is None:
            raise ConfigError("a cache needs block_size", field="block_size")
        sizes = (config.block_size, config.num_kv_heads, config.head_size)
        return KVCacheSpec(
            tensors=tuple(
                CacheTensorSpec(role=role, axes=_AXES, sizes=sizes, dtype=config.cache_dtype, stride_orders=(_AXES,))
                for role in ("key", "value")
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
    ) -> WherrowLayer:
        """Build one layer. Errors: `ConfigError` for what the kernel does not take."""
        given = {"sinks": sinks, "alibi_slopes": alibi_slopes, "key_scale": key_scale, "value_scale": value_scale}
        if extra := [name for name, value in given.items() if value is not None]:
            raise ConfigError(f"wherrow_attention takes no {extra[0]}", field=extra[0])
        return WherrowLayer(config, scale)

    @classmethod
    def plan(cls, config: AttentionConfig, batch: AttentionBatch) -> WherrowPlan:
        """Take the step's tables as they are. Errors: `ConfigError` for a step that the kernel does not take."""
        return WherrowPlan(config, batch)
