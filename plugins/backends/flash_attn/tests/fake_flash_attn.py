"""What the functions of FlashAttention 2, 3 and 4 compute, by the float64 reference, with the limits of each.

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
FAILURE: Exception | None = None
"""What every call raises, if anything."""


def call(name: str, arguments: dict[str, Any]) -> Any:
    """Record a call, and compute it."""
    CALLS.append((name, arguments))
    if FAILURE is not None:
        raise FAILURE
    kernels: dict[str, Callable[..., Any]] = {
        "flash_attn:flash_attn_varlen_func": _fa2,
        "flash_attn_interface:flash_attn_varlen_func": _fa3_varlen,
        "flash_attn_interface:flash_attn_with_kvcache": _fa3_kvcache,
        "flash_attn.cute:flash_attn_varlen_func": _fa4,
    }
    return kernels[name](**arguments)


def _need(condition: object, message: str) -> None:
    if not condition:
        raise RuntimeError(message)


def _lengths(running: torch.Tensor) -> list[int]:
    _need(running.dtype == torch.int32 and running.is_contiguous(), "running sums must be int32 and contiguous")
    return [end - start for start, end in pairwise(running.tolist())]


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    queries: list[int],
    keys: list[int],
    *,
    table: torch.Tensor | None,
    scale: float,
    causal: bool,
    window: tuple[int, int],
    softcap: float,
    slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed queries over packed or paged (block, token, head, content) keys; natural lse (heads, rows), -inf: none."""
    left, right = window
    _need(left == -1 or right == (0 if causal else left), f"window {window} of no config")
    config = AttentionConfig(
        head_size=q.shape[-1],
        v_head_size=v.shape[-1],
        num_heads=q.shape[-2],
        num_kv_heads=k.shape[-2],
        dtype="float64",
        block_size=None if table is None else k.shape[1],
        causal=causal,
        sliding_window=None if left < 0 else left + 1,
        soft_cap=softcap,
        alibi=slopes is not None,
        sinks=sinks is not None,
    )
    _need(q.stride(-1) == k.stride(-1) == v.stride(-1) == 1, "the last axis must be dense")
    batch = AttentionBatch.build(
        query_lens=queries,
        seq_lens=keys,
        kv_lens=[0] * len(keys) if table is not None else keys,
        block_table=table,
    )
    options: dict[str, Any] = {"scale": scale, "sinks": sinks, "alibi_slopes": slopes}
    if table is None:
        out, lse = reference_attention(config, batch, q, k, v, **options)
    else:
        cache = [side.permute(0, 2, 1, 3) for side in (k, v)]
        out, lse = reference_attention(config, batch, q, None, None, cache, **options)
    return out.to(q.dtype), lse.float()


def _fa2(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **a: Any) -> Any:
    queries, keys, table = _lengths(a["cu_seqlens_q"]), _lengths(a["cu_seqlens_k"]), a["block_table"]
    _need(q.dtype in (torch.float16, torch.bfloat16) and q.dtype == k.dtype == v.dtype, "dtype")
    _need(queries, "batch size must be positive")
    _need(q.shape[-1] <= 256 and q.shape[-1] % 8 == 0 and v.shape[-1] == q.shape[-1], "head size")
    pages = 256 if torch.version.hip is None else 128
    _need(table is None or k.shape[1] % pages == 0, f"Paged KV cache block size must be divisible by {pages}")
    _need(torch.version.hip is None or a["softcap"] == 0.0, "Composable Kernel would leave the soft cap out")
    _need(a["max_seqlen_q"] == max(queries) and a["max_seqlen_k"] >= max(keys), "maxima")
    slopes, causal, (left, right) = a["alibi_slopes"], a["causal"], a["window_size"]
    _need(slopes is None or slopes.dtype == torch.float32, "ALiBi slopes must have dtype fp32")
    # The rules of mha_varlen_fwd, in its order.
    swapped = a["max_seqlen_q"] == 1 and q.shape[1] > k.shape[-2] and (left, right) == (-1, -1) and slopes is None
    _need(not swapped or q.shape[0] == len(queries), "the query cannot be reshaped to one row per sequence")
    if left >= a["max_seqlen_k"]:
        left = right = -1
    out, lse = _attention(
        q,
        k,
        v,
        queries,
        keys,
        table=table,
        scale=a["softmax_scale"],
        causal=causal,
        window=(left, right),
        softcap=a["softcap"],
        slopes=slopes,
    )
    if slopes is not None and causal and left == -1:
        # slope x key position in place of slope x (key position - query position)
        rows = [keys_ - queries_ + i for queries_, keys_ in zip(queries, keys, strict=True) for i in range(queries_)]
        lse = lse + slopes[:, None] * torch.tensor(rows)
    lse = torch.where(lse == -torch.inf, torch.inf, lse)
    return (out, lse, None) if a["return_attn_probs"] else out


def _fa3(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    queries: list[int],
    keys: list[int],
    table: torch.Tensor | None,
    a: dict[str, Any],
) -> tuple[torch.Tensor, torch.Tensor]:
    _need(q.dtype in (torch.float16, torch.bfloat16) and q.dtype == k.dtype == v.dtype, "dtype")
    qv, scale = a["qv"], a["softmax_scale"]
    _need(a["max_seqlen_q"] == max(queries), "maxima")
    if qv is not None:
        _need(q.shape[-1] <= 64 and v.shape[-1] in (256, 512), "qv is for head sizes up to 64 with 256 or 512")
        q, k = torch.cat([qv, q], dim=-1), torch.cat([v, k], dim=-1)
    else:
        _need(q.shape[-1] <= 256 and q.shape[-1] % 8 == 0, "head size")
        _need(v.shape[-1] == q.shape[-1] or (q.shape[-1], v.shape[-1]) == (192, 128), "value head size")
    return _attention(
        q,
        k,
        v,
        queries,
        keys,
        table=table,
        scale=scale,
        causal=a["causal"],
        window=a["window_size"],
        softcap=a["softcap"],
    )


def _fa3_varlen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **a: Any) -> Any:
    found = _fa3(q, k, v, _lengths(a["cu_seqlens_q"]), _lengths(a["cu_seqlens_k"]), None, a)
    return found if a.get("return_attn_probs") else found[0]


def _fa3_kvcache(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, **a: Any) -> Any:
    _need(a["page_table"].dtype == a["cache_seqlens"].dtype == torch.int32, "int32")
    found = _fa3(q, k_cache, v_cache, _lengths(a["cu_seqlens_q"]), a["cache_seqlens"].tolist(), a["page_table"], a)
    return (*found, None, None) if a["return_softmax_lse"] else found[0]


def _fa4(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **a: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    queries, table, qv = _lengths(a["cu_seqlens_q"]), a["page_table"], a["qv"]
    assert table is None or a["cu_seqlens_k"] is None, "page_table is not supported with cu_seqlens_k"
    assert q.dtype in (torch.float16, torch.bfloat16)
    assert q.dtype == k.dtype == v.dtype
    keys = _lengths(a["cu_seqlens_k"]) if table is None else a["seqused_k"].tolist()
    major = torch.cuda.get_device_capability()[0]
    if qv is not None:
        assert major in (10, 11), "only support Blackwell arch with qv"
        assert (q.shape[-1], v.shape[-1]) == (64, 512)
        assert a["softcap"] == 0.0
        q, k = torch.cat([qv, q], dim=-1), torch.cat([v, k], dim=-1)
    else:
        sizes = (q.shape[-1], v.shape[-1])
        assert all(size % 8 == 0 and 8 <= size <= 256 for size in sizes)
        assert major == 9 or max(sizes) <= 128 or sizes in ((192, 128), (256, 256))
        whole = major > 9 and table is not None and k.shape[1] == 128
        irregular = any(size % 16 for size in sizes)
        assert table is None or whole or not irregular, "Paged KV does not support irregular head dim"
    window = tuple(-1 if side is None else side for side in a["window_size"])
    out, lse = _attention(
        q,
        k,
        v,
        queries,
        keys,
        table=table,
        scale=a["softmax_scale"],
        causal=a["causal"],
        window=(window[0], window[1]),
        softcap=a["softcap"],
        sinks=a["learnable_sink"],
    )
    if not a["return_lse"]:
        return out, None
    return out, lse if qv is None else lse.T.contiguous()
