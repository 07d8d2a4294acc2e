"""The denominators where the compiled kernel keeps them to itself: by a second multiplication of query and key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

if TYPE_CHECKING:
    from hardpoint_flex_attention._group import Group
    from hardpoint_flex_attention._layer import FlexAttentionLayer

_CHUNK_ELEMENTS = 1 << 22


def logsumexp(
    layer: FlexAttentionLayer, group: Group, query: torch.Tensor, keys: torch.Tensor | tuple[torch.Tensor, int]
) -> torch.Tensor:
    """The lse of a group's valid rows, without sinks: float32 ``(rows, heads)``."""
    config = layer.config
    by_group = (config.num_kv_heads, config.group_size)
    parts = []
    for share, index in group.sequences():
        if isinstance(keys, tuple):
            cache, size = keys
            own = cache[index // size, index % size]
        else:
            own = keys[index]
        own = own.float().permute(1, 2, 0)
        there = torch.arange(share.low, share.num_keys, device=query.device)
        step = max(1, _CHUNK_ELEMENTS // (config.num_heads * len(there)))
        for first in range(share.first, share.end, step):
            rows = torch.unflatten(query[first : min(first + step, share.end)].float(), 1, by_group)
            # (kv heads, rows x group, keys)
            logits = rows.transpose(0, 1).flatten(1, 2) @ own * layer.scale
            logits = torch.unflatten(logits, 1, (len(rows), config.group_size)).permute(1, 0, 2, 3).flatten(1, 2)
            if config.soft_cap is not None:
                logits = config.soft_cap * torch.tanh(logits / config.soft_cap)
            here = share.position + torch.arange(first, first + len(rows), device=query.device) - share.first
            distance = there - here[:, None]
            if config.alibi:
                logits = logits + layer.slopes[:, None] * distance[:, None]
            ahead, behind = group.reach
            hidden = (distance > ahead) | (distance <= -behind)
            parts.append(logits.masked_fill(hidden[:, None], -torch.inf).logsumexp(-1))
    return torch.cat(parts)
