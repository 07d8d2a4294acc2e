"""The smallest steps through a backend: what its device or library cannot do is met in `prepare`, not in a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint.attention._batch import AttentionBatch
from hardpoint.errors import EnvironmentFailure, HardpointError

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """Build a layer and run it on a step of one and of two new tokens, and with a cache on one of one token each.

    Libraries have kernels of their own for steps of one token per sequence.

    Errors: `EnvironmentFailure` for whatever the library raises as a `RuntimeError` (so do its checks, its compiler and
    the driver), an assertion of its own, a `ValueError`, or in a class of its own; ours, as they are.
    """
    try:
        _run(backend, config, device)
    except (HardpointError, OSError, RecursionError, UnicodeError):
        raise
    except Exception as error:
        if not _is_of_library(error):
            raise
        raise EnvironmentFailure(
            f"{backend.__name__} does not run on {device} for {config.describe()}: {type(error).__name__}: {error}",
            code="kernel_missing",
        ) from error


def _is_of_library(error: Exception) -> bool:
    if isinstance(error, NotImplementedError):
        # A library's word for a feature that it lacks; ours is a method that nobody has written.
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        where = "" if traceback is None else str(traceback.tb_frame.f_globals.get("__name__"))
        return where.partition(".")[0].partition("_")[0] != "hardpoint"
    # Compilers have errors of their own: Triton, CUTLASS and subprocess derive theirs from Exception.
    return isinstance(error, (RuntimeError, AssertionError, ValueError)) or type(error).__module__ != "builtins"


def _run(backend: type[AttentionBackend], config: AttentionConfig, device: torch.device | str) -> None:
    import torch

    per_head = torch.zeros(config.num_heads, device=device)
    layer = backend.create_layer(
        config,
        scale=1.0,
        device=device,
        sinks=per_head if config.sinks else None,
        alibi_slopes=per_head if config.alibi else None,
    )
    cache = None if config.block_size is None else backend.kv_cache_spec(config).allocate(4, device=device)
    for query_lens in ([1, 2],) if cache is None else ([1, 2], [1, 1]):
        batch = _batch(config, query_lens, device)
        layer.forward(*_inputs(config, batch, device), cache, backend.plan(config, batch), return_lse=True)


def _batch(config: AttentionConfig, query_lens: Sequence[int], device: torch.device | str) -> AttentionBatch:
    size = config.block_size
    seq_lens = query_lens if size is None else [2, 2]
    slots = None
    if size is not None:
        firsts = [0, 2 * size]
        slots = [
            first + position
            for first, queries, keys in zip(firsts, query_lens, seq_lens, strict=True)
            for position in range(keys - queries, keys)
        ]
    return AttentionBatch.build(
        query_lens=query_lens,
        seq_lens=seq_lens,
        device=device,
        # Two blocks each: with one token per block the second of two lies in the second.
        block_table=None if size is None else [[0, 1], [2, 3]],
        slot_mapping=slots,
        kv_lens=query_lens if config.attention_type == "encoder_decoder" else None,
    )


def _inputs(
    config: AttentionConfig, batch: AttentionBatch, device: torch.device | str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    import torch

    dtype: torch.dtype = getattr(torch, config.dtype)
    tokens = batch.num_actual_tokens
    query = torch.zeros(tokens, config.num_heads, config.head_size, dtype=dtype, device=device)
    heads = () if config.kind == "mla_attention" else (config.num_kv_heads,)
    key = torch.zeros(tokens, *heads, config.head_size, dtype=dtype, device=device)
    value = torch.zeros(tokens, *heads, config.v_head_size, dtype=dtype, device=device) if heads else None
    return query, key, value
