"""Depth ``ready``: compiling and running what first forwards need, so that what cannot work is met here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention import AttentionBatch
from hardpoint.attention._kernel_smallest import check_device
from hardpoint_triton._failures import as_environment_failures
from hardpoint_triton._plan import TritonPlan

if TYPE_CHECKING:
    from hardpoint.attention import AttentionBackend, AttentionConfig


def prepare(backend: type[AttentionBackend], config: AttentionConfig, device: torch.device | str) -> None:
    """A decode, a split decode and a prefill. Errors: `EnvironmentFailure`.

    One kind of specialisation is left for later: Triton for AMD makes a kernel of its own for tensors above 2 GiB.
    """
    check_device(device, config.dtype, config.cache_dtype)
    with as_environment_failures(f"run on {device} for {config.describe()}"):
        _run(backend, config, torch.device(device))


def _run(backend: type[AttentionBackend], config: AttentionConfig, device: torch.device) -> None:
    per_head = torch.zeros(config.num_heads, device=device)
    layer = backend.create_layer(
        config,
        scale=1.0,
        device=device,
        sinks=per_head if config.sinks else None,
        alibi_slopes=per_head if config.alibi else None,
    )
    tokens = TritonPlan(config, AttentionBatch.build(query_lens=[], seq_lens=[], device=device)).decode.tokens
    for query_len, num_splits in ((1, 1), (1, 2), (tokens + 1, 1)):
        if num_splits > 1 and config.batch_invariant:
            continue
        size = config.block_size
        cache = table = slots = None
        if size is not None:
            blocks = -(-query_len // size)
            cache = backend.kv_cache_spec(config).allocate(blocks, device=device)
            table, slots = [list(range(blocks))], list(range(query_len))
        batch = AttentionBatch.build(
            query_lens=[query_len], seq_lens=[query_len], block_table=table, slot_mapping=slots, device=device
        )
        plan = TritonPlan(config, batch)
        plan.segments = [replace(segment, num_splits=num_splits) for segment in plan.segments]
        dtype = getattr(torch, config.dtype)
        query = torch.zeros(query_len, config.num_heads, config.head_size, dtype=dtype, device=device)
        latent = config.kind == "mla_attention"
        kv_heads = () if latent else (config.num_kv_heads,)
        key = torch.zeros(query_len, *kv_heads, config.head_size, dtype=dtype, device=device)
        value = None if latent else torch.zeros(query_len, *kv_heads, config.v_head_size, dtype=dtype, device=device)
        layer.forward(query, key, value, cache, plan)
    if device.type == "cuda":
        # A launch that a device cannot run is reported only when somebody waits for it.
        torch.cuda.synchronize(device)
