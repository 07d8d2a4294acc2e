"""One latent layer: a head of keys that all query heads share, and whose first part is the value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint.errors import ConfigError
from hardpoint_torch_sdpa._layer import TorchSdpaLayer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from hardpoint_torch_sdpa._plan import SdpaPlan


class TorchMlaLayer(TorchSdpaLayer):
    """Built by `TorchMlaBackend.create_layer`. A latent is gathered once, and is key and value to the kernel."""

    def _with_heads(
        self, key: torch.Tensor | None, value: torch.Tensor | None, kv_cache: Sequence[torch.Tensor] | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, Sequence[torch.Tensor] | None]:
        caches = None if kv_cache is None else [cache.unsqueeze(1) for cache in kv_cache]
        return None if key is None else key.unsqueeze(1), value, caches

    def _check_keys(
        self,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: Sequence[torch.Tensor] | None,
        plan: SdpaPlan,
    ) -> None:
        size = self.config.head_size
        if value is not None:
            raise ConfigError("the latent form has no value: it is part of the latent", field="value")
        if key is not None:
            self._check_rows("key", key, (size,), plan.num_new_keys)
        if kv_cache is None:
            return
        if len(kv_cache) != 1 or kv_cache[0].ndim != 3:
            shapes = [tuple(cache.shape) for cache in kv_cache]
            raise ConfigError(
                f"cache tensors of shapes {shapes}: expected one of (blocks, tokens, {size})", field="kv_cache"
            )
        self._check_cache("latent", kv_cache[0], (self.config.block_size or kv_cache[0].shape[1], size))
