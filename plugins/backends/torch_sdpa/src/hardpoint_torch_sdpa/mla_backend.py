"""The backend class behind the latent plugin's target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint.attention import CacheTensorSpec, KVCacheSpec
from hardpoint.attention._kernel_checks import check_per_head, check_scales
from hardpoint.errors import ConfigError
from hardpoint_torch_sdpa._mla_layer import TorchMlaLayer
from hardpoint_torch_sdpa.backend import TorchSdpaBackend

if TYPE_CHECKING:
    import torch

    from hardpoint.attention import AttentionConfig


class TorchMlaBackend(TorchSdpaBackend):
    """The latent form: all query heads share one head of keys, so a latent is gathered once for all of them.

    A soft cap, for which torch's kernel has no place, is multiplied out in float32.
    """

    @classmethod
    def kv_cache_spec(cls, config: AttentionConfig) -> KVCacheSpec:
        """One tensor, without heads: latent and rotary part of each token behind one another."""
        if config.block_size is None:
            raise ConfigError("a cache needs block_size", field="block_size")
        axes = ("block", "token", "content")
        return KVCacheSpec(
            tensors=(
                CacheTensorSpec(
                    role="latent",
                    axes=axes,
                    sizes=(config.block_size, config.head_size),
                    dtype=config.cache_dtype,
                    stride_orders=(axes,),
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
    ) -> TorchMlaLayer:
        """Build one layer. Errors: `ConfigError` as the contract says."""
        import torch

        if config.kind != "mla_attention":
            raise ConfigError(f"torch_mla is for the latent form: {config.describe()}", field="kind")
        check_per_head(config, sinks=sinks, alibi_slopes=alibi_slopes)
        check_scales(config, key_scale=key_scale, value_scale=value_scale)
        return TorchMlaLayer(
            config,
            scale=scale,
            device=torch.device(device),
            sinks=sinks,
            alibi_slopes=alibi_slopes,
            key_scale=key_scale,
            # The value is part of what was stored with the key's scale.
            value_scale=key_scale,
        )
