"""The smallest step through a backend: what a device or its library cannot do is met in `prepare`, not in a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint.attention._batch import AttentionBatch
from hardpoint.errors import EnvironmentFailure, HardpointError

if TYPE_CHECKING:
    import torch

    from hardpoint.attention._config import AttentionConfig
    from hardpoint.attention._contract import AttentionBackend


def check_device(device: torch.device | str, *dtypes: str) -> None:
    """Errors: `EnvironmentFailure` where torch has no such device, or none of these dtypes there."""
    import torch

    try:
        for dtype in dtypes:
            torch.zeros(1, dtype=getattr(torch, dtype), device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        # torch says it in several ways: no such device, built without it, no such dtype there.
        raise EnvironmentFailure(
            f"torch {torch.__version__} has no {' or '.join(dict.fromkeys(dtypes))} on {device}: {error}",
            code="no_device",
        ) from error


def run_smallest(backend: type[AttentionBackend], config: AttentionConfig, device: torch.device | str) -> None:
    """Build a layer and run it on one new token behind another, and on two new ones.

    Errors: `EnvironmentFailure` for whatever the library raises as a `RuntimeError` (so do its checks, its compiler and
    the driver), an assertion of its own, or a `ValueError`; ours, as they are.
    """
    try:
        _run(backend, config, device)
    except (HardpointError, RecursionError, NotImplementedError, UnicodeError):
        raise
    except (RuntimeError, AssertionError, ValueError) as error:
        raise EnvironmentFailure(
            f"{backend.__name__} does not run on {device} for {config.describe()}: {type(error).__name__}: {error}",
            code="kernel_missing",
        ) from error


def _run(backend: type[AttentionBackend], config: AttentionConfig, device: torch.device | str) -> None:
    import torch

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
    if (size := config.block_size) is not None:
        cache = backend.kv_cache_spec(config).allocate(4, device=device)
        query_lens = [1, 2]
        table = [[0, 1], [2, 3]]
        slots = [1, 2 * size, 2 * size + 1]
    batch = AttentionBatch.build(
        query_lens=query_lens,
        seq_lens=seq_lens,
        device=device,
        block_table=table,
        slot_mapping=slots,
        kv_lens=query_lens if config.attention_type == "encoder_decoder" else None,
    )
    tokens = batch.num_actual_tokens
    query = torch.zeros(tokens, config.num_heads, config.head_size, dtype=dtype, device=device)
    heads = () if config.kind == "mla_attention" else (config.num_kv_heads,)
    key = torch.zeros(tokens, *heads, config.head_size, dtype=dtype, device=device)
    value = torch.zeros(tokens, *heads, config.v_head_size, dtype=dtype, device=device) if heads else None
    layer.forward(query, key, value, cache, backend.plan(config, batch), return_lse=True)
