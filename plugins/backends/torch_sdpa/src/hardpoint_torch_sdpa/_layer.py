"""One attention layer: writes the step's new rows, then runs the plan's calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention._kernel_checks import check_caches, check_step
from hardpoint.attention._kernel_forward import OpaqueLayer, dense
from hardpoint.attention._kernel_shares import fill_blank
from hardpoint_torch_sdpa._plan import SdpaPlan
from hardpoint_torch_sdpa._step import Step
from hardpoint_torch_sdpa._workspace import shared_workspace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint.attention import AttentionConfig


class TorchSdpaLayer(OpaqueLayer[SdpaPlan]):
    """Built by `TorchSdpaBackend.create_layer`, which checks the arguments. Thread-safe where the cache is."""

    plan_type = SdpaPlan

    def __init__(
        self,
        config: AttentionConfig,
        *,
        scale: float,
        device: torch.device,
        sinks: torch.Tensor | None,
        alibi_slopes: torch.Tensor | None,
        key_scale: float | None,
        value_scale: float | None,
    ) -> None:
        super().__init__(config)
        self.cache_dtype: torch.dtype = getattr(torch, config.cache_dtype)
        # A wider cache loses nothing; the 8-bit types are exact in every wider one.
        quantised = self.cache_dtype.itemsize == 1
        self.wide_dtype = self.dtype if quantised else torch.promote_types(self.dtype, self.cache_dtype)
        self.by_group = (config.num_kv_heads, config.group_size)
        self.key_scale, self.value_scale = key_scale, value_scale
        self.scale = float(scale)
        # A stored key times its scale, times the query, times the layer's scale: one factor.
        self.cached_scale = self.scale * (1.0 if key_scale is None else key_scale)
        wide = torch.promote_types(self.wide_dtype, torch.float32)
        self.sinks = None if sinks is None else sinks.detach().to(device, wide)
        self.sinks_by_row = None if self.sinks is None else self.sinks.view(self.by_group)
        self.sinks_by_head = None if self.sinks is None else self.sinks.view(-1, 1)
        self.slopes = None if alibi_slopes is None else alibi_slopes.detach().to(device, wide).view(*self.by_group, 1)
        self.soft_cap = config.soft_cap
        # Without a block size in the config it is the cache's own.
        self._caches = [(role, sizes, self.cache_dtype) for role, sizes in self._blocks(config)]
        self._workspace = shared_workspace()

    @staticmethod
    def _blocks(config: AttentionConfig) -> list[tuple[str, tuple[int | None, ...]]]:
        """Roles of the cache tensors, and the sizes of their blocks."""
        heads, block_size = config.num_kv_heads, config.block_size
        return [("key", (heads, block_size, config.head_size)), ("value", (heads, block_size, config.v_head_size))]

    @torch.no_grad()
    def run(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: Sequence[torch.Tensor] | None,
        plan: SdpaPlan,
        out: torch.Tensor,
        lse: torch.Tensor | None,
    ) -> None:
        """The forward, into `out` and `lse`."""
        check_step(self.config, plan.batch, query, key, value, out, dtype=self.dtype, cached=kv_cache is not None)
        if kv_cache is not None:
            check_caches(kv_cache, self._caches)
        fill_blank(out, lse, plan.blank, plan.batch.num_actual_tokens, self.sinks)
        query = dense(query)
        key, value = (None if t is None else dense(t) for t in (key, value))
        key, value, kv_cache = self._with_heads(key, value, kv_cache)
        if kv_cache is not None and not self.config.kv_sharing:
            for cache, new, factor in zip(kv_cache, (key, value), (self.key_scale, self.value_scale), strict=False):
                if new is not None:
                    plan.new_rows.write(cache.transpose(1, 2), new, factor)
        scratch = self._workspace.take()
        try:
            Step(self, plan, query, key, value, kv_cache, out, lse, scratch).run()
        finally:
            self._workspace.give(scratch)

    def _with_heads(
        self, key: torch.Tensor | None, value: torch.Tensor | None, kv_cache: Sequence[torch.Tensor] | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, Sequence[torch.Tensor] | None]:
        """New rows as ``(tokens, heads, content)`` and cache tensors as ``(block, head, token, content)``."""
        return key, value, kv_cache
