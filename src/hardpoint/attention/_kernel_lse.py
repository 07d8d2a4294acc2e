"""The logarithm of the softmax's denominator, worked out beside a kernel that does not return it.

Query and key are multiplied a second time, sequence by sequence: an engine asks for it where it merges parts of a
prefix, not in every step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from hardpoint.attention._kernel_layer import KernelLayer, KernelPlan

_ROWS: Final = 256
"""Query rows at a time, which bounds the scratch memory."""


def log_denominator(
    layer: KernelLayer,
    plan: KernelPlan,
    query: torch.Tensor,
    key: torch.Tensor | None,
    kv_cache: Sequence[torch.Tensor] | None,
) -> torch.Tensor:
    """Float32 ``(num_heads, rows)``. A cache is indexed block, token, [head,] content; else `key` has all the keys."""
    import torch

    config, batch = layer.config, plan.batch
    lse = torch.full((config.num_heads, batch.num_actual_tokens), -torch.inf, device=query.device)
    for number, num_keys in enumerate(batch.seq_lens_host):
        first, end = batch.query_start_loc_host[number : number + 2]
        if first == end or num_keys == 0:
            continue
        if kv_cache is None or batch.block_table is None:
            start = batch.new_key_starts[number]
            keys = query[:0] if key is None else key[start : start + num_keys]
            low = 0
        else:
            keys, low = _gathered(layer, plan, kv_cache[0], number)
        keys = keys.float().reshape(len(keys), config.num_kv_heads, config.head_size)
        factor = layer.scale if kv_cache is None or layer.key_scale is None else layer.scale * layer.key_scale
        for row in range(first, end, _ROWS):
            last = min(row + _ROWS, end)
            rows = query[row:last].float().view(last - row, config.num_kv_heads, config.group_size, config.head_size)
            logits = torch.einsum("qhgd,khd->hgqk", rows, keys) * factor
            if config.soft_cap is not None:
                logits = config.soft_cap * torch.tanh(logits / config.soft_cap)
            position = torch.arange(num_keys - end + row, num_keys - end + last, device=query.device)[:, None]
            distance = torch.arange(low, num_keys, device=query.device) - position
            logits = logits.flatten(0, 1)
            if layer.slopes is not None:
                logits = logits + layer.slopes[:, None, None] * distance
            hidden = torch.zeros_like(distance, dtype=torch.bool)
            if plan.causal:
                hidden |= distance > 0
            if config.sliding_window is not None:
                hidden |= distance.abs() >= config.sliding_window
            lse[:, row:last] = logits.masked_fill(hidden, -torch.inf).logsumexp(-1)
    return lse if layer.sinks is None else torch.logaddexp(lse, layer.sinks[:, None])


def _gathered(layer: KernelLayer, plan: KernelPlan, cache: torch.Tensor, number: int) -> tuple[torch.Tensor, int]:
    """The keys of one sequence that any of its rows sees, and the position of the first."""
    batch, config = plan.batch, layer.config
    if batch.block_table is None:
        raise AssertionError("`KernelLayer` has looked")
    num_keys, size = batch.seq_lens_host[number], cache.shape[1]
    first, end = batch.query_start_loc_host[number : number + 2]
    window = config.sliding_window
    low = 0 if window is None else max(0, num_keys - (end - first) - window + 1)
    block = low // size
    blocks = batch.block_table[number, block : -(-num_keys // size)].long()
    keys = cache[blocks].flatten(0, 1)
    return keys[low - block * size : num_keys - block * size], low
