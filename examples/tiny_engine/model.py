"""A Llama-type decoder. Attention, the only part that knows of sequences, is handed in layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from examples.tiny_engine.linear import Linear

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from examples.tiny_engine.weights import Checkpoint, ModelConfig

    Attention = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    """``(layer number, query, key, value) -> result``, each ``(num_tokens, heads, head_size)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer. `qkv` and `gate_up` are stacked, so that each is one multiplication."""

    attention_norm: torch.Tensor
    qkv: Linear
    attention_out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class LlamaModel:
    """Weights, rotary tables, and the forward pass over a packed batch of tokens."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        embedding: torch.Tensor,
        layers: Sequence[LayerWeights],
        norm: torch.Tensor,
        output: Linear,
        max_model_len: int,
    ) -> None:
        self.config = config
        self._embedding = embedding
        self._layers = tuple(layers)
        self._norm = norm
        self._output = output
        self._cosine, self._sine = _rotary_tables(config, max_model_len, embedding.device)

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        max_model_len: int,
        progress: Callable[[float], None] = lambda _: None,
    ) -> LlamaModel:
        """Read and dequantise the weights; `progress` hears the part that is done, 0 to 1."""

        def get(*names: str) -> torch.Tensor:
            parts = [checkpoint.tensor(name, dtype, device) for name in names]
            return parts[0] if len(parts) == 1 else torch.cat(parts)

        embedding = get("token_embd.weight")
        layers = []
        for number in range(checkpoint.config.num_layers):
            progress(number / checkpoint.config.num_layers)
            layer = f"blk.{number}"
            layers.append(
                LayerWeights(
                    attention_norm=get(f"{layer}.attn_norm.weight"),
                    qkv=Linear(get(f"{layer}.attn_q.weight", f"{layer}.attn_k.weight", f"{layer}.attn_v.weight")),
                    attention_out=Linear(get(f"{layer}.attn_output.weight")),
                    mlp_norm=get(f"{layer}.ffn_norm.weight"),
                    gate_up=Linear(get(f"{layer}.ffn_gate.weight", f"{layer}.ffn_up.weight")),
                    down=Linear(get(f"{layer}.ffn_down.weight")),
                )
            )
        progress(1.0)
        return cls(
            checkpoint.config,
            embedding=embedding,
            layers=layers,
            norm=get("output_norm.weight"),
            # A file without an output matrix means the embedding's, transposed.
            output=Linear(get("output.weight") if checkpoint.has("output.weight") else embedding),
            max_model_len=max_model_len,
        )

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor, attend: Attention
    ) -> torch.Tensor:
        """Logits, float32, ``(len(rows), vocab_size)``, of the chosen rows of the packed batch.

        `tokens` and `positions` are ``(num_tokens,)``. Only `rows` of the last layer's output are multiplied with the
        vocabulary, a small model's largest matrix.
        """
        config = self.config
        num_qk = config.num_heads + config.num_kv_heads
        cosine, sine = self._cosine[positions], self._sine[positions]
        hidden = self._embedding[tokens]
        for number, layer in enumerate(self._layers):
            normed = self._rms_norm(hidden, layer.attention_norm)
            qkv = layer.qkv(normed).view(len(tokens), -1, config.head_size)
            rotated = _rotate(qkv[:, :num_qk], cosine, sine)
            query, key = rotated[:, : config.num_heads], rotated[:, config.num_heads :]
            attended = attend(number, query, key, qkv[:, num_qk:])
            hidden = hidden + layer.attention_out(attended.reshape(len(tokens), -1))
            normed = self._rms_norm(hidden, layer.mlp_norm)
            gate, up = layer.gate_up(normed).chunk(2, dim=-1)
            hidden = hidden + layer.down(functional.silu(gate) * up)
        return self._output(self._rms_norm(hidden[rows], self._norm)).float()

    def _rms_norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(hidden, (self.config.hidden_size,), weight, self.config.norm_epsilon)


def _rotary_tables(config: ModelConfig, max_model_len: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and signed sine per position and element, float32, ``(max_model_len, 1, head_size)``."""
    exponents = torch.arange(0, config.head_size, 2, dtype=torch.float32) / config.head_size
    angles = torch.outer(torch.arange(max_model_len, dtype=torch.float32), 1.0 / config.rope_base**exponents)
    cosine, sine = angles.cos(), angles.sin()
    tables = torch.cat((cosine, cosine), dim=-1), torch.cat((-sine, sine), dim=-1)
    return tables[0].unsqueeze(1).to(device), tables[1].unsqueeze(1).to(device)


def _rotate(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of every head; partners are half a head apart. Computed in float32."""
    exact = heads.float()
    return torch.addcmul(exact * cosine, exact.roll(heads.shape[-1] // 2, dims=-1), sine).to(heads.dtype)
