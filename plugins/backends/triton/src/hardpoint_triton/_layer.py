"""One attention layer: writes the step's new rows, then launches the plan's programs."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention._kernel_checks import check_caches, check_new_keys, check_step, check_table
from hardpoint.attention._kernel_forward import OpaqueLayer, dense
from hardpoint.attention._kernel_shares import fill_blank
from hardpoint.errors import ConfigError
from hardpoint_triton._launch import Cache, Parameters, attend_launches, store_launch
from hardpoint_triton._plan import TritonPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from hardpoint.attention import AttentionConfig
    from hardpoint_triton._kernel import Launch


class TritonLayer(OpaqueLayer[TritonPlan]):
    """Built by the backends' `create_layer`, which checks the arguments. Thread-safe where the cache is."""

    plan_type = TritonPlan

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
        self.is_latent = config.kind == "mla_attention"
        # Without a block size in the config it is the cache's own.
        blocks: list[tuple[str, tuple[int | None, ...]]] = [("latent", (config.block_size, config.head_size))]
        if not self.is_latent:
            heads, block_size = config.num_kv_heads, config.block_size
            blocks = [
                ("key", (heads, block_size, config.head_size)),
                ("value", (heads, block_size, config.v_head_size)),
            ]
        self._caches = [(role, sizes, getattr(torch, config.cache_dtype)) for role, sizes in blocks]
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

    @torch.no_grad()
    def run(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: Sequence[torch.Tensor] | None,
        plan: TritonPlan,
        out: torch.Tensor,
        lse: torch.Tensor | None,
    ) -> None:
        """The forward, into `out` and `lse`."""
        if query.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            plan.is_captured = True
        self._check(query, key, value, kv_cache, plan, out)
        if lse is None:
            # The kernels have it at hand: to leave it out would only make another kernel of them.
            lse = torch.empty(self.config.num_heads, query.shape[0], dtype=torch.float32, device=query.device)
        # What rows that see nothing are given the kernels write themselves.
        fill_blank(out, lse, (), plan.num_tokens, None)
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
        query = dense(query)
        key, value = (None if t is None else dense(t) for t in (key, value))
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
        check_step(config, plan.batch, query, key, value, out, dtype=self.dtype, cached=kv_cache is not None)
        if kv_cache is None:
            check_new_keys(plan.batch)
            return
        check_caches(kv_cache, self._caches)
        if config.block_size is None or plan.block_table is None:
            check_table(plan.batch, kv_cache[0].shape[-2])
        if key is not None and not config.kv_sharing:
            self._check_slots(kv_cache, plan)

    def _check_slots(self, kv_cache: Sequence[torch.Tensor], plan: TritonPlan) -> None:
        slots = plan.slots
        if slots is None:
            mapping, count = plan.batch.slot_mapping, plan.batch.new_key_starts[-1]
            given = "none" if mapping is None else str(mapping.shape[0])
            raise ConfigError(f"{count} new keys, slot_mapping has {given}", field="slot_mapping")
        # On a GPU the kernel leaves them out: to look would be to wait for the device.
        if slots.device.type == "cpu" and slots.numel():
            room = kv_cache[0].shape[0] * kv_cache[0].shape[-2]
            if int(slots.max()) >= room:
                raise IndexError(f"slot {int(slots.max())} is out of bounds for a cache of {room}")


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, wherever the tensors are."""
    if device.type == "cpu":
        return nullcontext()
    context: AbstractContextManager[object] = torch.get_device_module(device).device(device)
    return context
