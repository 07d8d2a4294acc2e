"""One dense layer: the call of each generation, and what its results mean."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from hardpoint.attention._kernel_layer import KernelLayer, KernelPlan
from hardpoint.attention._kernel_lse import log_denominator
from hardpoint_flash_attn._plan import FlashAttnPlan

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    import torch

    from hardpoint.attention import AttentionConfig, KVCacheSpec
    from hardpoint.attention._kernel_layer import LayerArguments
    from hardpoint_flash_attn._generation import Library


class FlashAttnLayer(KernelLayer):
    """Queries are packed, keys packed or paged: one call per step, whatever its sequences are."""

    plan_type = FlashAttnPlan

    def __init__(
        self,
        config: AttentionConfig,
        spec: KVCacheSpec | None,
        library: Library,
        **arguments: Unpack[LayerArguments],
    ) -> None:
        super().__init__(config, spec, **arguments)
        self.library = library
        self._varlen = library.functions["flash_attn_varlen_func"]
        self._call = {"fa2": self._fa2, "fa3": self._fa3, "fa4": self._fa4}[library.generation]
        # FlashAttention 3.0.0b1 returns no lse without a cache, later ones do where they are asked.
        self._varlen_has_lse = "return_attn_probs" in inspect.signature(self._varlen).parameters

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
        new_keys = key
        if kv_cache is not None:
            key, value = kv_cache
        assert isinstance(plan, FlashAttnPlan)  # noqa: S101  # for the type checker: `forward` has looked
        assert key is not None  # noqa: S101  # the same
        assert value is not None  # noqa: S101  # the same
        if kv_cache is None and plan.key_rows is not None:
            key, value = key[plan.key_rows], value[plan.key_rows]
        found = self._call((query, key, value), plan, paged=kv_cache is not None, return_lse=return_lse)
        result, lse = found[:2] if isinstance(found, tuple) else (found, None)
        if return_lse and lse is None:
            lse = log_denominator(self, plan, query, new_keys, kv_cache)
        return result, lse

    def _fa2(self, tensors: tuple[torch.Tensor, ...], plan: FlashAttnPlan, *, paged: bool, return_lse: bool) -> Any:  # noqa: ANN401  # as the library returns it
        found = self._varlen(
            *tensors,
            cu_seqlens_q=plan.cu_seqlens_q,
            cu_seqlens_k=plan.cu_seqlens_k,
            max_seqlen_q=plan.batch.max_query_len,
            max_seqlen_k=plan.max_seqlen_k,
            softmax_scale=self.scale,
            causal=plan.causal,
            window_size=plan.window,
            softcap=self.config.soft_cap or 0.0,
            alibi_slopes=self.slopes,
            return_attn_probs=return_lse,
            block_table=plan.block_table if paged else None,
        )
        if return_lse and self.slopes is not None and plan.window == (-1, -1):
            # Under a plain causal mask the kernel adds slope x key position, to every row alike (``mask.h``): the
            # softmax does not mind, but the lse is that of the shifted logits.
            result, lse = found[:2]
            return result, lse - self.slopes[:, None] * plan.positions
        return found

    def _fa3(self, tensors: tuple[torch.Tensor, ...], plan: FlashAttnPlan, *, paged: bool, return_lse: bool) -> Any:  # noqa: ANN401  # as the library returns it
        # Its own choice of splits and packing, but for equal bits in every batch.
        shared: dict[str, Any] = {"num_splits": 1, "pack_gqa": False} if self.config.batch_invariant else {}
        shared |= {
            "softmax_scale": self.scale,
            "causal": plan.causal,
            "window_size": plan.window,
            "softcap": self.config.soft_cap or 0.0,
            "cu_seqlens_q": plan.cu_seqlens_q,
            "max_seqlen_q": plan.batch.max_query_len,
        }
        if paged:
            return self.library.functions["flash_attn_with_kvcache"](
                *tensors,
                cache_seqlens=plan.seq_lens,
                page_table=plan.block_table,
                return_softmax_lse=return_lse,
                **shared,
            )
        if return_lse and self._varlen_has_lse:
            shared["return_attn_probs"] = True
        return self._varlen(*tensors, cu_seqlens_k=plan.cu_seqlens_k, max_seqlen_k=plan.max_seqlen_k, **shared)

    def _fa4(self, tensors: tuple[torch.Tensor, ...], plan: FlashAttnPlan, *, paged: bool, return_lse: bool) -> Any:  # noqa: ANN401  # as the library returns it
        # With a page table it wants lengths, without one running sums, and never both.
        where = (
            {"seqused_k": plan.seq_lens, "page_table": plan.block_table}
            if paged
            else {"cu_seqlens_k": plan.cu_seqlens_k}
        )
        return self._varlen(
            *tensors,
            cu_seqlens_q=plan.cu_seqlens_q,
            max_seqlen_q=plan.batch.max_query_len,
            max_seqlen_k=plan.max_seqlen_k,
            softmax_scale=self.scale,
            causal=plan.causal,
            window_size=(None, None) if plan.window == (-1, -1) else plan.window,
            learnable_sink=self.sinks,
            softcap=self.config.soft_cap or 0.0,
            return_lse=return_lse,
            **where,
        )
