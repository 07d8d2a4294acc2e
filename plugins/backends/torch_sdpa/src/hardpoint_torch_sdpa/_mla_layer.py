"""One latent layer: a head of keys that all query heads share, and whose first part is the value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint_torch_sdpa._layer import TorchSdpaLayer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from hardpoint.attention import AttentionConfig


class TorchMlaLayer(TorchSdpaLayer):
    """Built by `TorchMlaBackend.create_layer`. A latent is gathered once, and is key and value to the kernel."""

    @staticmethod
    def _blocks(config: AttentionConfig) -> list[tuple[str, tuple[int | None, ...]]]:
        return [("latent", (config.block_size, config.head_size))]

    def _with_heads(
        self, key: torch.Tensor | None, value: torch.Tensor | None, kv_cache: Sequence[torch.Tensor] | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, Sequence[torch.Tensor] | None]:
        caches = None if kv_cache is None else [cache.unsqueeze(1) for cache in kv_cache]
        return None if key is None else key.unsqueeze(1), value, caches
