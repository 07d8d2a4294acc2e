"""One attention layer: writes the step's new rows, then launches the plan's programs."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention import AttentionLayer, _handles
from hardpoint.errors import ConfigError
from hardpoint_triton._launch import Cache, Parameters, attend_launches, store_launch
from hardpoint_triton._plan import TritonPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from hardpoint.attention import AttentionConfig, AttentionPlan
    from hardpoint_triton._kernel import Launch


class TritonLayer(AttentionLayer):
    """Built by the backends' `create_layer`, which checks the arguments. Thread-safe where the cache is."""

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
        self.is_latent = config.kind == "mla_attention"
        self.dtype: torch.dtype = getattr(torch, config.dtype)
        self.cache_dtype: torch.dtype = getattr(torch, config.cache_dtype)
        key_factor = 1.0 if key_scale is None else float(key_scale)
        value_factor = 1.0 if value_scale is None else float(value_scale)
        self.sinks = None if sinks is None else sinks.detach().to(device, torch.float32).contiguous()
        self.parameters = Parameters(
            config=config,
            scale=float(scale),
            # A stored key times its scale, times the query, times the layer's scale: one factor.
            cached_scale=float(scale) * key_factor,
            key_scale=key_factor,
            # The latent is its own value, and stored with the key's scale.
            value_scale=key_factor if self.is_latent else value_factor,
            sinks=self.sinks,
            slopes=None if alibi_slopes is None else alibi_slopes.detach().to(device, torch.float32).contiguous(),
        )
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
        # The kernels have it at hand: to leave it out would only make another kernel of them.
        lse = torch.empty(config.num_heads, query.shape[0], dtype=torch.float32, device=query.device)
        if torch.compiler.is_compiling():
            # One opaque operator; the import registers it.
            from hardpoint_triton._operator import attention

            if not isinstance(plan, TritonPlan):
                raise TypeError(_not_a_plan(plan))
            caches = [] if kv_cache is None else list(kv_cache)
            attention(self.handle, plan.handle, query, key, value, caches, out, lse)
        else:
            self.run(query, key, value, kv_cache, plan, out, lse)
        return (out, lse) if return_lse else out

    @torch.no_grad()
    def run(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: Sequence[torch.Tensor] | None,
        plan: AttentionPlan,
        out: torch.Tensor,
        lse: torch.Tensor,
    ) -> None:
        """The forward, into `out` and `lse`."""
        if not isinstance(plan, TritonPlan):
            raise TypeError(_not_a_plan(plan))
        if query.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            plan.is_captured = True
        self._check(query, key, value, kv_cache, plan, out)
        # Rows after the step's tokens are padding, and padding must be finite.
        if query.shape[0] > plan.num_tokens:
            out[plan.num_tokens :] = 0
            lse[:, plan.num_tokens :] = -torch.inf
        interpreted = plan.hardware.interpreted
        # The kernels want the last axis dense, and the interpreter cannot round to bfloat16.
        dense = out
        if interpreted or out.stride(-1) != 1:
            dense = torch.empty(out.shape, dtype=torch.float32 if interpreted else out.dtype, device=out.device)
        with nullcontext() if interpreted else _current(query.device):
            for launch in self.launches(query, key, value, kv_cache, plan, dense, lse):
                launch.run(interpreted=interpreted)
        if dense is not out:
            out[: plan.num_tokens] = dense[: plan.num_tokens]

    def launches(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: Sequence[torch.Tensor] | None,
        plan: TritonPlan,
        out: torch.Tensor,
        lse: torch.Tensor,
    ) -> Iterator[Launch]:
        """What `run` launches, in order, for tensors that have been checked."""
        query = query if query.stride(-1) == 1 else query.contiguous()
        key, value = (t if t is None or t.stride(-1) == 1 else t.contiguous() for t in (key, value))
        if self.is_latent and key is not None:
            key = value = key.unsqueeze(1)
        if kv_cache is None:
            assert key is not None and value is not None  # noqa: S101, PT018  # for the type checker: `_check` has looked
            yield from attend_launches(self.parameters, plan, query, (key, value), out, lse)
            return
        caches = (Cache.of(kv_cache[0]), Cache.of(kv_cache[-1]))
        if key is not None and value is not None and not self.config.kv_sharing:
            yield store_launch(self.parameters, plan, key, value, caches)
        yield from attend_launches(self.parameters, plan, query, caches, out, lse)

    def _check(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: Sequence[torch.Tensor] | None,
        plan: TritonPlan,
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
        if self.is_latent:
            if value is not None:
                raise ConfigError("the latent form has no value: it is part of the latent", field="value")
            if key is not None:
                self._check_rows("key", key, (size,), plan.num_new_keys)
        else:
            if (key is None) != (value is None):
                raise ConfigError("a key without a value" if value is None else "a value without a key", field="value")
            if key is not None and value is not None:
                self._check_rows("key", key, (kv_heads, size), plan.num_new_keys)
                self._check_rows("value", value, (kv_heads, v_size), plan.num_new_keys)
        if kv_cache is None:
            if key is None:
                raise ConfigError("neither new keys nor a cache to read", field="key")
            plan.check_new_keys()
            return
        self._check_cache(kv_cache, plan)
        if key is not None and not config.kv_sharing:
            self._check_slots(kv_cache, plan)

    def _check_cache(self, kv_cache: Sequence[torch.Tensor], plan: TritonPlan) -> None:
        config = self.config
        roles = ("latent",) if self.is_latent else ("key", "value")
        if len(kv_cache) != len(roles):
            raise ConfigError(f"a cache of {len(kv_cache)} tensors: expected {' and '.join(roles)}", field="kv_cache")
        for role, cache, content in zip(roles, kv_cache, (config.head_size, config.v_head_size), strict=False):
            block_size = config.block_size or kv_cache[0].shape[-2]
            inner = (block_size, content) if self.is_latent else (config.num_kv_heads, block_size, content)
            if cache.dtype != self.cache_dtype or cache.shape[1:] != inner:
                expected = ", ".join(map(str, inner))
                raise ConfigError(
                    f"{role} cache of shape {tuple(cache.shape)} and {cache.dtype}: "
                    f"expected (blocks, {expected}) and {self.cache_dtype}",
                    field="kv_cache",
                )
        if config.block_size is None or plan.block_table is None:
            plan.check_table(kv_cache[0].shape[-2])

    def _check_slots(self, kv_cache: Sequence[torch.Tensor], plan: TritonPlan) -> None:
        slots = plan.slots
        if slots is None:
            raise ConfigError(f"{plan.num_new_keys} new keys, slot_mapping has too few", field="slot_mapping")
        # On a GPU the kernel leaves them out: to look would be to wait for the device.
        if slots.device.type == "cpu" and slots.numel():
            room = kv_cache[0].shape[0] * kv_cache[0].shape[-2]
            if int(slots.max()) >= room:
                raise IndexError(f"slot {int(slots.max())} is out of bounds for a cache of {room}")

    def _check_rows(self, name: str, tensor: torch.Tensor, row: tuple[int, ...], at_least: int) -> None:
        shape = tensor.shape
        if len(shape) != len(row) + 1 or shape[1:] != row or shape[0] < at_least or tensor.dtype != self.dtype:
            wanted = ", ".join(map(str, row))
            raise ConfigError(
                f"{name} of shape {tuple(shape)} and {tensor.dtype}: "
                f"expected (at least {at_least}, {wanted}) and {self.dtype}",
                field=name,
            )


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, wherever the tensors are."""
    if device.type == "cpu":
        return nullcontext()
    context: AbstractContextManager[object] = torch.get_device_module(device).device(device)
    return context


def _not_a_plan(plan: object) -> str:
    return f"the plan is a {type(plan).__name__}: expected one that a Triton backend's plan made"
