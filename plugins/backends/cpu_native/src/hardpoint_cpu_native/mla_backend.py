"""The backend class behind the latent plugin's target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint.attention import CacheTensorSpec, KVCacheSpec
from hardpoint.attention._kernel_checks import check_per_head, check_scales
from hardpoint.errors import ConfigError
from hardpoint_cpu_native import _kernels
from hardpoint_cpu_native._arguments import check_device, check_scale
from hardpoint_cpu_native._layer import CpuNativeLayer
from hardpoint_cpu_native.backend import CpuNativeBackend

if TYPE_CHECKING:
    import torch

    from hardpoint.attention import AttentionConfig

_AXES = ("block", "token", "content")


class CpuNativeMlaBackend(CpuNativeBackend):
    """The latent form: one head of keys, read once for all query heads; its first part is the value."""

    @classmethod
    def kv_cache_spec(cls, config: AttentionConfig) -> KVCacheSpec:
        """One tensor, without heads: latent and rotary part of each token behind one another."""
        if config.block_size is None:
            raise ConfigError("a cache needs block_size", field="block_size")
        return KVCacheSpec(
            tensors=(
                CacheTensorSpec(
                    role="latent",
                    axes=_AXES,
                    sizes=(config.block_size, config.head_size),
                    dtype=config.cache_dtype,
                    stride_orders=(_AXES,),
                ),
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
        if config.kind != "mla_attention":
            raise ConfigError(f"cpu_native_mla is for the latent form: {config.describe()}", field="kind")
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
            kernels=cls.kernels(),
            most_threads=_kernels.thread_budget(),
        )
