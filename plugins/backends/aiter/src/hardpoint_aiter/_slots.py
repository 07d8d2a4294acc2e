"""A step's block table token by token: AITER's page indices with pages of one token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint.attention import AttentionBatch


@dataclass(frozen=True, slots=True)
class KeySlots:
    """``starts`` (n+1,) and ``slots``, both int32: which slots of the cache each of n rows or sequences reads."""

    starts: torch.Tensor
    slots: torch.Tensor

    @classmethod
    def of(cls, batch: AttentionBatch, block_size: int, seen: Sequence[tuple[int, int, int]]) -> KeySlots:
        """`seen` are (sequence, end, low): keys 0 … end-1 of it, those before `low` unread, so of any slot."""
        table = batch.block_table
        if table is None:
            raise AssertionError("`KernelLayer` has looked")
        counts = torch.tensor([end for _, end, _ in seen], dtype=torch.int64)
        starts = torch.zeros(len(seen) + 1, dtype=torch.int64)
        torch.cumsum(counts, 0, out=starts[1:])
        token = torch.arange(int(starts[-1])) - starts[:-1].repeat_interleave(counts)
        low = torch.tensor([low for _, _, low in seen], dtype=torch.int64).repeat_interleave(counts)
        # The table may hold anything where nothing is read, and the kernel must point somewhere.
        token = torch.maximum(token, low).to(table.device)
        row = torch.tensor([number for number, _, _ in seen], dtype=torch.int64).repeat_interleave(counts)
        slots = table[row.to(table.device), token // block_size].long() * block_size + token % block_size
        return cls(starts.to(table.device, torch.int32), slots.to(torch.int32))


def by_slot(cache: torch.Tensor) -> torch.Tensor:
    """A cache indexed block, token, … as one indexed by slot; its memory order makes that a view."""
    return cache.view(-1, *cache.shape[2:])
