"""Sequences that are attended in one call: their tiles, and which key blocks each tile sees.

Tensors are made outside inference mode, whatever the caller's is: to torch's compiler those made inside are others, for
which it would compile anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint_flex_attention._family import block_lists, roomy_base, roomy_tiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hardpoint.attention._kernel_shares import Share
    from hardpoint_flex_attention._family import Family
    from hardpoint_flex_attention._plan import FlexPlan

# Further than any two positions are apart, and a sum of two fits 32 bits.
_FAR = 1 << 29


class Where(NamedTuple):
    """Where a group's keys lie: members of `Inputs`."""

    partial_num: torch.Tensor
    partial_blocks: torch.Tensor
    full_num: torch.Tensor
    full_blocks: torch.Tensor
    tiles: torch.Tensor
    base: torch.Tensor


class Group:
    """Tiles of `family.tokens` tokens. With `in_place` the family's key blocks are the cache's.

    `rows` are the query rows of all tiles, some repeated to fill a tile up, of which `valid` are the ones that count.
    """

    def __init__(
        self, plan: FlexPlan, family: Family, shares: Sequence[Share], block_size: int | None, *, in_place: bool
    ) -> None:
        self.family, self.in_place, self.block_size = family, in_place, block_size
        self._plan, self._shares = plan, shares
        size, window = family.tokens, plan.config.sliding_window
        device = plan.device
        sequence: list[int] = []
        rows: list[int] = []
        valid: list[int] = []
        firsts: list[int] = []
        counts: list[int] = []
        for index, share in enumerate(shares):
            for start in range(share.first, share.end, size):
                taken = min(size, share.end - start)
                sequence.append(index)
                firsts.append(share.position + start - share.first)
                counts.append(taken)
                valid += range(len(rows), len(rows) + taken)
                rows += [*range(start, start + taken), *[start] * (size - taken)]
        if len(sequence) == 1:
            # One tile would be compiled in as one.
            sequence, firsts, counts, rows = sequence * 2, firsts * 2, counts * 2, rows * 2

        def tensor(numbers: list[int]) -> torch.Tensor:
            return torch.tensor(numbers, dtype=torch.int64, device=device)

        self.num_tiles = len(sequence)
        self.rows = tensor(rows)
        self.valid = None if len(valid) == len(rows) else tensor(valid)
        self.valid_rows = self.rows if self.valid is None else self.rows[self.valid]
        self._sequence, first, count = tensor(sequence), tensor(firsts), tensor(counts)
        self._low = tensor([share.low for share in shares])
        self._num_keys = tensor([share.num_keys for share in shares])
        ahead = 0 if plan.causal else (_FAR if window is None else window - 1)
        behind = _FAR if window is None else window
        self.reach = ahead, behind
        length = self._num_keys[self._sequence]
        self._numbers = first, torch.full_like(first, ahead), torch.full_like(first, behind), length
        last = first + count - 1
        low, num_keys = self._low[self._sequence], self._num_keys[self._sequence]
        # What some row of a tile sees, and what all of them see.
        self._some = torch.maximum(low, first - behind + 1), torch.minimum(num_keys, last + ahead + 1)
        self._all = torch.maximum(low, last - behind + 1), torch.minimum(num_keys, first + ahead + 1)
        self._dense: Where | None = None
        self._paged: dict[int, Where] = {}
        self._unseen: torch.Tensor | None = None
        self._gathering: tuple[torch.Tensor, torch.Tensor] | None = None

    def sequences(self) -> Iterator[tuple[Share, torch.Tensor]]:
        """Each sequence with the slots (or new rows) of the keys that it sees, in the order of the valid rows."""
        for index, share in enumerate(self._shares):
            position = torch.arange(share.low, share.num_keys, device=self._low.device)
            if self.block_size is None:
                yield share, self._plan.batch.new_key_starts[share.number] + position
            else:
                blocks = self._table()[index]
                yield share, blocks[position // self.block_size] * self.block_size + position % self.block_size

    @torch.inference_mode(mode=False)
    def dense(self) -> Where:
        """Where the keys lie when they have been gathered as `gathering` says."""
        if self._dense is None:
            block = self.family.block
            blocks = (self._num_keys - self._low + block - 1) // block
            begins, total = blocks.cumsum(0) - blocks, int(blocks.sum())
            place = torch.arange(total, device=begins.device)
            owner = torch.repeat_interleave(torch.arange(len(blocks), device=begins.device), blocks)
            base = roomy_base(total, begins.device)
            base[:total] = self._low[owner] + (place - begins[owner]) * block
            self._dense = self._where(
                self._low,
                lambda sequence, logical: begins[sequence] + logical,
                total,
                torch.zeros_like(self._sequence),
                base,
            )
        return self._dense

    @torch.inference_mode(mode=False)
    def paged(self, num_blocks: int) -> Where:
        """Where they lie in a cache of so many blocks."""
        found = self._paged.get(num_blocks)
        if found is None:
            table = self._table()
            base, by_sequence = self._positions(table, num_blocks)
            found = self._where(
                torch.zeros_like(self._low),
                lambda sequence, logical: table[sequence, logical],
                num_blocks,
                self._sequence * (num_blocks if by_sequence else 0),
                base,
            )
            self._paged[num_blocks] = found
        return found

    def _table(self) -> torch.Tensor:
        table = self._plan.batch.block_table
        assert table is not None  # noqa: S101  # for the type checker: the plan has looked
        numbers = torch.tensor([share.number for share in self._shares], device=table.device)
        return table[numbers].long()

    def _positions(self, table: torch.Tensor, num_blocks: int) -> tuple[torch.Tensor, bool]:
        """The position of each block's first token: once, or by sequence where two have a block at different places."""
        column = torch.arange(table.shape[1], device=table.device)
        owned = (column < -(-self._num_keys // self.family.block)[:, None]) & (
            column >= (self._low // self.family.block)[:, None]
        )
        blocks = table[owned]
        positions = (column * self.family.block).expand_as(table)[owned]
        base = roomy_base(num_blocks, table.device)
        base[blocks] = positions.int()
        if bool((base[blocks] == positions).all()):
            return base, False
        sequence = torch.arange(len(table), device=table.device)[:, None].expand_as(table)[owned]
        base = roomy_base(len(table) * num_blocks, table.device)
        base[sequence * num_blocks + blocks] = positions.int()
        return base, True

    def _where(
        self,
        origin: torch.Tensor,
        number: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        num_blocks: int,
        begins: torch.Tensor,
        base: torch.Tensor,
    ) -> Where:
        """Which blocks each tile sees in part and in full.

        `origin` is the position at which a sequence's first block begins; `number` gives a block's own number, of
        `num_blocks`; `begins` says per tile where its part of `base` does.
        """
        block, sequence = self.family.block, self._sequence
        start = origin[sequence]
        low, high = (self._some[0] - start) // block, (self._some[1] - start + block - 1) // block
        full_low = torch.maximum(low, (self._all[0] - start + block - 1) // block)
        full_high = (self._all[1] - start) // block
        none = full_high <= full_low
        full_low, full_high = torch.where(none, high, full_low), torch.where(none, high, full_high)
        before = full_low - low
        full_num, partial_num = full_high - full_low, before + high - full_high

        def lists(count: torch.Tensor, logical: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
            # Sizes of one would be compiled in: two columns at least.
            column = torch.arange(max(2, int(count.max())), device=start.device)[None]
            at = torch.minimum(logical(column).clamp(min=0), (high - 1).clamp(min=0)[:, None])
            return block_lists(number(sequence[:, None], at).int(), num_blocks)

        partial = lists(
            partial_num,
            lambda column: torch.where(
                column < before[:, None], low[:, None] + column, (full_high - before)[:, None] + column
            ),
        )
        full = lists(full_num, lambda column: full_low[:, None] + column)
        counts = (counted.int().view(-1, 1, 1) for counted in (partial_num, full_num))
        return Where(next(counts), partial, next(counts), full, roomy_tiles([begins, *self._numbers]), base)

    @torch.inference_mode(mode=False)
    def unseen(self) -> torch.Tensor:
        """Slots of the cache's blocks in these lists whose tokens no row sees: what lies there may be NaN."""
        if self._unseen is None:
            size, table = self.family.block, self._table()
            first, last = self._low // size, (self._num_keys - 1) // size
            token = torch.arange(size, device=table.device)
            each = torch.arange(len(table), device=table.device)
            parts = []
            for block, beyond in ((first, False), (last, True)):
                position = block[:, None] * size + token
                outside = position >= self._num_keys[:, None] if beyond else position < self._low[:, None]
                parts.append((table[each, block][:, None] * size + token)[outside])
            self._unseen = torch.cat(parts)
        return self._unseen

    @torch.inference_mode(mode=False)
    def gathering(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Which slots (or new rows) to copy to lay the keys out densely, and which copied rows are to be zeros."""
        if self._gathering is None:
            block, device = self.family.block, self._low.device
            lengths = self._num_keys - self._low
            padded = (lengths + block - 1) // block * block
            owner = torch.repeat_interleave(torch.arange(len(padded), device=device), padded)
            offset = torch.arange(len(owner), device=device) - (padded.cumsum(0) - padded)[owner]
            empty = (offset >= lengths[owner]).nonzero().flatten()
            # Beyond a sequence's keys its last one is copied, and then overwritten.
            position = torch.minimum(offset, lengths[owner] - 1) + self._low[owner]
            if self.block_size is None:
                starts = self._plan.batch.new_key_starts
                begins = torch.tensor([starts[share.number] for share in self._shares], device=device)
                source = begins[owner] + position
            else:
                table = self._table()
                source = table[owner, position // self.block_size] * self.block_size + position % self.block_size
            self._gathering = source, empty
        return self._gathering
