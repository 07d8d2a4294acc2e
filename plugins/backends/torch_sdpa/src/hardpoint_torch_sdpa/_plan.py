"""What is worked out once per step: which query rows attend to which keys, in which calls, under which mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention import DTYPE_SIZE_BYTES
from hardpoint.attention._kernel_layer import KernelPlan
from hardpoint_torch_sdpa._cache import Blocks
from hardpoint_torch_sdpa._masks import MaskTemplate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hardpoint.attention._kernel_shares import Share

# Gathered bytes of one call, which bound the scratch memory. Larger groups of sequences fall out of a CPU's caches
# between gathering and attending (measured: up to a fifth slower alone); smaller ones make threads wait for one another
# more often (measured: half slower on a machine that others use too).
_GROUP_BYTES_PER_THREAD = 32 << 20
_GROUP_BYTES = 256 << 20
# Padding that costs less than another call would.
_PADDING_BYTES = 512 << 10


@dataclass(slots=True)
class Decodes:
    """Sequences with one row each, attended in one call: every row sees all of its keys."""

    rows: slice | torch.Tensor
    blocks: Blocks
    mask: torch.Tensor | None
    """``(n, 1, 1, k)``, additive; None where all keys count."""
    distance: torch.Tensor
    """Key position minus query position, ``(n, 1, 1, k)`` or (all alike) ``(1, k)``."""


@dataclass(slots=True)
class Alone:
    """One sequence, attended by itself. `blocks` or `keys` say where its keys are, from `share.low` on."""

    share: Share
    blocks: Blocks | None
    keys: slice | None


@dataclass(slots=True)
class Equals:
    """Neighbours of equal length without a cache, each attending to its own rows, in one call."""

    rows: slice
    keys: slice
    count: int


Job = Decodes | Alone | Equals


class SdpaPlan(KernelPlan):
    """A step's calls. Those through the cache depend on its block size, so they are made when that is known."""

    def prepare(self) -> None:
        """Work out the calls. Errors: `ConfigError` where the batch does not fit the config."""
        config, batch = self.config, self.batch
        self.device = batch.query_start_loc.device
        self._by_block_size: dict[int, list[Job]] = {}
        self._without_cache: list[Job] | None = None
        reach = batch.max_seq_len + batch.max_query_len
        self.masks = MaskTemplate(causal=self.causal, window=config.sliding_window, reach=reach, device=self.device)
        if batch.block_table is None:
            self.jobs(None)
        elif config.block_size is not None:
            self.jobs(config.block_size)

    def jobs(self, block_size: int | None) -> list[Job]:
        """The calls of the step, through a cache of that block size or (None) over the new keys alone."""
        if block_size is None:
            if self._without_cache is None:
                self._without_cache = list(self._jobs_without_cache())
            return self._without_cache
        found = self._by_block_size.get(block_size)
        if found is None:
            found = self._by_block_size[block_size] = list(self._jobs_with_cache(block_size))
        return found

    def _jobs_without_cache(self) -> Iterator[Job]:
        self.check_keys(None)
        starts, sequences = self.batch.new_key_starts, self.shares
        done = 0
        while done < len(sequences):
            sequence = sequences[done]
            equals = self._equal_neighbours(done)
            begin = starts[sequence.number]
            if equals > 1:
                keys = slice(begin, begin + equals * sequence.num_keys)
                yield Equals(slice(sequence.first, sequences[done + equals - 1].end), keys, equals)
            else:
                yield Alone(sequence, None, slice(begin + sequence.low, begin + sequence.num_keys))
            done += equals

    def _equal_neighbours(self, index: int) -> int:
        config, sequences = self.config, self.shares
        if config.batch_invariant or config.alibi or config.sliding_window is not None:
            return 1
        count, length = 0, sequences[index].num_keys
        for sequence in sequences[index:]:
            # Position 0: as many queries as keys, so that torch's own causal mask is right.
            if sequence.num_keys != length or sequence.position != 0:
                break
            expected = sequences[index].number + count, sequences[index].first + count * length
            if (sequence.number, sequence.first) != expected:
                break
            count += 1
        return max(1, count)

    def _jobs_with_cache(self, block_size: int) -> Iterator[Job]:
        self.check_keys(block_size)
        single = [] if self.config.batch_invariant else [s for s in self.shares if s.end - s.first == 1]
        for group in self._grouped(single, block_size):
            yield self._decodes(group, block_size)
        for sequence in self.shares:
            if self.config.batch_invariant or sequence.end - sequence.first > 1:
                yield Alone(sequence, self._blocks([sequence], block_size), None)

    def _grouped(self, sequences: list[Share], block_size: int) -> Iterator[list[Share]]:
        """Sequences of about one length together: padding stays under an eighth of what is read, or is small."""
        config = self.config
        sizes = [_num_blocks(sequence, block_size) for sequence in sequences]
        order = range(len(sequences))
        if len(set(sizes)) > 1:
            order = sorted(order, key=sizes.__getitem__, reverse=True)  # type: ignore[assignment]  # both are sequences
        block_bytes = (
            block_size
            * config.num_kv_heads
            * (config.head_size + config.v_head_size)
            * max(DTYPE_SIZE_BYTES[config.dtype], DTYPE_SIZE_BYTES[config.cache_dtype])
        )
        limit = _GROUP_BYTES
        if self.device.type == "cpu":
            limit = min(limit, _GROUP_BYTES_PER_THREAD * torch.get_num_threads())
        group: list[int] = []
        read = 0
        for index in order:
            width = sizes[group[0]] if group else sizes[index]
            padded = width * (len(group) + 1)
            read += sizes[index]
            padding = padded - read
            if group and (
                padded * block_bytes > limit or (padding * 8 > read and padding * block_bytes > _PADDING_BYTES)
            ):
                yield [sequences[i] for i in sorted(group)]
                group, read = [], sizes[index]
            group.append(index)
        if group:
            yield [sequences[i] for i in sorted(group)]

    def _decodes(self, group: list[Share], block_size: int) -> Decodes:
        blocks = self._blocks(group, block_size)
        firsts = [sequence.first for sequence in group]
        rows: slice | torch.Tensor
        if firsts[-1] - firsts[0] == len(firsts) - 1:
            rows = slice(firsts[0], firsts[-1] + 1)
        else:
            rows = torch.tensor(firsts, device=self.device)
        if blocks.uniform:
            return Decodes(rows, blocks, None, torch.arange(1 - blocks.lengths[0], 1, device=self.device)[None])
        seen = blocks.seen(block_size)
        token = torch.arange(seen.shape[1], device=self.device)
        last = torch.tensor(blocks.offsets, device=self.device) + torch.tensor(blocks.lengths, device=self.device) - 1
        mask = torch.zeros(seen.shape, device=self.device).masked_fill_(~seen, -torch.inf)
        return Decodes(rows, blocks, mask[:, None, None], (token - last[:, None])[:, None, None])

    def _blocks(self, group: Sequence[Share], block_size: int) -> Blocks:
        table = self.batch.block_table
        assert table is not None  # noqa: S101  # for the type checker: `check_keys` has looked
        width = max(_num_blocks(sequence, block_size) for sequence in group)
        firsts = [sequence.low // block_size for sequence in group]
        offsets = tuple(sequence.low % block_size for sequence in group)
        lengths = tuple(sequence.num_keys - sequence.low for sequence in group)
        if len(group) == 1:
            sequence = group[0]
            return Blocks(table[sequence.number, firsts[0] : firsts[0] + width][None].long(), offsets, lengths)
        # Beyond its own blocks a sequence repeats the last of them: what the table holds there may be no block.
        own = [-(-sequence.num_keys // block_size) - 1 for sequence in group]
        column = torch.tensor(firsts, device=self.device)[:, None] + torch.arange(width, device=self.device)
        column = torch.minimum(column, torch.tensor(own, device=self.device)[:, None])
        numbers = torch.tensor([sequence.number for sequence in group], device=self.device)
        return Blocks(table[numbers[:, None], column].long(), offsets, lengths)


def _num_blocks(sequence: Share, block_size: int) -> int:
    return -(-sequence.num_keys // block_size) - sequence.low // block_size
