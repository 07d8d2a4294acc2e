"""What AITER's functions compute, by the float64 reference, with the limits and conventions of each.

This file is copied beside a fake package whose functions have the recorded signatures and call `call`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from hardpoint.attention import AttentionBatch, AttentionConfig, reference_attention

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS: list[tuple[str, dict[str, Any]]] = []
FAILURE: BaseException | None = None
"""What the next calls raise, for tests of what becomes of it."""


def call(name: str, arguments: dict[str, Any]) -> Any:
    """Record a call, and compute it."""
    CALLS.append((name, arguments))
    if FAILURE is not None:
        raise FAILURE
    kernels: dict[str, Callable[..., Any]] = {
        "aiter:flash_attn_varlen_func": _packed,
        "aiter:mha_batch_prefill_func": _paged,
        "aiter.ops.triton.unified_attention:unified_attention": _unified,
        "aiter.mla:mla_decode_fwd": _mla,
    }
    return kernels[name](**arguments)


def _lengths(running: torch.Tensor) -> list[int]:
    assert running.dtype == torch.int32
    assert running.is_contiguous()
    return [end - start for start, end in pairwise(running.tolist())]


def _config(q: torch.Tensor, kv_heads: int, v_head_size: int, **more: Any) -> AttentionConfig:
    fields = {
        "head_size": q.shape[2],
        "v_head_size": v_head_size,
        "num_heads": q.shape[1],
        "num_kv_heads": kv_heads,
        "dtype": "float64",
    }
    return AttentionConfig(**{**fields, **more})


def _ck(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: dict[str, Any], indices: list[list[int]] | None) -> Any:
    """Composable Kernel over (tokens, heads, content): packed, or by the slots of each sequence."""
    assert q.dtype in (torch.float16, torch.bfloat16)
    assert q.dtype == k.dtype == v.dtype
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
    assert q.shape[2] <= (256 if indices is None else 128), "there is no kernel of that head size"
    assert v.shape[2] == q.shape[2] or (indices is None and (q.shape[2], v.shape[2]) == (192, 128))
    assert q.shape[2] % 8 == 0
    queries = _lengths(a["cu_seqlens_q"])
    assert queries
    assert a["max_seqlen_q"] == max(queries)
    left, right = a["window_size"]
    if left >= a["max_seqlen_k"]:
        left = right = -1
    assert left == -1 or right == (0 if a["causal"] else left)
    more = {
        "causal": a["causal"],
        "sliding_window": None if left < 0 else left + 1,
        "soft_cap": a["logits_soft_cap"],
        "block_size": None if indices is None else 1,
    }
    keys = _lengths(a["cu_seqlens_k"]) if indices is None else list(map(len, indices))
    assert a["max_seqlen_k"] >= max(keys)
    batch = AttentionBatch.build(
        query_lens=queries,
        seq_lens=keys,
        kv_lens=keys if indices is None else [0] * len(keys),
        block_table=indices,
    )
    config = _config(q, k.shape[1], v.shape[2], **more)
    if indices is None:
        out, lse = reference_attention(config, batch, q, k, v, scale=a["softmax_scale"])
    else:
        cache = [side[:, :, None] for side in (k, v)]
        out, lse = reference_attention(config, batch, q, None, None, cache, scale=a["softmax_scale"])
    out = out.to(q.dtype)
    return [out, lse.float()] if a["return_lse"] else out


def _packed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **a: Any) -> Any:
    assert a["block_table"] is None
    return _ck(q, k, v, a, None)


def _slots(indptr: torch.Tensor, indices: torch.Tensor, limit: int) -> list[list[int]]:
    assert indices.dtype == torch.int32
    flat = indices.tolist()
    assert all(0 <= slot < limit for slot in flat)
    starts = indptr.tolist()
    assert starts[-1] == len(flat)
    return [flat[start:end] for start, end in pairwise(starts)]


def _paged(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **a: Any) -> Any:
    return _ck(q, k, v, a, _slots(a["kv_indptr"], a["kv_page_indices"], len(k)))


def _unified(**a: Any) -> None:
    q, k, v, sinks, slopes = a["q"], a["k"], a["v"], a["sinks"], a["alibi_slopes"]
    assert a["causal"], "Only causal attention is supported"
    assert a["q_descale"] is None
    size = v.shape[1]
    # tl.arange and tl.dot want powers of two, 16 at least.
    assert size in (16, 32, 64)
    assert q.shape[1] // k.shape[2] <= 128, "BLOCK_Q"
    left = a["window_size"][0]
    quantised = k.dtype.itemsize == 1
    assert quantised == (a["k_descale"] is not None)
    config = _config(
        q,
        k.shape[2],
        v.shape[3],
        block_size=size,
        kv_cache_dtype=str(k.dtype),
        sliding_window=None if left < 0 else left + 1,
        soft_cap=a["softcap"],
        sinks=sinks is not None,
        alibi=slopes is not None,
    )
    lengths = a["seqused_k"].tolist()
    queries = _lengths(a["cu_seqlens_q"])
    assert a["max_seqlen_q"] == max(queries)
    assert a["max_seqlen_k"] >= max(lengths)
    batch = AttentionBatch.build(
        query_lens=queries, seq_lens=lengths, kv_lens=[0] * len(lengths), block_table=a["block_table"]
    )
    scales = {"key_scale": a["k_descale"].item(), "value_scale": a["v_descale"].item()} if quantised else {}
    out, _ = reference_attention(
        config,
        batch,
        q,
        None,
        None,
        [side.permute(0, 2, 1, 3) for side in (k, v)],
        scale=a["softmax_scale"],
        sinks=sinks,
        alibi_slopes=slopes,
        **scales,
    )
    # ALiBi is measured from the first key of the step, which matters beside a sink.
    assert sinks is None or slopes is None
    a["out"].copy_(out)


def _mla(**a: Any) -> Any:
    q, cache, out = a["q"], a["kv_buffer"], a["o"]
    assert q.dtype == cache.dtype == torch.bfloat16
    assert q.shape[1] in (16, 128), "not supported"
    assert cache.shape[1:] == (1, 1, 576), "pages of one token, one head"
    assert q.is_contiguous()
    assert out.is_contiguous()
    assert a["max_seqlen_q"] == 1
    assert set(a["kv_last_page_lens"].tolist()) <= {1}
    queries = _lengths(a["qo_indptr"])
    assert set(queries) == {1}
    slots = _slots(a["kv_indptr"], a["kv_indices"], len(cache))
    config = AttentionConfig(
        kind="mla_attention",
        head_size=576,
        num_heads=q.shape[1],
        dtype="float64",
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        block_size=1,
    )
    lengths = list(map(len, slots))
    batch = AttentionBatch.build(query_lens=queries, seq_lens=lengths, kv_lens=[0] * len(lengths), block_table=slots)
    result, _ = reference_attention(config, batch, q, None, None, [cache[:, 0]], scale=a["sm_scale"])
    out.copy_(result)
    # Only the persistent mode fills the lse.
    return None, torch.full(q.shape[:2], torch.nan)
