"""One attention layer: writes the step's new rows, then runs the plan's groups through the compiled functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention._kernel_checks import check_caches, check_step
from hardpoint.attention._kernel_forward import OpaqueLayer
from hardpoint.attention._kernel_shares import fill_blank
from hardpoint_flex_attention._keys import by_token, dense_rows, in_place
from hardpoint_flex_attention._lse import logsumexp
from hardpoint_flex_attention._plan import FlexPlan
from hardpoint_flex_attention._run import run_group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint.attention import AttentionConfig
    from hardpoint_flex_attention._group import Group


class FlexAttentionLayer(OpaqueLayer[FlexPlan]):
    """Built by `FlexAttentionBackend.create_layer`, which checks the arguments. Thread-safe where the cache is."""

    plan_type = FlexPlan

    # What is made in inference mode is another tensor to torch's compiler, for which it would compile anew.
    @torch.inference_mode(mode=False)
    def __init__(
        self,
        config: AttentionConfig,
        *,
        scale: float,
        device: torch.device,
        sinks: torch.Tensor | None,
        alibi_slopes: torch.Tensor | None,
    ) -> None:
        super().__init__(config)
        # Without a block size in the config it is the cache's own.
        self._caches = [
            (role, (config.block_size, config.num_kv_heads, size), self.dtype)
            for role, size in (("key", config.head_size), ("value", config.v_head_size))
        ]
        self.scale = float(scale)
        self.parameters = torch.tensor([self.scale, config.soft_cap or 1.0], dtype=torch.float32, device=device)
        self.sinks = None if sinks is None else sinks.detach().to(device, torch.float32)
        slopes = torch.zeros(config.num_heads, device=device) if alibi_slopes is None else alibi_slopes.detach()
        self.slopes = slopes.to(device, torch.float32).contiguous()

    @torch.no_grad()
    def run(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: Sequence[torch.Tensor] | None,
        plan: FlexPlan,
        out: torch.Tensor,
        lse: torch.Tensor | None,
    ) -> None:
        """The forward, into `out` and `lse`."""
        check_step(self.config, plan.batch, query, key, value, out, dtype=self.dtype, cached=kv_cache is not None)
        if kv_cache is not None:
            check_caches(kv_cache, self._caches)
        fill_blank(out, lse, plan.blank, plan.batch.num_actual_tokens, self.sinks)
        sources = (key, value)
        block_size = None
        if kv_cache is not None:
            block_size = kv_cache[0].shape[1]
            if not self.config.kv_sharing:
                for cache, new in zip(kv_cache, (key, value), strict=True):
                    if new is not None:
                        plan.new_rows.write(cache, new, None)
            sources = (kv_cache[0], kv_cache[1])
        for group in plan.groups(block_size):
            self._attend(group, query, sources, out, lse)

    def _attend(
        self,
        group: Group,
        query: torch.Tensor,
        sources: tuple[torch.Tensor | None, torch.Tensor | None],
        out: torch.Tensor,
        lse: torch.Tensor | None,
    ) -> None:
        key, value = sources
        assert key is not None and value is not None  # noqa: S101, PT018  # for the type checker: checked before
        keys = in_place(group, key, value)
        where = None
        if keys is None:
            keys = dense_rows(group, key), dense_rows(group, value)
            where = group.dense()
        else:
            where = group.paged(key.shape[0])
        found, found_lse = run_group(self, group, where, query, *keys)
        rows = group.valid_rows
        if lse is not None or self.sinks is not None:
            if found_lse is None:
                found_lse = logsumexp(self, group, query, by_token(key))
            if self.sinks is not None:
                # The sink's share of the denominator is what the values lose.
                found = found * torch.sigmoid(found_lse - self.sinks).unsqueeze(-1)
                found_lse = torch.logaddexp(found_lse, self.sinks)
            if lse is not None:
                lse.index_copy_(1, rows, found_lse.T)
        out.index_copy_(0, rows, found.to(out.dtype))
