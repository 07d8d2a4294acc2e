"""What a layer around a kernel library needs besides its kernel: checks, the cache's new rows, rows that see nothing.

A backend subclasses `KernelPlan` (`prepare`) and `KernelLayer` (`attend`). Torch is imported late, as everywhere in the
core: only a chosen backend's module subclasses these.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import pairwise
from typing import TYPE_CHECKING, TypedDict

from hardpoint.attention._config import DTYPE_SIZE_BYTES
from hardpoint.attention._kernel_checks import (
    check_caches,
    check_new_keys,
    check_per_head,
    check_scales,
    check_step,
    check_table,
)
from hardpoint.attention._kernel_forward import OpaqueLayer, OpaquePlan, dense
from hardpoint.attention._kernel_shares import fill_blank, shares_of
from hardpoint.attention._new_rows import NewRows
from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from hardpoint.attention._batch import AttentionBatch
    from hardpoint.attention._config import AttentionConfig
    from hardpoint.attention._contract import CacheTensorSpec, KVCacheSpec
    from hardpoint.attention._kernel_shares import Share


class KernelPlan(OpaquePlan):
    """A step. `blank` are the query rows that see nothing; libraries disagree on what they give for those."""

    batch: AttentionBatch
    causal: bool
    blank: tuple[slice, ...]
    shares: tuple[Share, ...]

    def __init__(self, config: AttentionConfig, batch: AttentionBatch) -> None:
        super().__init__(config)
        self.update(batch)

    def update(self, batch: AttentionBatch) -> None:
        """Work it all out anew. Errors: `ConfigError` for a step that the config does not allow."""
        self.batch = batch
        self.causal = self.config.causal and batch.causal
        self.blank, self.shares = shares_of(self.config, batch)
        self._new_rows: NewRows | None = None
        self._checked: set[int | None] = set()
        self.prepare()

    def prepare(self) -> None:
        """What the library wants once per step. `batch`, `causal`, `blank` and `shares` are set."""

    @property
    def new_rows(self) -> NewRows:
        """Where the step's new rows go. Errors: `ConfigError` where the batch does not say."""
        if self._new_rows is None:
            self._new_rows = NewRows.of(self.batch)
        return self._new_rows

    def check_keys(self, block_size: int | None) -> None:
        """Errors: `ConfigError` where keys lie in no block of that size, or (None: no cache) are not all new."""
        if block_size in self._checked:
            return
        if block_size is None:
            check_new_keys(self.batch)
        else:
            check_table(self.batch, block_size)
        self._checked.add(block_size)

    @property
    def sees_anything(self) -> bool:
        """Whether any row of the step sees a key: where none does, no kernel is called."""
        return bool(self.shares)


class LayerArguments(TypedDict):
    """What `AttentionBackend.create_layer` is given beside the config, all of it."""

    scale: float
    device: torch.device | str
    sinks: torch.Tensor | None
    alibi_slopes: torch.Tensor | None
    key_scale: float | None
    value_scale: float | None


class KernelLayer(OpaqueLayer[KernelPlan]):
    """One layer. Checks the arguments of `AttentionBackend.create_layer`. Errors: `ConfigError`."""

    plan_type = KernelPlan

    def __init__(
        self,
        config: AttentionConfig,
        spec: KVCacheSpec | None,
        *,
        scale: float,
        device: torch.device | str,
        sinks: torch.Tensor | None,
        alibi_slopes: torch.Tensor | None,
        key_scale: float | None,
        value_scale: float | None,
    ) -> None:
        import torch

        check_per_head(config, sinks=sinks, alibi_slopes=alibi_slopes)
        check_scales(config, key_scale=key_scale, value_scale=value_scale)
        super().__init__(config)
        self.spec = spec
        self.device = torch.device(device)
        self.scale = float(scale)
        self.is_quantised = DTYPE_SIZE_BYTES[config.cache_dtype] == 1
        self.key_scale, self.value_scale = key_scale, value_scale
        # What kernels read: one number per head in float32, whatever the weights' dtype.
        self.sinks = None if sinks is None else sinks.detach().to(self.device, torch.float32).contiguous()
        self.slopes = (
            None if alibi_slopes is None else alibi_slopes.detach().to(self.device, torch.float32).contiguous()
        )

    @abstractmethod
    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: Sequence[torch.Tensor] | None,
        plan: KernelPlan,
        *,
        return_lse: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Call the kernel: result and (if asked for) lse of the step's rows, ``(num_heads, rows)``, natural logarithm.

        Padding is cut off, new rows are written, last axes are dense. What rows of `plan.blank` hold does not matter.
        """

    def run(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: Sequence[torch.Tensor] | None,
        plan: KernelPlan,
        out: torch.Tensor,
        lse: torch.Tensor | None,
    ) -> None:
        """The forward, into `out` and `lse`."""
        import torch

        self._check(query, key, value, kv_cache, plan, out)
        count, num_new = plan.batch.num_actual_tokens, plan.batch.new_key_starts[-1]
        with torch.no_grad():
            query = dense(query[:count])
            key, value = (None if rows is None else dense(rows[:num_new]) for rows in (key, value))
            if kv_cache is not None and key is not None and not self.config.kv_sharing:
                for cache, rows, factor in zip(
                    kv_cache, (key, value), (self.key_scale, self.value_scale), strict=False
                ):
                    if rows is not None:
                        plan.new_rows.write(cache, rows, factor)
            if plan.sees_anything:
                result, found = self.attend(query, key, value, kv_cache, plan, return_lse=lse is not None)
                out[:count].copy_(result)
                if lse is not None and found is not None:
                    lse[:, :count].copy_(found)
            fill_blank(out, lse, plan.blank, count, self.sinks)

    def _check(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: Sequence[torch.Tensor] | None,
        plan: KernelPlan,
        out: torch.Tensor,
    ) -> None:
        config, batch = self.config, plan.batch
        check_step(config, batch, query, key, value, out, dtype=self.dtype, cached=kv_cache is not None)
        if kv_cache is None:
            plan.check_keys(None)
            return
        if self.spec is None or config.block_size is None:
            raise ConfigError("a cache for a layer without block_size", field="kv_cache")
        plan.check_keys(config.block_size)
        check_caches(kv_cache, [(spec.role, spec.sizes, _dtype(spec)) for spec in self.spec.tensors])
        for tensor, spec in zip(kv_cache, self.spec.tensors, strict=True):
            _check_memory_order(tensor, spec)


def _dtype(spec: CacheTensorSpec) -> torch.dtype:
    import torch

    found: torch.dtype = getattr(torch, spec.dtype)
    return found


def _check_memory_order(tensor: torch.Tensor, spec: CacheTensorSpec) -> None:
    for order in spec.stride_orders:
        strides = [tensor.stride(spec.axes.index(axis)) for axis in order]
        # An axis of one element may have any stride.
        if strides[-1] in (1, 0) or tensor.shape[spec.axes.index(order[-1])] == 1:
            kept = [s for s, axis in zip(strides, order, strict=True) if tensor.shape[spec.axes.index(axis)] != 1]
            if all(one >= two for one, two in pairwise(kept)):
                return
    raise ConfigError(
        f"{spec.role} cache with strides {tuple(tensor.stride())} for axes {spec.axes}: "
        f"its memory order is none of {spec.stride_orders}",
        field="kv_cache",
    )
