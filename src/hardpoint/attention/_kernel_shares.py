"""Which rows of a step see which keys, sequence by sequence, and what rows that see nothing are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from hardpoint.attention._batch import AttentionBatch
    from hardpoint.attention._config import AttentionConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One sequence's share of the step: query rows ``first … end-1``, and the keys ``low … num_keys-1`` that they see.

    `position` is that of the first row. Rows that see nothing are left out.
    """

    number: int
    first: int
    end: int
    position: int
    low: int
    num_keys: int


def shares_of(config: AttentionConfig, batch: AttentionBatch) -> tuple[tuple[slice, ...], tuple[Share, ...]]:
    """The rows that see nothing, and each sequence's share of the others (none where there are no others)."""
    blank: list[slice] = []
    shares: list[Share] = []
    window, causal = config.sliding_window, config.causal and batch.causal
    starts = batch.query_start_loc_host
    for number, num_keys in enumerate(batch.seq_lens_host):
        first, end = starts[number], starts[number + 1]
        # Queries align to the end: with more queries than keys the first ones lie before all keys.
        position = num_keys - (end - first)
        blind = 0
        if num_keys == 0:
            blind = end - first
        elif causal:
            blind = max(0, -position)
        elif window is not None:
            blind = max(0, 1 - window - position)
        if blind:
            blank.append(slice(first, min(first + blind, end)))
        if first + blind < end:
            position += blind
            low = 0 if window is None else max(0, position - window + 1)
            shares.append(
                Share(number=number, first=first + blind, end=end, position=position, low=low, num_keys=num_keys)
            )
    return tuple(blank), tuple(shares)


def fill_blank(
    out: torch.Tensor,
    lse: torch.Tensor | None,
    blank: Iterable[slice],
    num_tokens: int,
    sinks: torch.Tensor | None,
) -> None:
    """Zeros for rows that see nothing and for padding (the rows from `num_tokens` on), and their lse."""
    padding = slice(num_tokens, None)
    for rows in (*blank, padding):
        out[rows] = 0
        if lse is not None:
            lse[:, rows] = -float("inf") if sinks is None or rows is padding else sinks.view(-1, 1)
