"""The smallest step, run at depth ``ready`` so that what a device cannot do is met there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention import AttentionBatch

if TYPE_CHECKING:
    from hardpoint.attention import AttentionBackend, AttentionConfig


def run_smallest(backend: type[AttentionBackend], config: AttentionConfig, device: torch.device) -> None:
    """Two sequences: one new token behind another, and two new ones."""
    dtype = getattr(torch, config.dtype)
    per_head = torch.zeros(config.num_heads, device=device)
    layer = backend.create_layer(
        config,
        scale=1.0,
        device=device,
        sinks=per_head if config.sinks else None,
        alibi_slopes=per_head if config.alibi else None,
    )
    cache = table = slots = None
    query_lens, seq_lens = [2, 2], [2, 2]
    if config.block_size is not None:
        cache = backend.kv_cache_spec(config).allocate(4, device=device)
        query_lens, seq_lens = [1, 2], [2, 2]
        table = [[0, 1], [2, 3]]
        slots = [1, 2 * config.block_size, 2 * config.block_size + 1]
    batch = AttentionBatch.build(
        query_lens=query_lens, seq_lens=seq_lens, device=device, block_table=table, slot_mapping=slots
    )
    tokens = batch.num_actual_tokens
    query = torch.zeros(tokens, config.num_heads, config.head_size, dtype=dtype, device=device)
    heads: tuple[int, ...] = (config.num_kv_heads,)
    value = None
    if config.kind == "mla_attention":
        heads = ()
    else:
        value = torch.zeros(tokens, *heads, config.v_head_size, dtype=dtype, device=device)
    key = torch.zeros(tokens, *heads, config.head_size, dtype=dtype, device=device)
    layer.forward(query, key, value, cache, backend.plan(config, batch), return_lse=True)
