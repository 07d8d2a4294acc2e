"""One call of a compiled function: queries brought into tiles, and the results back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint_flex_attention._compiled import call
from hardpoint_flex_attention._family import Inputs

if TYPE_CHECKING:
    from hardpoint_flex_attention._group import Group, Where
    from hardpoint_flex_attention._layer import FlexAttentionLayer


def run_group(
    layer: FlexAttentionLayer,
    group: Group,
    where: Where,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Result ``(valid rows, heads, v_head_size)`` and, where the kernel has it, lse ``(valid rows, heads)``."""
    family = group.family
    shape = (group.num_tiles, family.tokens, family.num_kv_heads, family.group_size)
    with torch.inference_mode(mode=False), torch.no_grad():
        # Copied even where nothing moves: to the compiler a tensor of the caller's mode is another one.
        rows = torch.empty(len(group.rows), *query.shape[1:], dtype=query.dtype, device=query.device)
        rows.copy_(query[group.rows])
        tiles = rows.view(*shape, -1).transpose(1, 2).flatten(2, 3)
        if family.rows > tiles.shape[2]:
            tiles = torch.nn.functional.pad(tiles, (0, 0, 0, family.rows - tiles.shape[2]))
        inputs = Inputs(
            tiles.contiguous(),
            key,
            value,
            where.partial_num,
            where.partial_blocks,
            where.full_num,
            where.full_blocks,
            where.tiles,
            where.base,
            layer.slopes,
            layer.parameters,
        )
        out, lse = call(family, inputs)
    count = family.tokens * family.group_size
    found = torch.unflatten(out[:, :, :count], 2, shape[1:2] + shape[3:]).transpose(1, 2).flatten(0, 1).flatten(1, 2)
    found_lse = None
    if lse is not None:
        found_lse = (
            torch.unflatten(lse[:, :, :count], 2, shape[1:2] + shape[3:]).transpose(1, 2).flatten(0, 1).flatten(1, 2)
        )
    if group.valid is None:
        return found, found_lse
    return found[group.valid], None if found_lse is None else found_lse[group.valid]
