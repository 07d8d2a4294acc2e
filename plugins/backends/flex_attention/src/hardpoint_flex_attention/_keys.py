"""Keys and values as the kernel wants them: in the cache's own memory where that will do, else gathered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint_flex_attention._family import plain

if TYPE_CHECKING:
    from hardpoint_flex_attention._group import Group


def in_place(group: Group, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The cache as the kernel reads it, ``(1, heads, tokens, content)``; None: it must be gathered.

    The kernel multiplies what nobody sees by zero, and zero times NaN is NaN: where unused slots of a value's block
    hold such, the blocks are gathered and the slots cleared. (The key's are no matter: their logits are replaced.)
    """
    if not group.in_place or not key.is_contiguous() or not value.is_contiguous():
        return None
    if not bool(value.flatten(0, 1).index_select(0, group.unseen()).isfinite().all()):
        return None
    return _as_heads(key.flatten(0, 1)), _as_heads(value.flatten(0, 1))


@torch.inference_mode(mode=False)
def dense_rows(group: Group, source: torch.Tensor) -> torch.Tensor:
    """A group's keys or values from the cache, or from the new rows, laid out as `Group.dense` says."""
    index, empty = group.gathering()
    rows = by_token(source)
    if isinstance(rows, tuple):
        cache, size = rows
        dense = cache[index // size, index % size]
    else:
        dense = rows.index_select(0, index)
    dense.index_fill_(0, empty, 0)
    return _as_heads(dense)


def by_token(source: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, int]:
    """``(tokens, heads, content)`` of new rows or of a cache whose strides allow it; else the cache and its block."""
    if source.ndim == 3:
        return source
    if source.stride(0) == source.shape[1] * source.stride(1):
        return source.flatten(0, 1)
    return source, source.shape[1]


def _as_heads(rows: torch.Tensor) -> torch.Tensor:
    """``(tokens, heads, content)`` as ``(1, heads, tokens, content)``."""
    return plain(rows.transpose(0, 1)[None])
