"""What FlashInfer's wrappers compute, by the float64 reference, with the library's limits and conventions.

This file is copied beside a fake package whose functions have the recorded signatures and call `call`.
"""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch

from hardpoint.attention import AttentionBatch, AttentionConfig, reference_attention

CALLS: list[tuple[str, dict[str, Any]]] = []


def call(name: str, arguments: dict[str, Any]) -> Any:
    """Record a call, and compute it."""
    CALLS.append((name, arguments))
    owner, _, method = name.partition(":")[2].rpartition(".")
    if method == "csr":
        return SimpleNamespace(**{key: value for key, value in arguments.items() if key != "cls"})
    wrapper = arguments.pop("self")
    if method == "__init__":
        wrapper.state = None
        assert arguments["float_workspace_buffer"].numel() >= 128 << 20
        assert not arguments["float_workspace_buffer"].any()
        return None
    if owner == "BatchMLAPagedAttentionWrapper":
        return _mla_plan(wrapper, **arguments) if method == "plan" else _mla_run(wrapper, **arguments)
    if owner == "BatchDecodeWithPagedKVCacheWrapper" and method == "plan":
        assert not arguments.pop("deprecated_positional_args")
        # As the library does: what the wrapper's `plan` takes as further keywords has a signature of its own.
        more = arguments.pop("kwargs")
        return wrapper._plan_impl(**arguments, **more)
    if method in ("plan", "_plan_impl"):
        wrapper.state = arguments
        return None
    decode = owner == "BatchDecodeWithPagedKVCacheWrapper"
    return _decode_run(wrapper, **arguments) if decode else _prefill_run(wrapper, **arguments)


def _host(tensor: torch.Tensor) -> list[int]:
    assert tensor.dtype == torch.int32
    assert tensor.is_contiguous()
    found: list[int] = tensor.tolist()
    return found


def _lengths(indptr: list[int], last: list[int], size: int) -> list[int]:
    for (start, end), rest in zip(pairwise(indptr), last, strict=True):
        assert (0 < rest <= size) if end > start else rest == 0
    return [max(0, end - start - 1) * size + rest for (start, end), rest in zip(pairwise(indptr), last, strict=True)]


def _table(indptr: list[int], pages: list[int], num_pages: int) -> list[list[int]]:
    assert all(0 <= page < num_pages for page in pages)
    return [pages[start:end] for start, end in pairwise(indptr)]


def _finish(
    out: torch.Tensor, lse: torch.Tensor, dtype: torch.dtype, *, base: float
) -> tuple[torch.Tensor, torch.Tensor]:
    # A masked logit is -50000 here and no minus infinity, so a row that sees nothing gets the mean of all values.
    blind = (lse == -torch.inf).all(dim=0)
    out[blind] = 7.0
    lse[:, blind] = -50000.0
    return out.to(dtype), (lse / math.log(base)).T.float().contiguous()


def _dense(
    q: torch.Tensor, caches: Any, queries: list[int], state: dict[str, Any], *, causal: bool, **a: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = caches
    assert keys.stride() == values.stride()
    assert keys.stride(-1) == 1
    assert q.is_contiguous()
    assert (q.dtype, keys.dtype) == (state["q_data_type"], state["kv_data_type"])
    size, soft_cap, window = state["page_size"], state["logits_soft_cap"], state["window_left"]
    indptr = _host(state["indptr"])
    lengths = _lengths(indptr, _host(state["last_page_len"]), size)
    config = AttentionConfig(
        head_size=state["head_dim"],
        num_heads=state["num_qo_heads"],
        num_kv_heads=state["num_kv_heads"],
        dtype="float64",
        kv_cache_dtype=str(keys.dtype),
        block_size=size,
        causal=causal,
        sliding_window=None if window < 0 else window + 1,
        soft_cap=soft_cap,
    )
    assert config.head_size in (64, 128, 256, 512)
    assert causal or window < 0
    batch = AttentionBatch.build(
        query_lens=queries,
        seq_lens=lengths,
        kv_lens=[0] * len(lengths),
        block_table=_table(indptr, _host(state["indices"]), len(keys)),
    )
    cache = [side.permute(0, 2, 1, 3) for side in (keys, values)]
    scales = {"key_scale": a["k_scale"], "value_scale": a["v_scale"]} if keys.dtype.itemsize == 1 else {}
    assert scales or (a["k_scale"] is None and a["v_scale"] is None)
    out, lse = reference_attention(config, batch, q, None, None, cache, scale=state["sm_scale"], **scales)
    return _finish(out, lse, q.dtype, base=2)


def _prefill_run(wrapper: Any, q: torch.Tensor, paged_kv_cache: Any, **a: Any) -> Any:
    plan = wrapper.state
    starts = _host(plan["qo_indptr"])
    assert q.shape[0] == starts[-1]
    state = {
        **plan,
        "indptr": plan["paged_kv_indptr"],
        "indices": plan["paged_kv_indices"],
        "last_page_len": plan["paged_kv_last_page_len"],
        "head_dim": plan["head_dim_qk"],
    }
    queries = [end - start for start, end in pairwise(starts)]
    assert (a["sinks"], a["lse_base"], a["lse_layout"]) == (None, "log2", "NH")
    found = _dense(q, paged_kv_cache, queries, state, causal=plan["causal"], **a)
    return found if a["return_lse"] else found[0]


def _decode_run(wrapper: Any, q: torch.Tensor, paged_kv_cache: Any, **a: Any) -> Any:
    count = len(_host(wrapper.state["last_page_len"]))
    assert q.shape[0] == count
    found = _dense(q, paged_kv_cache, [1] * count, wrapper.state, causal=True, **a)
    return found if a["return_lse"] else found[0]


def _mla_plan(wrapper: Any, **a: Any) -> None:
    assert a["metadata"] is not None
    assert a["head_dim_ckv"] % 128 == a["head_dim_kpe"] % 64 == 0
    assert 128 % a["num_heads"] == 0
    quantised = a["kv_data_type"].itemsize == 1
    assert quantised or a["q_data_type"] == a["kv_data_type"]
    assert not quantised or (a["q_data_type"], a["head_dim_ckv"]) == (torch.bfloat16, 512)
    assert a["scale_mode"] == ("kv-per-tensor" if quantised else "default")
    wrapper.state = a


def _mla_run(wrapper: Any, query: Any, kv_cache: Any, **a: Any) -> Any:
    plan = wrapper.state
    pages, rank = plan["metadata"], plan["head_dim_ckv"]
    mode = "none" if not a["return_lse"] else "basee" if a["return_lse_base_on_e"] else "base2"
    assert mode == plan["lse_mode"]
    assert (plan["query_layout"], plan["kv_cache_layout"]) == ("packed", "packed")
    indptr, starts = _host(pages.kv_indptr), _host(pages.qo_indptr)
    lengths = _host(pages.kv_len_arr)
    config = AttentionConfig(
        kind="mla_attention",
        head_size=query.shape[-1],
        num_heads=plan["num_heads"],
        dtype="float64",
        kv_lora_rank=rank,
        qk_rope_head_dim=plan["head_dim_kpe"],
        kv_cache_dtype=str(kv_cache.dtype),
        block_size=plan["page_size"],
        causal=plan["causal"],
    )
    assert kv_cache.dtype == plan["kv_data_type"]
    assert (a["ckv_scale"] is not None) == (a["kpe_scale"] is not None) == (kv_cache.dtype.itemsize == 1)
    assert a["ckv_scale"] == a["kpe_scale"]
    batch = AttentionBatch.build(
        query_lens=[end - start for start, end in pairwise(starts)],
        seq_lens=lengths,
        kv_lens=[0] * len(lengths),
        block_table=_table(indptr, _host(pages.kv_indices), len(kv_cache)),
    )
    scales = {} if a["ckv_scale"] is None else {"key_scale": a["ckv_scale"]}
    out, lse = reference_attention(config, batch, query, None, None, [kv_cache], scale=plan["sm_scale"], **scales)
    result, finished = _finish(out, lse, query.dtype, base=math.e)
    return (result, finished) if a["return_lse"] else result
