"""The class behind ``aiter_fa``: Composable Kernel's attention, packed and paged."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention import AttentionBackend, GraphSupport
from hardpoint.attention._kernel_cache import BY_TOKEN, dense_cache
from hardpoint.attention._kernel_layer import KernelLayer, KernelPlan
from hardpoint.attention._kernel_smallest import run_smallest
from hardpoint_aiter._library import load
from hardpoint_aiter._slots import KeySlots, by_slot

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from hardpoint import DeviceCapability
    from hardpoint._reasons import Reason
    from hardpoint.attention import AttentionBatch, AttentionConfig, KVCacheSpec
    from hardpoint.attention._kernel_layer import LayerArguments

_SHARED: Final = (
    "max_seqlen_q",
    "max_seqlen_k",
    "softmax_scale",
    "logits_soft_cap",
    "causal",
    "window_size",
    "return_lse",
    "cu_seqlens_q",
)
_PAGED: Final = ("aiter", "mha_batch_prefill_func", (*_SHARED, "kv_indptr", "kv_page_indices"))
_PACKED: Final = ("aiter", "flash_attn_varlen_func", (*_SHARED, "cu_seqlens_k"))


class AiterFaPlan(KernelPlan):
    """Running sums of the step's lengths, and (made once, where a layer has a cache) the slots of its keys."""

    cu_seqlens_q: torch.Tensor
    cu_seqlens_k: torch.Tensor
    window: tuple[int, int]
    """``(left, right)``, ``(-1, -1)`` for none."""
    max_seqlen_k: int

    def prepare(self) -> None:
        """Sequences that ask nothing are left in: they are empty ranges."""
        batch, width = self.batch, self.config.sliding_window
        self.cu_seqlens_q = batch.query_start_loc
        sums = list(accumulate(batch.seq_lens_host, initial=0))
        self.cu_seqlens_k = torch.tensor(sums, dtype=torch.int32, device=batch.query_start_loc.device)
        self.max_seqlen_k = batch.max_seq_len
        self.window = (-1, -1)
        if width is not None:
            if not self.causal:
                # A window counts for none from `max_seqlen_k` on; where queries lie before all keys that is too early.
                self.max_seqlen_k = max(batch.max_seq_len, batch.max_query_len)
            if width <= self.max_seqlen_k:
                self.window = (width - 1, 0 if self.causal else width - 1)
        self._slots: KeySlots | None = None

    @property
    def slots(self) -> KeySlots:
        """The slots of every sequence's keys."""
        if self._slots is None:
            batch, width = self.batch, self.config.sliding_window
            starts = batch.query_start_loc_host
            seen = []
            for number, length in enumerate(batch.seq_lens_host):
                queries = starts[number + 1] - starts[number]
                low = 0 if width is None else max(0, length - queries - width + 1)
                seen.append((number, length if queries else 0, low))
            self._slots = KeySlots.of(batch, self.config.block_size or 1, seen)
        return self._slots


class AiterFaLayer(KernelLayer):
    """One call per step, whatever its sequences are."""

    plan_type = AiterFaPlan

    def __init__(self, config: AttentionConfig, spec: KVCacheSpec | None, **arguments: Unpack[LayerArguments]) -> None:
        super().__init__(config, spec, **arguments)
        self._paged = load(*_PAGED)
        self._packed = load(*_PACKED)

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
        """See `KernelLayer.attend`."""
        assert isinstance(plan, AiterFaPlan)  # noqa: S101  # for the type checker: `forward` has looked
        shared = {
            "max_seqlen_q": plan.batch.max_query_len,
            "max_seqlen_k": plan.max_seqlen_k,
            "softmax_scale": self.scale,
            "logits_soft_cap": self.config.soft_cap or 0.0,
            "causal": plan.causal,
            "window_size": plan.window,
            "return_lse": return_lse,
        }
        if kv_cache is None:
            found = self._packed(
                query, key, value, cu_seqlens_q=plan.cu_seqlens_q, cu_seqlens_k=plan.cu_seqlens_k, **shared
            )
        else:
            found = self._paged(
                query,
                by_slot(kv_cache[0]),
                by_slot(kv_cache[1]),
                cu_seqlens_q=plan.cu_seqlens_q,
                kv_indptr=plan.slots.starts,
                kv_page_indices=plan.slots.slots,
                **shared,
            )
        return (found[0], found[1]) if return_lse else (found, None)


class AiterFaBackend(AttentionBackend):
    """AITER's flash attention. No graph of a step can be replayed: the number of written rows is part of it."""

    graph_support = GraphSupport.NEVER

    @classmethod
    def validate_configuration(
        cls, device_capability: DeviceCapability | None, config: AttentionConfig
    ) -> list[Reason]:
        """Imports the library."""
        load(*_PAGED)
        load(*_PACKED)
        return []

    @classmethod
    def prepare(cls, config: AttentionConfig, device: torch.device | str) -> None:
        """Run the smallest step: the library compiles its kernels there."""
        run_smallest(cls, config, device)

    @classmethod
    def kv_cache_spec(cls, config: AttentionConfig) -> KVCacheSpec:
        """Key and value tensors whose tokens lie behind one another, over all blocks."""
        return dense_cache(config, (BY_TOKEN,))

    @classmethod
    def create_layer(
        cls,
        config: AttentionConfig,
        *,
        scale: float,
        device: torch.device | str,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        key_scale: float | None = None,
        value_scale: float | None = None,
    ) -> AiterFaLayer:
        """Build one layer. Errors: `ConfigError`; those of importing the library."""
        return AiterFaLayer(
            config,
            None if config.block_size is None else cls.kv_cache_spec(config),
            scale=scale,
            device=device,
            sinks=sinks,
            alibi_slopes=alibi_slopes,
            key_scale=key_scale,
            value_scale=value_scale,
        )

    @classmethod
    def plan(cls, config: AttentionConfig, batch: AttentionBatch) -> AiterFaPlan:
        """Running sums of the step's lengths."""
        return AiterFaPlan(config, batch)
