"""The class behind ``aiter_unified``: AITER's Triton kernel for prefill and decode in one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention import AttentionBackend, GraphSupport
from hardpoint.attention._kernel_cache import BY_HEAD, BY_TOKEN, dense_cache
from hardpoint.attention._kernel_layer import KernelLayer, KernelPlan
from hardpoint.attention._kernel_lse import log_denominator
from hardpoint.attention._kernel_smallest import run_smallest
from hardpoint.errors import ConfigError
from hardpoint_aiter._library import load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from hardpoint import DeviceCapability
    from hardpoint._reasons import Reason
    from hardpoint.attention import AttentionBatch, AttentionConfig, KVCacheSpec
    from hardpoint.attention._kernel_layer import LayerArguments

_FUNCTION: Final = (
    "aiter.ops.triton.unified_attention",
    "unified_attention",
    (
        *("q", "k", "v", "out", "cu_seqlens_q", "max_seqlen_q", "seqused_k", "max_seqlen_k", "softmax_scale", "causal"),
        *("window_size", "block_table", "softcap", "q_descale", "k_descale", "v_descale", "alibi_slopes", "sinks"),
    ),
)


class AiterUnifiedPlan(KernelPlan):
    """The kernel takes the batch's tensors as they are."""

    def prepare(self) -> None:
        """Errors: `ConfigError` for a step without a causal mask."""
        if not self.causal:
            raise ConfigError("unified_attention has a causal mask always", field="causal")


class AiterUnifiedLayer(KernelLayer):
    """The kernel returns no lse: where one is asked for, query and key are multiplied a second time."""

    plan_type = AiterUnifiedPlan

    def __init__(self, config: AttentionConfig, spec: KVCacheSpec, **arguments: Unpack[LayerArguments]) -> None:
        super().__init__(config, spec, **arguments)
        self._function = load(*_FUNCTION)
        self._descales: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)
        if self.is_quantised:
            self._descales = (
                torch.tensor([self.key_scale or 1.0], device=self.device),
                torch.tensor([self.value_scale or 1.0], device=self.device),
            )

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
            raise ConfigError("unified_attention reads a cache, and none was given", field="kv_cache")
        batch, width = plan.batch, self.config.sliding_window
        result = torch.empty_like(query)
        self._function(
            q=query,
            k=kv_cache[0],
            v=kv_cache[1],
            out=result,
            cu_seqlens_q=batch.query_start_loc,
            max_seqlen_q=batch.max_query_len,
            seqused_k=batch.seq_lens,
            max_seqlen_k=batch.max_seq_len,
            softmax_scale=self.scale,
            causal=True,
            window_size=(-1, -1) if width is None else (width - 1, 0),
            block_table=batch.block_table,
            softcap=self.config.soft_cap or 0.0,
            q_descale=None,
            k_descale=self._descales[0],
            v_descale=self._descales[1],
            alibi_slopes=self.slopes,
            sinks=self.sinks,
        )
        return result, log_denominator(self, plan, query, None, kv_cache) if return_lse else None


class AiterUnifiedBackend(AttentionBackend):
    """AITER's unified attention. About graphs see `AiterFaBackend`."""

    graph_support = GraphSupport.NEVER

    @classmethod
    def validate_configuration(
        cls, device_capability: DeviceCapability | None, config: AttentionConfig
    ) -> list[Reason]:
        """Imports the library."""
        load(*_FUNCTION)
        return []

    @classmethod
    def prepare(cls, config: AttentionConfig, device: torch.device | str) -> None:
        """Run the smallest step: Triton compiles the kernel there."""
        run_smallest(cls, config, device)

    @classmethod
    def kv_cache_spec(cls, config: AttentionConfig) -> KVCacheSpec:
        """Key and value tensors; the kernel reads all four strides."""
        return dense_cache(config, (BY_TOKEN, BY_HEAD, ("head", "block", "token", "content")))

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
    ) -> AiterUnifiedLayer:
        """Build one layer. Errors: `ConfigError`; those of importing the library."""
        return AiterUnifiedLayer(
            config,
            cls.kv_cache_spec(config),
            scale=scale,
            device=device,
            sinks=sinks,
            alibi_slopes=alibi_slopes,
            key_scale=key_scale,
            value_scale=value_scale,
        )

    @classmethod
    def plan(cls, config: AttentionConfig, batch: AttentionBatch) -> AiterUnifiedPlan:
        """Nothing is worked out. Errors: `ConfigError` for a step without a causal mask."""
        return AiterUnifiedPlan(config, batch)
