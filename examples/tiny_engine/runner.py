"""One step on the device: pack the chunks into a batch, plan attention once per group of layers, run the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hardpoint.attention import AttentionBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.tiny_engine.model import LlamaModel
    from examples.tiny_engine.scheduler import Chunk
    from hardpoint.attention import AttentionBackend, AttentionConfig, AttentionLayer, AttentionPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """The layers of one kind: they share a config, a backend and so a plan."""

    config: AttentionConfig
    backend: type[AttentionBackend]
    layers: dict[int, AttentionLayer]
    caches: dict[int, tuple[torch.Tensor, ...]]

    @classmethod
    def build(
        cls,
        config: AttentionConfig,
        backend: type[AttentionBackend],
        numbers: Sequence[int],
        *,
        num_blocks: int,
        device: torch.device | str,
    ) -> LayerGroup:
        """Create these layers of the model, and the cache of each."""
        spec = backend.kv_cache_spec(config)
        scale = config.head_size**-0.5
        return cls(
            config=config,
            backend=backend,
            layers={number: backend.create_layer(config, scale=scale, device=device) for number in numbers},
            caches={number: spec.allocate(num_blocks, device=device) for number in numbers},
        )


class ModelRunner:
    """Holds the model, its attention layers and their caches."""

    def __init__(
        self, model: LlamaModel, groups: Sequence[LayerGroup], *, block_size: int, device: torch.device | str
    ) -> None:
        self._model = model
        self._groups = tuple(groups)
        self._block_size = block_size
        self._device = device

    def logits(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Compute the chunks; float32 logits, one row per chunk that samples, in order."""
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        rows: list[int] = []
        size = self._block_size
        for chunk in chunks:
            blocks, computed = chunk.request.blocks, range(chunk.start, chunk.end)
            tokens += chunk.request.tokens[chunk.start : chunk.end]
            positions += computed
            slots += [blocks[position // size] * size + position % size for position in computed]
            if chunk.samples:
                rows.append(len(tokens) - 1)
        batch = AttentionBatch.build(
            query_lens=[chunk.end - chunk.start for chunk in chunks],
            seq_lens=[chunk.end for chunk in chunks],
            block_table=[chunk.request.blocks for chunk in chunks],
            slot_mapping=slots,
            device=self._device,
        )
        layers: dict[int, tuple[AttentionLayer, tuple[torch.Tensor, ...], AttentionPlan]] = {}
        for group in self._groups:
            plan = group.backend.plan(group.config, batch)
            layers |= {number: (layer, group.caches[number], plan) for number, layer in group.layers.items()}

        def attend(number: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            layer, cache, plan = layers[number]
            attended = layer.forward(query, key, value, cache, plan)
            if isinstance(attended, tuple):
                raise TypeError(f"layer {number} returned its lse, which nobody asked for")
            return attended

        return self._model.forward(self._tensor(tokens), self._tensor(positions), self._tensor(rows), attend)

    def _tensor(self, numbers: list[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)
