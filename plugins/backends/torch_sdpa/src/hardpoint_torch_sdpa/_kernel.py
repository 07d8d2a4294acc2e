"""One call of scaled_dot_product_attention, with the logarithm of the softmax's denominator where it is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch  # noqa: TID253  # imported only with a chosen backend
from torch.nn.functional import pad, scaled_dot_product_attention  # noqa: TID253  # as torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_LSE_CHUNK_ELEMENTS = 1 << 22


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    causal: bool = False,
    scale: float,
    soft_cap: float | None = None,
    with_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attend ``(n, heads, q, d)`` to ``(n, kv heads, k, d)``: result ``(n, heads, q, dv)`` and lse ``(n, heads, q)``.

    `mask` is additive and broadcasts; `causal` aligns to the start, as torch does, so q must equal k. All of one dtype,
    last axis dense, k > 0. Rows whose mask is minus infinity throughout have no defined result.
    """
    if causal and scale <= 0:
        # torch's CPU kernel masks before it scales: minus infinity would turn into NaN, or into infinity.
        query, scale = (torch.zeros_like(query), 1.0) if scale == 0 else (-query, -scale)
    if soft_cap is not None:
        return attend_capped(query, key, value, mask=mask, causal=causal, scale=scale, soft_cap=soft_cap)
    v_head_size = value.shape[-1]
    on_cpu = query.device.type == "cpu"
    if on_cpu and v_head_size != query.shape[-1]:
        # torch's CPU kernel wants one head size, and its fallback materialises all scores. Zeros change nothing.
        size = max(v_head_size, query.shape[-1])
        query, key, value = (pad(t, (0, size - t.shape[-1])) if t.shape[-1] < size else t for t in (query, key, value))
    grouped = query.shape[1] != key.shape[1]
    if with_lse and on_cpu and (flash := _cpu_flash(grouped=grouped)) is not None:
        out, lse = flash(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)
        return out[..., :v_head_size], lse
    out = scaled_dot_product_attention(query, key, value, mask, 0.0, causal, scale=scale, enable_gqa=grouped)
    lse = logsumexp(query, key, mask=mask, causal=causal, scale=scale) if with_lse else None
    return out[..., :v_head_size], lse


def _cpu_flash(*, grouped: bool) -> Any:  # noqa: ANN401  # Any: torch's operators are untyped
    """The operator behind the public function on a CPU, which has the denominators at hand; None: do without."""
    if grouped and torch.__version__ < "2.13":
        # The public function keeps grouped heads from a kernel that does not know them; here nobody does.
        return None
    return getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)


def attend_capped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float,
    soft_cap: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`attend` with a cap, for which torch's kernel has no place: multiplied out, some rows at a time."""
    outs, lses = [], []
    values = value.to(torch.promote_types(query.dtype, torch.float32)).unsqueeze(2)
    by_group = (key.shape[1], query.shape[1] // key.shape[1])
    for logits in _logits(query, key, mask=mask, causal=causal, scale=scale, soft_cap=soft_cap):
        lse = logits.logsumexp(-1)
        weights = torch.exp(logits - lse.unsqueeze(-1))
        outs.append((torch.unflatten(weights, 1, by_group) @ values).flatten(1, 2))
        lses.append(lse)
    return torch.cat(outs, dim=2).to(query.dtype), torch.cat(lses, dim=2)


def logsumexp(
    query: torch.Tensor, key: torch.Tensor, *, mask: torch.Tensor | None, causal: bool, scale: float
) -> torch.Tensor:
    """The lse of `attend`, by a second multiplication of query and key, some rows at a time: float32 or wider."""
    parts = _logits(query, key, mask=mask, causal=causal, scale=scale)
    return torch.cat([logits.logsumexp(-1) for logits in parts], dim=2)


def _logits(
    query: torch.Tensor,
    key: torch.Tensor,
    *,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float,
    soft_cap: float | None = None,
) -> Iterator[torch.Tensor]:
    """What the softmax takes, float32 or wider, ``(n, heads, rows, k)``, for some rows after the others."""
    num_heads, num_rows, num_keys = query.shape[1], query.shape[2], key.shape[2]
    by_group = (key.shape[1], num_heads // key.shape[1])
    wide = torch.promote_types(query.dtype, torch.float32)
    keys = key.to(wide).unsqueeze(2).mT
    if mask is not None:
        mask = mask.expand(query.shape[0], num_heads, num_rows, num_keys)
    columns = torch.arange(num_keys, device=query.device) if causal else None
    step = max(1, _LSE_CHUNK_ELEMENTS // max(1, query.shape[0] * num_heads * num_keys))
    for first in range(0, num_rows, step):
        rows = query[:, :, first : first + step].to(wide)
        logits = (torch.unflatten(rows, 1, by_group) @ keys).flatten(1, 2) * scale
        if soft_cap is not None:
            logits = soft_cap * torch.tanh(logits / soft_cap)
        if mask is not None:
            logits = logits + mask[:, :, first : first + step]
        if columns is not None:
            last = torch.arange(first, first + logits.shape[2], device=query.device)
            logits = logits.masked_fill(columns > last[:, None], -torch.inf)
        yield logits
