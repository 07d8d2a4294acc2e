"""The backend class behind the plugin's target."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention import AttentionBackend, CacheTensorSpec, GraphSupport, KVCacheSpec
from hardpoint.errors import ConfigError
from hardpoint_cpu_native import _kernels
from hardpoint_cpu_native._layer import CpuNativeLayer
from hardpoint_cpu_native._plan import CpuNativePlan

if TYPE_CHECKING:
    from hardpoint.attention import AttentionBatch, AttentionConfig

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
    def prepare(cls, config: AttentionConfig, device: torch.device | str) -> None:
        """Import the kernels, where nobody has yet."""
        _kernels.imported()

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
        if config.kind != "attention" or config.kv_cache_dtype != "auto":
            raise ConfigError(f"the CPU kernels cannot do {config.describe()}", field="kv_cache_dtype")
        for name, tensor, asked in (("sinks", sinks, config.sinks), ("alibi_slopes", alibi_slopes, config.alibi)):
            _check_per_head(name, tensor, asked=asked, num_heads=config.num_heads)
        for name, factor in (("key_scale", key_scale), ("value_scale", value_scale)):
            if factor is not None:
                raise ConfigError(f"{name}={factor}: a cache of {config.cache_dtype} has no scale", field=name)
        if torch.device(device).type != "cpu":
            raise ConfigError(f"device={device}: these kernels run on the CPU", field="device")
        return CpuNativeLayer(
            config, scale=scale, sinks=sinks, alibi_slopes=alibi_slopes, kernels=_kernels.imported()
        )

    @classmethod
    def plan(cls, config: AttentionConfig, batch: AttentionBatch) -> CpuNativePlan:
        """Check and copy the step's numbers. Errors: `ConfigError`, and `IndexError` for a block or slot below 0."""
        return CpuNativePlan(config, batch, kernels=_kernels.imported())


def _check_per_head(name: str, tensor: torch.Tensor | None, *, asked: bool, num_heads: int) -> None:
    if asked != (tensor is not None):
        raise ConfigError(
            f"{name} {'missing' if asked else 'given'}: the config says {name.split('_', 1)[0]}={asked}", field=name
        )
    if tensor is not None and (tuple(tensor.shape) != (num_heads,) or not tensor.is_floating_point()):
        raise ConfigError(
            f"{name} of shape {tuple(tensor.shape)} and {tensor.dtype}: expected ({num_heads},), floating point",
            field=name,
        )
