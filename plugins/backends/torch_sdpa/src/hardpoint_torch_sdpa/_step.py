"""One forward call: each of the plan's jobs brought into the form that SDPA takes, and its result back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint_torch_sdpa._cache import gather
from hardpoint_torch_sdpa._kernel import attend
from hardpoint_torch_sdpa._plan import Decodes, Equals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint_torch_sdpa._cache import Blocks
    from hardpoint_torch_sdpa._layer import TorchSdpaLayer
    from hardpoint_torch_sdpa._plan import Alone, SdpaPlan
    from hardpoint_torch_sdpa._workspace import Scratch


@dataclass(slots=True)
class Step:
    """The tensors of one forward call. `key` and `value` are read only where there is no cache."""

    layer: TorchSdpaLayer
    plan: SdpaPlan
    query: torch.Tensor
    key: torch.Tensor | None
    value: torch.Tensor | None
    kv_cache: Sequence[torch.Tensor] | None
    out: torch.Tensor
    lse: torch.Tensor | None
    scratch: Scratch

    def run(self) -> None:
        """Attend all rows of the step."""
        block_size = None if self.kv_cache is None else self.kv_cache[0].shape[2]
        for job in self.plan.jobs(block_size):
            if isinstance(job, Decodes):
                self._decodes(job)
            elif isinstance(job, Equals):
                self._equals(job)
            else:
                self._alone(job)

    @property
    def _with_lse(self) -> bool:
        return self.lse is not None or self.layer.sinks is not None

    def _decodes(self, job: Decodes) -> None:
        layer = self.layer
        rows = job.rows
        query = torch.unflatten(self.query[rows], 1, layer.by_group)
        key, value = self._gathered(job.blocks)
        mask = job.mask
        if layer.slopes is not None:
            bias = layer.slopes * job.distance
            mask = bias.expand(1, -1, -1, -1) if mask is None else bias + mask
        # The query heads of a group stand where query tokens would: they see the same keys, and no key is repeated.
        out, lse = self._attend(query, key, value, mask, layer.sinks_by_row)
        if isinstance(rows, slice):
            torch.unflatten(self.out[rows], 1, layer.by_group).copy_(out)
        else:
            self.out.index_copy_(0, rows, out.flatten(1, 2).to(self.out.dtype))
        if self.lse is not None and lse is not None:
            flat = lse.flatten(1, 2).T
            if isinstance(rows, slice):
                self.lse[:, rows].copy_(flat)
            else:
                self.lse.index_copy_(1, rows, flat.to(self.lse.dtype))

    def _equals(self, job: Equals) -> None:
        query = torch.unflatten(self.query[job.rows], 0, (job.count, -1)).transpose(1, 2)
        key, value = (torch.unflatten(t, 0, (job.count, -1)).transpose(1, 2) for t in self._new(job.keys))
        out, lse = self._attend(query, key, value, None, self.layer.sinks_by_head, causal=self.plan.causal)
        torch.unflatten(self.out[job.rows], 0, (job.count, -1)).transpose(1, 2).copy_(out)
        if self.lse is not None and lse is not None:
            torch.unflatten(self.lse[:, job.rows], 1, (job.count, -1)).copy_(lse.transpose(0, 1))

    def _alone(self, job: Alone) -> None:
        layer, share, masks = self.layer, job.share, self.plan.masks
        if job.blocks is not None:
            key, value = self._gathered(job.blocks)
        else:
            key, value = (t.transpose(0, 1)[None] for t in self._new(job.keys))
        query = self.query[share.first : share.end]
        if layer.config.batch_invariant:
            # A kernel may sum in another order at another alignment, which depends on the sequences in front.
            query = query.clone(memory_format=torch.contiguous_format)
        num_rows = share.end - share.first
        if num_rows == 1:
            bias = None
            if layer.slopes is not None:
                positions = torch.arange(share.low, share.num_keys, device=key.device)
                bias = (layer.slopes * (positions - share.position))[None]
            query = torch.unflatten(query, 1, layer.by_group)
            out, lse = self._attend(query, key, value, bias, layer.sinks_by_row)
            self._store(share.first, 1, out.flatten(1, 2)[0, :, None], None if lse is None else lse.reshape(-1, 1))
            return
        query = query.transpose(0, 1)[None]
        plain = layer.slopes is None and masks.window is None
        if plain and (not masks.causal or share.position == 0):
            out, lse = self._attend(query, key, value, None, layer.sinks_by_head, causal=masks.causal)
            self._store(share.first, num_rows, out[0], None if lse is None else lse[0])
            return
        heads = 1 if layer.slopes is None else layer.config.num_heads
        for chunk in masks.chunks(share.position, num_rows, share.num_keys, heads):
            mask = masks.mask(share.position, chunk)
            if layer.slopes is not None:
                bias = (layer.slopes.view(-1, 1, 1) * masks.distance(share.position, chunk))[None]
                mask = bias if mask is None else bias + mask
            seen = slice(chunk.low - share.low, chunk.high - share.low)
            rows = query[:, :, chunk.first : chunk.end]
            out, lse = self._attend(rows, key[:, :, seen], value[:, :, seen], mask, layer.sinks_by_head)
            self._store(share.first + chunk.first, rows.shape[2], out[0], None if lse is None else lse[0])

    def _store(self, first: int, count: int, out: torch.Tensor, lse: torch.Tensor | None) -> None:
        """Put ``(heads, rows, …)`` in its place."""
        rows = slice(first, first + count)
        self.out[rows].copy_(out.transpose(0, 1))
        if self.lse is not None and lse is not None:
            self.lse[:, rows].copy_(lse)

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        sinks: torch.Tensor | None,
        *,
        causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        layer = self.layer
        cached = self.kv_cache is not None
        if mask is not None:
            # torch's kernel takes a float32 mask with every dtype but float64, and one of another dtype it misreads.
            mask = mask.to(torch.promote_types(key.dtype, torch.float32))
        out, lse = attend(
            query.to(key.dtype),
            key,
            value,
            mask=mask,
            causal=causal,
            scale=layer.cached_scale if cached else layer.scale,
            soft_cap=layer.soft_cap,
            with_lse=self._with_lse,
        )
        out = out[..., : layer.config.v_head_size]
        if sinks is not None and lse is not None:
            # The sink's share of the denominator is what the values lose.
            out = out * torch.sigmoid(lse - sinks).unsqueeze(-1)
            lse = torch.logaddexp(lse, sinks)
        if cached and layer.value_scale is not None:
            out = out * layer.value_scale
        return out, lse

    def _gathered(self, blocks: Blocks) -> tuple[torch.Tensor, torch.Tensor]:
        found = [
            gather(cache, blocks, self.scratch, name, self.layer.wide_dtype)
            for name, cache in zip(("key", "value"), self.kv_cache or (), strict=False)
        ]
        # A latent is its own value: the kernel wants both as wide, and what is too much of the result is cut off.
        return found[0], found[-1]

    def _new(self, rows: slice | None) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.key is not None  # noqa: S101  # for the type checker: the layer has looked
        key = self.key[rows]
        value = None if self.value is None else self.value[rows]
        if self.layer.config.batch_invariant:
            key = key.clone(memory_format=torch.contiguous_format)
            value = None if value is None else value.clone(memory_format=torch.contiguous_format)
        return key, key if value is None else value
