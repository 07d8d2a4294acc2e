"""One attention layer: writes the step's new rows, then runs the plan's calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention import AttentionLayer, _handles
from hardpoint.errors import ConfigError
from hardpoint_torch_sdpa._cache import write
from hardpoint_torch_sdpa._plan import SdpaPlan
from hardpoint_torch_sdpa._step import Step
from hardpoint_torch_sdpa._workspace import shared_workspace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint.attention import AttentionConfig, AttentionPlan


class TorchSdpaLayer(AttentionLayer):
    """Built by `TorchSdpaBackend.create_layer`, which checks the arguments. Thread-safe where the cache is."""

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
        self.config = config
        self.dtype: torch.dtype = getattr(torch, config.dtype)
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
        self._workspace = shared_workspace()
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
            from hardpoint_torch_sdpa._operator import attention

            if not isinstance(plan, SdpaPlan):
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
        if not isinstance(plan, SdpaPlan):
            raise TypeError(_not_a_plan(plan))
        self._check(query, key, value, kv_cache, plan, out)
        # Those after the step's tokens are padding, and padding must be finite.
        for rows in (*plan.blank, slice(plan.num_tokens, None)):
            out[rows] = 0
            if lse is not None:
                lse[:, rows] = -torch.inf
        if lse is not None and self.sinks_by_head is not None:
            for rows in plan.blank:
                lse[:, rows] = self.sinks_by_head
        # The kernels want the last axis dense.
        query = query if query.stride(-1) == 1 else query.contiguous()
        key, value = (t if t is None or t.stride(-1) == 1 else t.contiguous() for t in (key, value))
        key, value, kv_cache = self._with_heads(key, value, kv_cache)
        if kv_cache is not None and not self.config.kv_sharing:
            for cache, new, factor in zip(kv_cache, (key, value), (self.key_scale, self.value_scale), strict=False):
                if new is not None:
                    write(cache, new, plan.slots, factor)
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

    def _check(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: Sequence[torch.Tensor] | None,
        plan: SdpaPlan,
        out: torch.Tensor,
    ) -> None:
        config = self.config
        if plan.config is not config and plan.config != config:
            raise ConfigError(f"the plan was made for another config: {plan.config.describe()}", field="plan")
        self._check_rows("query", query, (config.num_heads, config.head_size), plan.num_tokens)
        self._check_rows("out", out, (config.num_heads, config.v_head_size), plan.num_tokens)
        if out.shape[0] != query.shape[0]:
            raise ConfigError(f"out has {out.shape[0]} rows, query {query.shape[0]}", field="out")
        if key is None and value is None and kv_cache is None:
            raise ConfigError("neither new keys nor a cache to read", field="key")
        self._check_keys(key, value, kv_cache, plan)

    def _check_keys(
        self,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: Sequence[torch.Tensor] | None,
        plan: SdpaPlan,
    ) -> None:
        config = self.config
        kv_heads, size, v_size = config.num_kv_heads, config.head_size, config.v_head_size
        if (key is None) != (value is None):
            raise ConfigError("a key without a value" if value is None else "a value without a key", field="value")
        if key is not None and value is not None:
            self._check_rows("key", key, (kv_heads, size), plan.num_new_keys)
            self._check_rows("value", value, (kv_heads, v_size), plan.num_new_keys)
        if kv_cache is None:
            return
        if len(kv_cache) != 2:
            raise ConfigError(f"a cache of {len(kv_cache)} tensors: expected key and value", field="kv_cache")
        block_size = config.block_size or kv_cache[0].shape[2]
        for role, cache, content in zip(("key", "value"), kv_cache, (size, v_size), strict=True):
            self._check_cache(role, cache, (kv_heads, block_size, content))

    def _check_cache(self, role: str, cache: torch.Tensor, block: tuple[int, ...]) -> None:
        if cache.dtype != self.cache_dtype or cache.shape[1:] != block:
            expected = ", ".join(map(str, block))
            raise ConfigError(
                f"{role} cache of shape {tuple(cache.shape)} and {cache.dtype}: "
                f"expected (blocks, {expected}) and {self.cache_dtype}",
                field="kv_cache",
            )

    def _check_rows(self, name: str, tensor: torch.Tensor, row: tuple[int, ...], at_least: int) -> None:
        shape = tensor.shape
        if len(shape) != len(row) + 1 or shape[1:] != row or shape[0] < at_least or tensor.dtype != self.dtype:
            expected = ", ".join(map(str, row))
            raise ConfigError(
                f"{name} of shape {tuple(shape)} and {tensor.dtype}: "
                f"expected (at least {at_least}, {expected}) and {self.dtype}",
                field=name,
            )


def _not_a_plan(plan: object) -> str:
    return f"the plan is a {type(plan).__name__}: expected one that TorchSdpaBackend.plan made"
