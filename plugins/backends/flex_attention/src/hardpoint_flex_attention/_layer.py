"""One attention layer: writes the step's new rows, then runs the plan's groups through the compiled functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention import AttentionLayer, _handles
from hardpoint.errors import ConfigError
from hardpoint_flex_attention._keys import by_token, dense_rows, in_place, write
from hardpoint_flex_attention._lse import logsumexp
from hardpoint_flex_attention._plan import FlexPlan
from hardpoint_flex_attention._run import run_group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint.attention import AttentionConfig, AttentionPlan
    from hardpoint_flex_attention._group import Group


class FlexAttentionLayer(AttentionLayer):
    """Built by `FlexAttentionBackend.create_layer`, which checks the arguments. Thread-safe where the cache is."""

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
        self.config = config
        self.dtype: torch.dtype = getattr(torch, config.dtype)
        self.scale = float(scale)
        self.parameters = torch.tensor([self.scale, config.soft_cap or 1.0], dtype=torch.float32, device=device)
        self.sinks = None if sinks is None else sinks.detach().to(device, torch.float32)
        slopes = torch.zeros(config.num_heads, device=device) if alibi_slopes is None else alibi_slopes.detach()
        self.slopes = slopes.to(device, torch.float32).contiguous()
        self.handle = _handles.register(self)

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
        """As `AttentionLayer.forward` says. Errors: `ConfigError` for tensors that do not fit config or plan."""
        config = self.config
        if out is None:
            out = query.new_empty(query.shape[0], config.num_heads, config.v_head_size)
        lse = None
        if return_lse:
            lse = torch.empty(config.num_heads, query.shape[0], dtype=torch.float32, device=query.device)
        if torch.compiler.is_compiling():
            # One opaque operator; the import registers it.
            from hardpoint_flex_attention._operator import attention

            if not isinstance(plan, FlexPlan):
                raise TypeError(_not_a_plan(plan))
            caches = [] if kv_cache is None else list(kv_cache)
            attention(self.handle, plan.handle, query, key, value, caches, out, lse)
        else:
            self.run(query, key, value, kv_cache, plan, out, lse)
        return out if lse is None else (out, lse)

    @torch.no_grad()
    def run(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: Sequence[torch.Tensor] | None,
        plan: AttentionPlan,
        out: torch.Tensor,
        lse: torch.Tensor | None,
    ) -> None:
        """The forward, into `out` and `lse`."""
        if not isinstance(plan, FlexPlan):
            raise TypeError(_not_a_plan(plan))
        self._check(query, key, value, kv_cache, plan, out)
        # Those after the step's tokens are padding, and padding must be finite.
        for rows in (*plan.blank, slice(plan.num_tokens, None)):
            out[rows] = 0
            if lse is not None:
                lse[:, rows] = -torch.inf
        if lse is not None and self.sinks is not None:
            for rows in plan.blank:
                lse[:, rows] = self.sinks[:, None]
        sources = (key, value)
        block_size = None
        if kv_cache is not None:
            block_size = kv_cache[0].shape[1]
            if not self.config.kv_sharing:
                for cache, new in zip(kv_cache, (key, value), strict=True):
                    if new is not None:
                        write(cache, new, *plan.slots())
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

    def _check(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: Sequence[torch.Tensor] | None,
        plan: FlexPlan,
        out: torch.Tensor,
    ) -> None:
        config = self.config
        heads, kv_heads, size, v_size = config.num_heads, config.num_kv_heads, config.head_size, config.v_head_size
        if plan.config is not config and plan.config != config:
            raise ConfigError(f"the plan was made for another config: {plan.config.describe()}", field="plan")
        self._check_rows("query", query, (heads, size), plan.num_tokens)
        self._check_rows("out", out, (heads, v_size), plan.num_tokens)
        if out.shape[0] != query.shape[0]:
            raise ConfigError(f"out has {out.shape[0]} rows, query {query.shape[0]}", field="out")
        if (key is None) != (value is None):
            raise ConfigError("a key without a value" if value is None else "a value without a key", field="value")
        if key is not None and value is not None:
            self._check_rows("key", key, (kv_heads, size), plan.num_new_keys)
            self._check_rows("value", value, (kv_heads, v_size), plan.num_new_keys)
        if kv_cache is None:
            if key is None:
                raise ConfigError("neither new keys nor a cache to read", field="key")
            return
        if len(kv_cache) != 2:
            raise ConfigError(f"a cache of {len(kv_cache)} tensors: expected key and value", field="kv_cache")
        block_size = config.block_size or kv_cache[0].shape[1]
        for role, cache, content in zip(("key", "value"), kv_cache, (size, v_size), strict=True):
            if cache.dtype != self.dtype or cache.shape[1:] != (block_size, kv_heads, content):
                raise ConfigError(
                    f"{role} cache of shape {tuple(cache.shape)} and {cache.dtype}: "
                    f"expected (blocks, {block_size}, {kv_heads}, {content}) and {self.dtype}",
                    field="kv_cache",
                )

    def _check_rows(self, name: str, tensor: torch.Tensor, row: tuple[int, int], at_least: int) -> None:
        shape = tensor.shape
        if len(shape) != 3 or shape[1:] != row or shape[0] < at_least or tensor.dtype != self.dtype:
            raise ConfigError(
                f"{name} of shape {tuple(shape)} and {tensor.dtype}: "
                f"expected (at least {at_least}, {row[0]}, {row[1]}) and {self.dtype}",
                field=name,
            )


def _not_a_plan(plan: object) -> str:
    return f"the plan is a {type(plan).__name__}: expected one that FlexAttentionBackend.plan made"
