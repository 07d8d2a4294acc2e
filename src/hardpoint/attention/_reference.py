"""The definition of the right answer, in plain float64 torch: one query token at a time, over the keys it may see.

It is meant to be read and compared with, not to be fast. Whatever a token does not see is never touched, so nothing
there (unused slots, padding, other sequences, NaN) can have an influence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint.attention._kernel_checks import check_per_head, check_scales
from hardpoint.attention._reference_cache import StoredKeys, check_shape, new_keys, split, write_kv_cache
from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from hardpoint.attention._batch import AttentionBatch
    from hardpoint.attention._config import AttentionConfig
    from hardpoint.attention._contract import KVCacheSpec


def reference_attention(
    config: AttentionConfig,
    batch: AttentionBatch,
    query: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    kv_cache: Sequence[torch.Tensor] | None = None,
    *,
    scale: float,
    sinks: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    key_scale: float | None = None,
    value_scale: float | None = None,
    spec: KVCacheSpec | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `AttentionLayer.forward` must give: float64 ``(num_tokens, num_heads, v_head_size)`` and lse, on the CPU.

    Changes nothing: where there is a cache, `key` and `value` are written to a copy, rounded as its storage rounds, and
    keys are read from there only (`write_kv_cache` writes the real one). Cache tensors are indexed in the order of
    `CacheTensorSpec.axes`; without `spec` that is block, head, token, content (latent form: block, token, content).
    Padding rows give zeros and an lse of minus infinity. Errors: `ConfigError` for arguments that do not fit.
    """
    import torch

    check_per_head(config, sinks=sinks, alibi_slopes=alibi_slopes)
    check_scales(config, key_scale=key_scale, value_scale=value_scale)
    check_shape("query", query, (config.num_heads, config.head_size), batch.num_actual_tokens)
    new = new_keys(config, batch, key, value)
    stored = None
    if kv_cache is not None:
        copies = [tensor.detach().cpu().clone() for tensor in kv_cache]
        write_kv_cache(config, batch, key, value, copies, key_scale=key_scale, value_scale=value_scale, spec=spec)
        stored = StoredKeys(config, copies, key_scale, value_scale, spec)
    elif new is None:
        raise ConfigError("neither new keys nor a cache to read", field="key")

    causal = config.causal and batch.causal
    rows = query.detach().cpu().double()
    sinks, alibi_slopes = (None if t is None else t.detach().cpu().double() for t in (sinks, alibi_slopes))
    out = torch.zeros(len(rows), config.num_heads, config.v_head_size, dtype=torch.float64)
    lse = torch.full((config.num_heads, len(rows)), -torch.inf, dtype=torch.float64)
    for number, num_keys in enumerate(batch.seq_lens_host):
        first, end = batch.query_start_loc_host[number : number + 2]
        if first == end:
            continue
        # The first query of a sequence sees the oldest key that any of them sees.
        oldest, _ = _visible(num_keys - (end - first), num_keys, causal=causal, window=config.sliding_window)
        if stored is not None:
            keys, values = stored.read(batch, number, oldest, num_keys)
        else:
            keys, values = _of_sequence(config, batch, new, number, oldest)
        for row in range(first, end):
            position = num_keys - end + row
            low, high = _visible(position, num_keys, causal=causal, window=config.sliding_window)
            out[row], lse[:, row] = _attend(
                rows[row],
                keys[:, low - oldest : high - oldest],
                values[:, low - oldest : high - oldest],
                scale=scale,
                soft_cap=config.soft_cap,
                bias=None if alibi_slopes is None else alibi_slopes[:, None] * (torch.arange(low, high) - position),
                sinks=sinks,
            )
    return out, lse


def _visible(position: int, num_keys: int, *, causal: bool, window: int | None) -> tuple[int, int]:
    """The keys ``low … high-1`` that a query at `position` sees. A position may be negative in cross attention."""
    low = 0 if window is None else max(0, position - window + 1)
    high = num_keys
    if causal:
        high = min(high, position + 1)
    elif window is not None:
        high = min(high, position + window)
    return low, max(low, high)


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    scale: float,
    soft_cap: float | None,
    bias: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token: query ``(num_heads, d)``, keys and values ``(num_kv_heads, n, …)``, all of them seen; n may be 0."""
    import torch

    by_group = (keys.shape[0], query.shape[0] // keys.shape[0], -1)
    logits = (query.view(by_group) @ keys.transpose(1, 2)).flatten(0, 1) * scale
    if soft_cap is not None:
        logits = soft_cap * torch.tanh(logits / soft_cap)
    if bias is not None:
        logits = logits + bias
    everything = logits if sinks is None else torch.cat([logits, sinks[:, None]], dim=1)
    lse = torch.logsumexp(everything, dim=1)
    weights = torch.exp(logits - lse[:, None])
    return (weights.view(by_group) @ values).flatten(0, 1), lse


def _of_sequence(
    config: AttentionConfig, batch: AttentionBatch, new: tuple[torch.Tensor, ...] | None, number: int, oldest: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Without a cache: keys and values of one sequence from position `oldest` on, ``(num_kv_heads, n, …)``."""
    first, end = batch.new_key_starts[number : number + 2]
    if new is None or end - first != batch.seq_lens_host[number]:
        raise ConfigError(
            f"sequence {number}: {end - first} new keys of {batch.seq_lens_host[number]}, and no cache for the rest",
            field="seq_lens",
        )
    return split(config, [rows[first + oldest : end].transpose(0, 1) for rows in new])
