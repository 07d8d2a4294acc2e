"""The backend class behind the plugin's target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint.attention import AttentionBackend, CacheTensorSpec, GraphSupport, KVCacheSpec
from hardpoint.attention._kernel_checks import check_per_head, check_scales
from hardpoint.errors import ConfigError
from hardpoint_cpu_native import _kernels
from hardpoint_cpu_native._arguments import check_device, check_scale
from hardpoint_cpu_native._layer import CpuNativeLayer
from hardpoint_cpu_native._plan import CpuNativePlan

if TYPE_CHECKING:
    import torch

    from hardpoint.attention import AttentionBatch, AttentionConfig
    from hardpoint_cpu_native._kernels import Kernels

# In the first, a head's part of a block is one piece, which is read in one go. Any other strides with dense content
# give the same result.
_STRIDE_ORDERS = (
    ("block", "head", "token", "content"),
    ("block", "token", "head", "content"),
    ("head", "block", "token", "content"),
)


class CpuNativeBackend(AttentionBackend):
    """Reads the cache's blocks where they lie, in the module that the CPU platform imported."""

    graph_support = GraphSupport.NEVER

    @classmethod
    def kernels(cls) -> Kernels:
        """The module that layers and plans run in."""
        return _kernels.imported()

    @classmethod
    def prepare(cls, config: AttentionConfig, device: torch.device | str) -> None:
        """Import the kernels, where nobody has yet."""
        cls.kernels()

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
    ) -> CpuNativeLayer:
        """Build one layer. Errors: `ConfigError` as the contract says."""
        if config.kind != "attention":
            raise ConfigError(f"cpu_native is for heads with keys of their own: {config.describe()}", field="kind")
        check_per_head(config, sinks=sinks, alibi_slopes=alibi_slopes)
        check_scale(scale)
        check_scales(config, key_scale=key_scale, value_scale=value_scale)
        check_device(device)
        return CpuNativeLayer(
            config,
            scale=scale,
            sinks=sinks,
            alibi_slopes=alibi_slopes,
            key_scale=key_scale,
            value_scale=value_scale,
            kernels=cls.kernels(),
            most_threads=_kernels.thread_budget(),
        )

    @classmethod
    def plan(cls, config: AttentionConfig, batch: AttentionBatch) -> CpuNativePlan:
        """Check and copy the step's numbers. Errors: `ConfigError`, and `IndexError` for a block or slot below 0."""
        return CpuNativePlan(config, batch, kernels=cls.kernels())
