"""What FlashAttention wants once per step: lengths as running sums, without sequences that ask nothing."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention._kernel_layer import KernelPlan
from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


class FlashAttnPlan(KernelPlan):
    """The sequences that have queries.

    The others are left out: with one query at most per sequence FlashAttention 2 takes every sequence to have exactly
    one (``seqlenq_ngroups_swapped`` in ``flash_api.cpp``), and then cannot even reshape the query.
    """

    cu_seqlens_q: torch.Tensor
    cu_seqlens_k: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor | None
    max_seqlen_k: int
    window: tuple[int, int]
    """``(left, right)``, ``(-1, -1)`` for none."""
    key_rows: torch.Tensor | None
    """Which of the new keys are of these sequences; None: all of them."""

    def prepare(self) -> None:
        """Errors: `ConfigError` for ALiBi without a causal mask."""
        config, batch = self.config, self.batch
        if config.alibi and not self.causal:
            raise ConfigError(
                "alibi without a causal mask: FlashAttention's bias falls on both sides of a token, "
                "ours rises behind it",
                field="causal",
            )
        starts = batch.query_start_loc_host
        kept = [number for number in range(batch.num_seqs) if starts[number] < starts[number + 1]]
        lengths = [batch.seq_lens_host[number] for number in kept]
        device = batch.query_start_loc.device
        self.cu_seqlens_q, self.seq_lens, self.block_table = batch.query_start_loc, batch.seq_lens, batch.block_table
        self.key_rows = None
        if len(kept) < batch.num_seqs:
            index = torch.tensor(kept, dtype=torch.int64, device=device)
            first = [starts[number] for number in kept]
            self.cu_seqlens_q = _int32([*first, batch.num_actual_tokens], device)
            self.seq_lens = batch.seq_lens[index]
            self.block_table = None if batch.block_table is None else batch.block_table[index]
            if batch.block_table is None and sum(lengths) < batch.new_key_starts[-1]:
                new = batch.new_key_starts
                rows = [torch.arange(new[number], new[number + 1]) for number in kept]
                self.key_rows = torch.cat([torch.zeros(0, dtype=torch.int64), *rows]).to(device)
        self.cu_seqlens_k = _int32(accumulate(lengths, initial=0), device)
        self.max_seqlen_k = max(lengths, default=0)
        self.window = self._window()
        self._positions: torch.Tensor | None = None

    def _window(self) -> tuple[int, int]:
        width = self.config.sliding_window
        if width is None:
            return (-1, -1)
        if not self.causal:
            # The kernels take a window for none from `max_seqlen_k` on; where queries lie before all keys that is too
            # early.
            self.max_seqlen_k = max(self.max_seqlen_k, self.batch.max_query_len)
        # One that covers every key is none: FlashAttention 2 decides so itself, and its lse follows from that.
        if width > self.max_seqlen_k:
            return (-1, -1)
        return (width - 1, 0 if self.causal else width - 1)

    @property
    def positions(self) -> torch.Tensor:
        """The position of each query row in its sequence, float32 ``(rows,)``."""
        if self._positions is None:
            batch = self.batch
            starts = torch.tensor(batch.query_start_loc_host)
            shift = torch.tensor(batch.seq_lens_host) - starts[1:]
            rows = torch.arange(batch.num_actual_tokens) + shift.repeat_interleave(starts.diff())
            self._positions = rows.to(batch.query_start_loc.device, torch.float32)
        return self._positions


def _int32(numbers: Sequence[int] | accumulate[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(list(numbers), dtype=torch.int32, device=device)
