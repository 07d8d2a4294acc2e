"""What a layer around a kernel library needs besides its kernel: checks, the cache's new rows, rows that see nothing.

A backend subclasses `KernelPlan` (`prepare`) and `KernelLayer` (`attend`). Torch is imported late, as everywhere in the
core: only a chosen backend's module subclasses these.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import pairwise
from typing import TYPE_CHECKING, TypedDict

from hardpoint.attention import _handles
from hardpoint.attention._contract import AttentionLayer, AttentionPlan
from hardpoint.attention._new_rows import NewRows
from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from hardpoint.attention._batch import AttentionBatch
    from hardpoint.attention._config import AttentionConfig
    from hardpoint.attention._contract import CacheTensorSpec, KVCacheSpec


class KernelPlan(AttentionPlan):
    """A step. `blank` are the query rows that see nothing; libraries disagree on what they give for those."""

    batch: AttentionBatch
    causal: bool
    blank: tuple[slice, ...]

    def __init__(self, config: AttentionConfig, batch: AttentionBatch) -> None:
        import torch

        self.config = config
        # A tensor: a number would be a constant of compiled code, and every step would compile anew.
        self.handle = torch.tensor(_handles.register(self))
        self.update(batch)

    def update(self, batch: AttentionBatch) -> None:
        """Work it all out anew. Errors: `ConfigError` for a step that the config does not allow."""
        self.batch = batch
        self.causal = self.config.causal and batch.causal
        self.blank = tuple(self._blank())
        self._new_rows: NewRows | None = None
        self.prepare()

    def prepare(self) -> None:
        """What the library wants once per step. `batch`, `causal` and `blank` are set."""

    @property
    def new_rows(self) -> NewRows:
        """Where the step's new rows go. Errors: `ConfigError` where the batch does not say."""
        if self._new_rows is None:
            self._new_rows = NewRows.of(self.batch)
        return self._new_rows

    @property
    def sees_anything(self) -> bool:
        """Whether any row of the step sees a key: where none does, no kernel is called."""
        blank: int = sum(rows.stop - rows.start for rows in self.blank)
        return blank < self.batch.num_actual_tokens

    def _blank(self) -> Iterator[slice]:
        starts = self.batch.query_start_loc_host
        for number, num_keys in enumerate(self.batch.seq_lens_host):
            first, end = starts[number], starts[number + 1]
            # Queries align to the end: with more queries than keys the first ones lie before all keys.
            position = num_keys - (end - first)
            blank = 0
            if num_keys == 0:
                blank = end - first
            elif self.causal:
                blank = max(0, -position)
            elif self.config.sliding_window is not None:
                blank = max(0, 1 - self.config.sliding_window - position)
            if blank:
                yield slice(first, min(first + blank, end))


class LayerArguments(TypedDict):
    """What `AttentionBackend.create_layer` is given beside the config, all of it."""

    scale: float
    device: torch.device | str
    sinks: torch.Tensor | None
    alibi_slopes: torch.Tensor | None
    key_scale: float | None
    value_scale: float | None


class KernelLayer(AttentionLayer):
    """One layer. Checks the arguments of `AttentionBackend.create_layer`. Errors: `ConfigError`."""

    plan_type: type[KernelPlan] = KernelPlan

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

        for name, tensor, asked in (("sinks", sinks, config.sinks), ("alibi_slopes", alibi_slopes, config.alibi)):
            _check_per_head(name, tensor, asked=asked, num_heads=config.num_heads)
        quantised = getattr(torch, config.cache_dtype).itemsize == 1
        for name, factor in (("key_scale", key_scale), ("value_scale", value_scale)):
            if factor is not None and not quantised:
                raise ConfigError(f"{name}={factor}: a cache of {config.cache_dtype} has no scale", field=name)
            if factor is not None and not factor > 0:
                raise ConfigError(f"{name}={factor}: must be positive", field=name)
        self.config = config
        self.spec = spec
        self.device = torch.device(device)
        self.dtype: torch.dtype = getattr(torch, config.dtype)
        self.scale = float(scale)
        self.is_quantised = quantised
        self.key_scale, self.value_scale = key_scale, value_scale
        # What kernels read: one number per head in float32, whatever the weights' dtype.
        self.sinks = None if sinks is None else sinks.detach().to(self.device, torch.float32).contiguous()
        self.slopes = (
            None if alibi_slopes is None else alibi_slopes.detach().to(self.device, torch.float32).contiguous()
        )
        self.handle = _handles.register(self)

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
        import torch

        if not isinstance(plan, self.plan_type):
            raise TypeError(f"the plan is a {type(plan).__name__}: expected a {self.plan_type.__name__}")
        if out is None:
            out = query.new_empty(query.shape[0], self.config.num_heads, self.config.v_head_size)
        lse = None
        if return_lse:
            lse = torch.empty(self.config.num_heads, query.shape[0], dtype=torch.float32, device=query.device)
        if torch.compiler.is_compiling():
            from hardpoint.attention._kernel_operator import kernel_layer

            kernel_layer(self.handle, plan.handle, query, key, value, list(kv_cache or ()), out, lse)
        else:
            self.run(query, key, value, kv_cache, plan, out, lse)
        return out if lse is None else (out, lse)

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
            query = _dense(query[:count])
            key, value = (None if rows is None else _dense(rows[:num_new]) for rows in (key, value))
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
            for blank in (*plan.blank, slice(count, None)):
                out[blank] = 0
                if lse is not None:
                    lse[:, blank] = -torch.inf
            if lse is not None and self.sinks is not None:
                for blank in plan.blank:
                    lse[:, blank] = self.sinks[:, None]

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
        latent = config.kind == "mla_attention"
        if plan.config is not config and plan.config != config:
            raise ConfigError(f"the plan was made for another config: {plan.config.describe()}", field="plan")
        self._check_rows("query", query, (config.num_heads, config.head_size), batch.num_actual_tokens)
        self._check_rows("out", out, (config.num_heads, config.v_head_size), query.shape[0])
        if not latent and (key is None) != (value is None):
            raise ConfigError("a key without a value" if value is None else "a value without a key", field="value")
        if latent and value is not None:
            raise ConfigError("the latent form has no value: it is part of the latent", field="value")
        heads = () if latent else (config.num_kv_heads,)
        for name, rows, size in (("key", key, config.head_size), ("value", value, config.v_head_size)):
            if rows is not None:
                self._check_rows(name, rows, (*heads, size), batch.new_key_starts[-1])
        if kv_cache is None:
            if key is None:
                raise ConfigError("neither new keys nor a cache to read", field="key")
            for number, length in enumerate(batch.seq_lens_host):
                new = batch.new_key_starts[number + 1] - batch.new_key_starts[number]
                if new != length:
                    raise ConfigError(
                        f"sequence {number}: {new} new keys of {length}, and no cache for the rest", field="seq_lens"
                    )
            return
        if self.spec is None:
            raise ConfigError("a cache for a layer without block_size", field="kv_cache")
        if batch.block_table is None:
            raise ConfigError("a cache needs batch.block_table", field="block_table")
        if len(kv_cache) != len(self.spec.tensors):
            raise ConfigError(
                f"a cache of {len(kv_cache)} tensors: expected {len(self.spec.tensors)}", field="kv_cache"
            )
        for tensor, spec in zip(kv_cache, self.spec.tensors, strict=True):
            _check_cache(tensor, spec)
        block_size = config.block_size or 1
        for number, length in enumerate(batch.seq_lens_host):
            if (needed := -(-length // block_size)) > batch.block_table.shape[1]:
                raise ConfigError(
                    f"sequence {number}: {length} keys need {needed} blocks of {block_size}, "
                    f"its block_table has {batch.block_table.shape[1]}",
                    field="block_table",
                )

    def _check_rows(self, name: str, tensor: torch.Tensor, row: tuple[int, ...], at_least: int) -> None:
        shape = tuple(tensor.shape)
        if len(shape) != len(row) + 1 or shape[1:] != row or shape[0] < at_least or tensor.dtype != self.dtype:
            wanted = ", ".join(map(str, (f"at least {at_least}", *row)))
            raise ConfigError(
                f"{name} of shape {shape} and {tensor.dtype}: expected ({wanted}) and {self.dtype}", field=name
            )


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _check_per_head(name: str, tensor: torch.Tensor | None, *, asked: bool, num_heads: int) -> None:
    if asked != (tensor is not None):
        raise ConfigError(
            f"{name} {'missing' if asked else 'given'}: the config says {name.split('_', 1)[0]}={asked}", field=name
        )
    if tensor is not None and (tuple(tensor.shape) != (num_heads,) or not tensor.is_floating_point()):
        raise ConfigError(
            f"{name} of shape {tuple(tensor.shape)} and {tensor.dtype}: expected ({num_heads},), floating point",
            field=name,
        )


def _check_cache(tensor: torch.Tensor, spec: CacheTensorSpec) -> None:
    import torch

    shape = tuple(tensor.shape)
    if shape[1:] != spec.sizes or tensor.dtype != getattr(torch, spec.dtype):
        raise ConfigError(
            f"{spec.role} cache of shape {shape} and {tensor.dtype}: "
            f"expected (blocks, {', '.join(map(str, spec.sizes))}) and {spec.dtype}",
            field="kv_cache",
        )
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
