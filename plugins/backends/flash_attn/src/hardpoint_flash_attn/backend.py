"""The class behind ``flash_attn``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint._reasons import Reason, ReasonCode
from hardpoint.attention import AttentionBackend, GraphSupport
from hardpoint.attention._kernel_cache import dense_cache
from hardpoint.attention._kernel_smallest import run_smallest
from hardpoint.errors import ConfigError
from hardpoint_flash_attn import _generation
from hardpoint_flash_attn._layer import FlashAttnLayer
from hardpoint_flash_attn._plan import FlashAttnPlan
from hardpoint_flash_attn._support import DENSE

if TYPE_CHECKING:
    import torch

    from hardpoint import DeviceCapability
    from hardpoint.attention import AttentionBatch, AttentionConfig, KVCacheSpec


class FlashAttnBackend(AttentionBackend):
    """FlashAttention 2, 3 or 4: the best that is installed, fits the device and takes the config.

    Slots of a sequence's own blocks that nobody has written must hold finite numbers, as `KVCacheSpec.allocate` leaves
    them: 3 and 4 load whole pages, and zero times NaN is NaN (docstring of FA4's ``flash_attn_varlen_func``). No graph
    of a step can be replayed, because the number of written rows is part of it.
    """

    graph_support = GraphSupport.NEVER

    @classmethod
    def validate_configuration(
        cls, device_capability: DeviceCapability | None, config: AttentionConfig
    ) -> list[Reason]:
        """Imports the generation that serves the config; where the best one does not load, the next."""
        library = _generation.load_best(DENSE, device_capability, config)
        return [not_served(device_capability, config)] if library is None else []

    @classmethod
    def prepare(cls, config: AttentionConfig, device: torch.device | str) -> None:
        """Run the smallest step: FlashAttention 4 compiles its kernel there."""
        run_smallest(cls, config, device)

    @classmethod
    def kv_cache_spec(cls, config: AttentionConfig) -> KVCacheSpec:
        """Key and value tensors; kernels read all strides and want only the last axis dense."""
        return dense_cache(config)

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
    ) -> FlashAttnLayer:
        """Build one layer. Errors: `ConfigError`; those of importing the library."""
        library = _generation.load_best(DENSE, capability := _generation.capability_of(device), config)
        if library is None:
            reason = not_served(capability, config)
            raise ConfigError(reason.message, field="kind")
        return FlashAttnLayer(
            config,
            None if config.block_size is None else cls.kv_cache_spec(config),
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
        """Running sums of the step's lengths. Errors: `ConfigError` where the batch does not fit the config."""
        return FlashAttnPlan(config, batch)


def not_served(capability: DeviceCapability | None, config: AttentionConfig) -> Reason:
    """The reason where no installed generation takes a config: never met where declared support was asked first."""
    shown = "a device of unknown capability" if capability is None else f"capability {capability}"
    return Reason(
        code=ReasonCode.INCOMPATIBLE_DEPENDENCY,
        message=f"no installed FlashAttention serves {config.describe()} on {shown}",
        remedy="pip install flash-attn (or flash-attn-4)",
    )
