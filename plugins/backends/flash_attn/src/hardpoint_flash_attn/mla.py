"""The class behind ``flash_attn_mla``: FlashAttention's absorbed form, query and key in two parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hardpoint.attention import AttentionBackend, GraphSupport
from hardpoint.attention._kernel_cache import latent_cache
from hardpoint.attention._kernel_layer import KernelLayer, KernelPlan
from hardpoint.attention._kernel_smallest import run_smallest
from hardpoint.errors import ConfigError
from hardpoint_flash_attn import _generation
from hardpoint_flash_attn._plan import FlashAttnPlan
from hardpoint_flash_attn._support import LATENT
from hardpoint_flash_attn.backend import not_served

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    import torch

    from hardpoint import DeviceCapability
    from hardpoint._reasons import Reason
    from hardpoint.attention import AttentionBatch, AttentionConfig, KVCacheSpec
    from hardpoint.attention._kernel_layer import LayerArguments

_FUNCTIONS = {"fa3": "flash_attn_with_kvcache", "fa4": "flash_attn_varlen_func"}


class FlashAttnMlaLayer(KernelLayer):
    """Logits are rotary query x rotary key + latent query x latent; values are the latent."""

    plan_type = FlashAttnPlan

    def __init__(
        self,
        config: AttentionConfig,
        spec: KVCacheSpec,
        library: _generation.Library,
        **arguments: Unpack[LayerArguments],
    ) -> None:
        super().__init__(config, spec, **arguments)
        self._function = library.functions[_FUNCTIONS[library.generation]]
        self._call = {"fa3": self._fa3, "fa4": self._fa4}[library.generation]

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
        if kv_cache is None:
            raise ConfigError("the latent form reads a cache; attention over new keys is plain attention", field="key")
        assert isinstance(plan, FlashAttnPlan)  # noqa: S101  # for the type checker: `forward` has looked
        rank = self.config.v_head_size
        cache = kv_cache[0].unsqueeze(2)
        parts = (query[..., rank:], cache[..., rank:], cache[..., :rank])
        found = self._call(parts, query[..., :rank], plan, return_lse=return_lse)
        return found[:2] if return_lse else (found[0] if isinstance(found, tuple) else found, None)

    def _fa3(
        self, parts: tuple[torch.Tensor, ...], latent: torch.Tensor, plan: FlashAttnPlan, *, return_lse: bool
    ) -> Any:  # noqa: ANN401  # as the library returns it
        return self._function(
            *parts,
            qv=latent,
            cache_seqlens=plan.seq_lens,
            page_table=plan.block_table,
            cu_seqlens_q=plan.cu_seqlens_q,
            max_seqlen_q=plan.batch.max_query_len,
            softmax_scale=self.scale,
            causal=plan.causal,
            return_softmax_lse=return_lse,
            **({"num_splits": 1, "pack_gqa": False} if self.config.batch_invariant else {}),
        )

    def _fa4(
        self, parts: tuple[torch.Tensor, ...], latent: torch.Tensor, plan: FlashAttnPlan, *, return_lse: bool
    ) -> Any:  # noqa: ANN401  # as the library returns it
        result, lse = self._function(
            *parts,
            qv=latent,
            cu_seqlens_q=plan.cu_seqlens_q,
            max_seqlen_q=plan.batch.max_query_len,
            max_seqlen_k=plan.max_seqlen_k,
            seqused_k=plan.seq_lens,
            page_table=plan.block_table,
            softmax_scale=self.scale,
            causal=plan.causal,
            return_lse=return_lse,
        )[:2]
        # With a latent query the heads are the dense axis of its lse.
        return result, None if lse is None else lse.T


class FlashAttnMlaBackend(AttentionBackend):
    """The latent form of FlashAttention 3 (9.x) and 4 (10.x, 11.x). About caches and graphs see `FlashAttnBackend`."""

    graph_support = GraphSupport.NEVER

    @classmethod
    def validate_configuration(
        cls, device_capability: DeviceCapability | None, config: AttentionConfig
    ) -> list[Reason]:
        """Imports the generation that serves the config; where the best one does not load, the next."""
        library = _generation.load_best(LATENT, device_capability, config)
        return [not_served(device_capability, config)] if library is None else []

    @classmethod
    def prepare(cls, config: AttentionConfig, device: torch.device | str) -> None:
        """Run the smallest step: FlashAttention 4 compiles its kernel there."""
        run_smallest(cls, config, device)

    @classmethod
    def kv_cache_spec(cls, config: AttentionConfig) -> KVCacheSpec:
        """One tensor: latent and rotary part behind one another, so that both are views of it."""
        return latent_cache(config)

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
    ) -> FlashAttnMlaLayer:
        """Build one layer. Errors: `ConfigError`; those of importing the library."""
        library = _generation.load_best(LATENT, capability := _generation.capability_of(device), config)
        if library is None:
            raise ConfigError(not_served(capability, config).message, field="kind")
        return FlashAttnMlaLayer(
            config,
            cls.kv_cache_spec(config),
            library,
            scale=scale,
            device=device,
            sinks=sinks,
            alibi_slopes=alibi_slopes,
            key_scale=key_scale,
            value_scale=value_scale,
        )

    @classmethod
    def plan(cls, config: AttentionConfig, batch: AttentionBatch) -> FlashAttnPlan:
        """As `FlashAttnBackend.plan`."""
        return FlashAttnPlan(config, batch)
