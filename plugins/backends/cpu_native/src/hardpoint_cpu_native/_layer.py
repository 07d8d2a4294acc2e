"""One attention layer: writes the step's new rows, then attends, in one kernel module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention import AttentionLayer, _handles
from hardpoint.errors import ConfigError
from hardpoint_cpu_native._plan import CpuNativePlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint.attention import AttentionConfig, AttentionPlan
    from hardpoint_cpu_native._kernels import Kernels


class CpuNativeLayer(AttentionLayer):
    """Built by `CpuNativeBackend.create_layer`, which checks the arguments. Thread-safe where the cache is."""

    def __init__(
        self,
        config: AttentionConfig,
        *,
        scale: float,
        sinks: torch.Tensor | None,
        alibi_slopes: torch.Tensor | None,
        kernels: Kernels,
        key_scale: float | None = None,
        value_scale: float | None = None,
        most_threads: int = 1 << 16,
    ) -> None:
        self.config = config
        self.kernels = kernels
        self.most_threads = most_threads
        self._latent = config.kind == "mla_attention"
        self.handle = _handles.register(self)
        self._native = kernels.layer(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_size=config.head_size,
            v_head_size=config.v_head_size,
            dtype=getattr(torch, config.dtype),
            cache_dtype=getattr(torch, config.cache_dtype),
            latent=self._latent,
            scale=scale,
            key_scale=1.0 if key_scale is None else key_scale,
            # A latent's value is part of what was stored with the key's scale.
            value_scale=(key_scale if self._latent else value_scale) or 1.0,
            soft_cap=config.soft_cap or 0.0,
            sinks=[] if sinks is None else sinks.tolist(),
            slopes=[] if alibi_slopes is None else alibi_slopes.tolist(),
            shares_cache=config.kv_sharing,
        )

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
            # empty_like is the cheapest way to a tensor where the shapes are equal.
            if config.v_head_size == config.head_size and query.is_contiguous():
                out = torch.empty_like(query)
            else:
                out = query.new_empty(query.shape[0], config.num_heads, config.v_head_size)
        lse = None
        if return_lse:
            lse = torch.empty(config.num_heads, query.shape[0], dtype=torch.float32)
        if torch.compiler.is_compiling():
            # One opaque operator; the import registers it.
            from hardpoint_cpu_native._operator import attention

            if not isinstance(plan, CpuNativePlan):
                raise TypeError(_not_a_plan(plan))
            caches = [] if kv_cache is None else list(kv_cache)
            attention(self.handle, plan.handle, query, key, value, caches, out, lse)
        else:
            self.run(query, key, value, kv_cache, plan, out, lse)
        return out if lse is None else (out, lse)

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
        """The forward, into `out` and `lse`. The module checks every tensor before it touches one."""
        if not isinstance(plan, CpuNativePlan):
            raise TypeError(_not_a_plan(plan))
        if plan.config is not self.config and plan.config != self.config:
            raise ConfigError(f"the plan was made for another config: {plan.config.describe()}", field="plan")
        if plan.kernels is not self.kernels:
            raise ConfigError(f"the plan is one of {plan.kernels.instruction_set} kernels", field="plan")
        if not self._latent and (key is None) != (value is None):
            raise ConfigError("a key without a value" if value is None else "a value without a key", field="value")
        threads = min(torch.get_num_threads(), self.most_threads)
        query, target = _dense(query), out if out.stride(-1) == 1 else torch.empty_like(out, memory_format=_CONTIGUOUS)
        if key is not None:
            key = _dense(key)
        if value is not None:
            value = _dense(value)
        if kv_cache is None:
            if key is None:
                raise ConfigError("neither new keys nor a cache to read", field="key")
            self.kernels.attention(self._native, plan.step(0), query, key, value, False, target, lse, threads)
        else:
            if len(kv_cache) != (1 if self._latent else 2):
                wanted = "the latent" if self._latent else "key and value"
                raise ConfigError(f"a cache of {len(kv_cache)} tensors: expected {wanted}", field="kv_cache")
            keys, values = kv_cache[0], None if self._latent else kv_cache[1]
            step = plan.step(self.config.block_size or _block_size(keys, latent=self._latent))
            self.kernels.forward(self._native, step, query, key, value, keys, values, target, lse, threads)
        if target is not out:
            with torch.no_grad():
                out.copy_(target)


_CONTIGUOUS = torch.contiguous_format


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    # The kernels want the last axis dense.
    return tensor if tensor.stride(-1) == 1 else tensor.detach().contiguous()


def _block_size(cache: torch.Tensor, *, latent: bool) -> int:
    axes = 3 if latent else 4
    if cache.ndim != axes:
        raise ConfigError(f"a cache of shape {tuple(cache.shape)}: expected {axes} axes", field="kv_cache")
    return cache.shape[-2]


def _not_a_plan(plan: object) -> str:
    return f"the plan is a {type(plan).__name__}: expected one that CpuNativeBackend.plan made"
