"""A step's block table in FlashInfer's form: the pages of all sequences behind one another, with running sums."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

if TYPE_CHECKING:
    from hardpoint.attention import AttentionBatch, AttentionConfig


@dataclass(frozen=True, slots=True)
class Pages:
    """The sequences of a step that have queries.

    Running sums and lengths are on the host: planning reads them there, and copies them itself.
    """

    query_starts: torch.Tensor
    page_starts: torch.Tensor
    pages: torch.Tensor
    """On the device."""
    last_page_lengths: torch.Tensor
    lengths: torch.Tensor
    is_decode: bool
    """Every sequence has exactly one query."""

    @classmethod
    def of(cls, config: AttentionConfig, batch: AttentionBatch) -> Pages | None:
        """None for a step without a block table."""
        table, size = batch.block_table, config.block_size
        if table is None or size is None:
            return None
        starts = batch.query_start_loc_host
        kept = [number for number in range(batch.num_seqs) if starts[number] < starts[number + 1]]
        queries = [starts[number + 1] - starts[number] for number in kept]
        lengths = [batch.seq_lens_host[number] for number in kept]
        counts = torch.tensor([-(-length // size) for length in lengths], dtype=torch.int64)
        page_starts = torch.zeros(len(kept) + 1, dtype=torch.int64)
        torch.cumsum(counts, 0, out=page_starts[1:])
        column = torch.arange(int(page_starts[-1])) - page_starts[:-1].repeat_interleave(counts)
        if (window := config.sliding_window) is not None:
            # Pages wholly before a sequence's window may hold anything, their numbers too: the kernels skip their
            # tokens, and until then need some page to point at.
            first = [max(0, n - q - window + 1) // size for n, q in zip(lengths, queries, strict=True)]
            needed = torch.tensor(first, dtype=torch.int64).repeat_interleave(counts)
            column = torch.maximum(column, needed)
        row = torch.tensor(kept, dtype=torch.int64).repeat_interleave(counts)
        pages = table[row.to(table.device), column.to(table.device)]
        last = [length - (-(-length // size) - 1) * size if length else 0 for length in lengths]
        return cls(
            query_starts=torch.tensor(list(accumulate(queries, initial=0)), dtype=torch.int32),
            page_starts=page_starts.to(torch.int32),
            pages=pages.to(torch.int32),
            last_page_lengths=torch.tensor(last, dtype=torch.int32),
            lengths=torch.tensor(lengths, dtype=torch.int32),
            is_decode=bool(kept) and max(queries) == 1,
        )
