"""The backend class behind the plugin's target."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint._reasons import Reason, ReasonCode
from hardpoint.attention import AttentionBackend, CacheTensorSpec, GraphSupport, KVCacheSpec
from hardpoint.attention._kernel_checks import check_per_head, check_scales
from hardpoint.attention._kernel_smallest import check_device, run_smallest
from hardpoint.errors import ConfigError
from hardpoint_torch_sdpa._layer import TorchSdpaLayer
from hardpoint_torch_sdpa._plan import SdpaPlan

if TYPE_CHECKING:
    from hardpoint._capability import DeviceCapability
    from hardpoint.attention import AttentionBatch, AttentionConfig

# The first is gathered into the order that SDPA reads fastest. Any other strides give the same result, slower.
_STRIDE_ORDERS = (
    ("block", "head", "token", "content"),
    ("block", "token", "head", "content"),
    ("head", "block", "token", "content"),
)


class TorchSdpaBackend(AttentionBackend):
    """Gathers the blocks that a step reads into reused memory, and calls scaled_dot_product_attention on them.

    A plan's calls depend on the step's lengths, so no graph of them can be replayed.
    """

    graph_support = GraphSupport.NEVER

    @classmethod
    def validate_configuration(
        cls, device_capability: DeviceCapability | None, config: AttentionConfig
    ) -> list[Reason]:
        """Refuses a storage dtype that this torch does not have."""
        if isinstance(getattr(torch, config.cache_dtype, None), torch.dtype):
            return []
        return [
            Reason(
                code=ReasonCode.KV_CACHE_DTYPE,
                message=f"kv_cache_dtype={config.cache_dtype}; torch {torch.__version__} does not have it",
                requested=config.cache_dtype,
                accepted="a dtype of the installed torch",
            )
        ]

    @classmethod
    def prepare(cls, config: AttentionConfig, device: torch.device | str) -> None:
        """Run the smallest step, so that what the device cannot do is met here."""
        check_device(device, config.dtype, config.cache_dtype)
        run_smallest(cls, config, device)

    @classmethod
    def kv_cache_spec(cls, config: AttentionConfig) -> KVCacheSpec:
        """Key and value tensors, separately, of one shape where the head sizes are equal."""
        if config.block_size is None:
            raise ConfigError("a cache needs block_size", field="block_size")
        return KVCacheSpec(
            tensors=tuple(
                CacheTensorSpec(
                    role=role,
                    axes=("block", "head", "token", "content"),
                    sizes=(config.num_kv_heads, config.block_size, size),
                    dtype=config.cache_dtype,
                    stride_orders=_STRIDE_ORDERS,
                )
                for role, size in (("key", config.head_size), ("value", config.v_head_size))
            )
        )

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
    ) -> TorchSdpaLayer:
        """Build one layer. Errors: `ConfigError` as the contract says."""
        if config.kind != "attention" or config.soft_cap is not None:
            raise ConfigError(f"scaled_dot_product_attention cannot do {config.describe()}", field="soft_cap")
        check_per_head(config, sinks=sinks, alibi_slopes=alibi_slopes)
        check_scales(config, key_scale=key_scale, value_scale=value_scale)
        return TorchSdpaLayer(
            config,
            scale=scale,
            device=torch.device(device),
            sinks=sinks,
            alibi_slopes=alibi_slopes,
            key_scale=key_scale,
            value_scale=value_scale,
        )

    @classmethod
    def plan(cls, config: AttentionConfig, batch: AttentionBatch) -> SdpaPlan:
        """Group the step's sequences into calls. Errors: `ConfigError` where the batch does not fit the config."""
        return SdpaPlan(config, batch)
