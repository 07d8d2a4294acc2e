"""One attention layer: writes the step's new rows, then attends, in one kernel module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention._kernel_checks import check_new_rows
from hardpoint.attention._kernel_forward import OpaqueLayer, dense
from hardpoint.errors import ConfigError
from hardpoint_cpu_native._plan import CpuNativePlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint.attention import AttentionConfig
    from hardpoint_cpu_native._kernels import Kernels


class CpuNativeLayer(OpaqueLayer[CpuNativePlan]):
    """Built by `CpuNativeBackend.create_layer`, which checks the arguments. Thread-safe where the cache is."""

    plan_type = CpuNativePlan
    torch_computes = False

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
        super().__init__(config)
        self.kernels = kernels
        self.most_threads = most_threads
        self._latent = config.kind == "mla_attention"
        self._num_caches = 1 if self._latent else 2
        self._native = kernels.layer(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_size=config.head_size,
            v_head_size=config.v_head_size,
            dtype=self.dtype,
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

    def run(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: Sequence[torch.Tensor] | None,
        plan: CpuNativePlan,
        out: torch.Tensor,
        lse: torch.Tensor | None,
    ) -> None:
        """The forward, into `out` and `lse`. The module checks every tensor before it touches one."""
        # One token's step is a few microseconds, so what is usual is asked for first and nothing twice.
        if plan.kernels is not self.kernels:
            raise ConfigError(f"the plan is one of {plan.kernels.instruction_set} kernels", field="plan")
        threads = min(torch.get_num_threads(), self.most_threads)
        target = out
        if not out.is_contiguous() and out.stride(-1) != 1:
            target = torch.empty_like(out, memory_format=torch.contiguous_format)
        query = dense(query)
        if key is None or value is None:
            check_new_rows(key, value, latent=self._latent, cached=kv_cache is not None)
        if key is not None:
            key = dense(key)
        if value is not None:
            value = dense(value)
        if kv_cache is None:
            assert key is not None  # noqa: S101  # for the type checker: `check_new_rows` has looked
            self.kernels.attention(self._native, plan.step(0), query, key, value, False, target, lse, threads)
        else:
            if len(kv_cache) != self._num_caches:
                wanted = "the latent" if self._latent else "key and value"
                raise ConfigError(f"a cache of {len(kv_cache)} tensors: expected {wanted}", field="kv_cache")
            keys, values = kv_cache[0], None if self._latent else kv_cache[1]
            step = plan.step(self.config.block_size or _block_size(keys, latent=self._latent))
            self.kernels.forward(self._native, step, query, key, value, keys, values, target, lse, threads)
        if target is not out:
            with torch.no_grad():
                out.copy_(target)


def _block_size(cache: torch.Tensor, *, latent: bool) -> int:
    axes = 3 if latent else 4
    if cache.ndim != axes:
        raise ConfigError(f"a cache of shape {tuple(cache.shape)}: expected {axes} axes", field="kv_cache")
    return cache.shape[-2]
