"""The class behind ``flashinfer``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hardpoint._importing import import_library
from hardpoint.attention import AttentionBackend, GraphSupport
from hardpoint.attention._kernel_cache import dense_cache
from hardpoint.attention._kernel_library import load_function
from hardpoint.attention._kernel_smallest import run_smallest
from hardpoint_flashinfer._layer import FlashInferLayer, FlashInferPlan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    import torch

    from hardpoint import DeviceCapability
    from hardpoint._reasons import Reason
    from hardpoint.attention import AttentionBatch, AttentionConfig, KVCacheSpec

_PLAN: Final = ("sm_scale", "window_left", "logits_soft_cap", "q_data_type", "kv_data_type")
_RUN: Final = ("return_lse", "k_scale", "v_scale")
_CALLS: Final = {
    "BatchPrefillWithPagedKVCacheWrapper": ("kv_layout",),
    "BatchPrefillWithPagedKVCacheWrapper.plan": ("causal", *_PLAN),
    "BatchPrefillWithPagedKVCacheWrapper.run": _RUN,
    "BatchDecodeWithPagedKVCacheWrapper": ("kv_layout", "use_tensor_cores"),
    "BatchDecodeWithPagedKVCacheWrapper.plan": _PLAN,
    "BatchDecodeWithPagedKVCacheWrapper.run": _RUN,
}


class FlashInferBackend(AttentionBackend):
    """FlashInfer's paged wrappers, planned per step and group of layers; the library picks the kernel.

    No graph of a step can be replayed, because the number of written rows is part of it.
    """

    graph_support = GraphSupport.NEVER

    @classmethod
    def validate_configuration(
        cls, device_capability: DeviceCapability | None, config: AttentionConfig
    ) -> list[Reason]:
        """Imports the library."""
        load(_CALLS)
        return []

    @classmethod
    def prepare(cls, config: AttentionConfig, device: torch.device | str) -> None:
        """Run the smallest step: the library compiles its kernels there."""
        run_smallest(cls, config, device)

    @classmethod
    def kv_cache_spec(cls, config: AttentionConfig) -> KVCacheSpec:
        """Key and value, of equal strides. Indexed as the library's layout ``NHD``; in memory heads may come first."""
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
    ) -> FlashInferLayer:
        """Build one layer. Errors: `ConfigError`; those of importing the library."""
        return FlashInferLayer(
            config,
            cls.kv_cache_spec(config),
            load(_CALLS),
            scale=scale,
            device=device,
            sinks=sinks,
            alibi_slopes=alibi_slopes,
            key_scale=key_scale,
            value_scale=value_scale,
        )

    @classmethod
    def plan(cls, config: AttentionConfig, batch: AttentionBatch) -> FlashInferPlan:
        """The step's pages. Errors: `ConfigError` where the batch does not fit the config."""
        return FlashInferPlan(config, batch)


def load(calls: Mapping[str, tuple[str, ...]], module: str = "flashinfer") -> ModuleType:
    """Import a module of the library that has `calls`, names with arguments. Errors: those of `load_function`."""
    for name, takes in calls.items():
        load_function(module, name, takes)
    return import_library(module)
