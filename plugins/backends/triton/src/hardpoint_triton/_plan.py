"""What is worked out once per step: which programs there are, and where they find their sequences.

Short queries (decode, speculation) are one program each and may be split over several; longer ones are cut into tiles.
Everything that a kernel reads of the step lies in memory of the plan's own, so that an update changes no address.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention._kernel_checks import check_table
from hardpoint.attention._kernel_forward import OpaquePlan
from hardpoint.errors import ConfigError
from hardpoint_triton._hardware import Hardware, hardware_of
from hardpoint_triton._tiles import DECODE, PREFILL, Part, Tile, choose, padded, split_head, split_latent

if TYPE_CHECKING:
    from hardpoint.attention import AttentionBatch, AttentionConfig

# Fewer keys than this are not worth a program of their own, which must be merged again.
_KEYS_PER_SPLIT = 256
_KEYS_PER_SPLIT_INTERPRETED = 16
_MAX_SPLITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How the heads of a config lie in a tile."""

    key: Part
    value: Part
    tile: Tile
    block_m: int
    row_heads: int
    """Query heads per query token in a tile."""
    tokens: int
    """Query tokens in a tile."""
    head_blocks: int
    """Tiles over the query heads of one key head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Programs of one launch. `work` is int32 ``(count, 2)``: an item's sequence, and its first query token."""

    shape: Shape
    work: torch.Tensor
    num_splits: int

    @property
    def count(self) -> int:
        """Programs, for each head and split."""
        return self.work.shape[0]


def shape_of(config: AttentionConfig, hardware: Hardware, phase: str) -> Shape:
    """How the heads of a config lie in the tiles of a phase. Depends on nothing of the batch."""
    if config.kind == "mla_attention":
        key = split_latent(config.kv_lora_rank or 0, config.qk_rope_head_dim or 0)
        value = Part(key.first, key.first_padded)
    else:
        key, value = split_head(config.head_size), split_head(config.v_head_size)
    dtype_bytes = 4 if config.dtype == "float32" else 2
    tile = choose(hardware.arch, phase, dtype_bytes, max(key.width, value.width))
    block_m = tile.block_m if phase == PREFILL else min(tile.block_m, padded(config.group_size))
    row_heads = min(config.group_size, block_m)
    return Shape(
        key=key,
        value=value,
        tile=tile,
        block_m=block_m,
        row_heads=row_heads,
        tokens=block_m // row_heads,
        head_blocks=-(-config.group_size // row_heads),
    )


class TritonPlan(OpaquePlan):
    """A step's programs. `hardware`: for another device than the batch's own, to compile and not to run."""

    def __init__(self, config: AttentionConfig, batch: AttentionBatch, hardware: Hardware | None = None) -> None:
        super().__init__(config)
        self.device = batch.query_start_loc.device
        self.hardware = hardware_of(self.device) if hardware is None else hardware
        self.decode = shape_of(config, self.hardware, DECODE)
        self.prefill = shape_of(config, self.hardware, PREFILL)
        self.is_captured = False
        """Set by a forward that a graph was being captured of: from then on nothing of the launches may change."""
        self._build(batch)

    def update(self, batch: AttentionBatch) -> None:
        """Take the next step's batch in place. A batch that does not fit in makes the plan anew, at other addresses.

        Errors: `ConfigError` where it does not fit and a graph was captured: the graph would go on with the old ones.
        """
        refusal = self._refusal(batch)
        if refusal is None:
            self._read_host(batch)
            self._fill(batch)
            return
        if self.is_captured:
            raise ConfigError(f"the captured graph cannot replay this batch: {refusal}", field="batch")
        self._build(batch)

    def _refusal(self, batch: AttentionBatch) -> str | None:
        """Why the batch cannot be taken in place."""
        if not self._all_short:
            return "graphs are replayed of steps whose queries are all short"
        if batch.max_query_len > self.decode.tokens:
            return f"a query of {batch.max_query_len} tokens; the plan has room for {self.decode.tokens}"
        if batch.num_seqs > self._capacity:
            return f"{batch.num_seqs} sequences; the plan has room for {self._capacity}"
        if batch.causal != self._batch_causal:
            return f"causal={batch.causal}; the plan has {self._batch_causal}"
        for name, ours, theirs in (
            ("kv_start_loc", self._own_key_starts, batch.kv_start_loc),
            ("block_table", self.block_table, batch.block_table),
            ("slot_mapping", self.slots, batch.slot_mapping),
        ):
            if (ours is None) != (theirs is None):
                return f"{name} is {'missing' if theirs is None else 'new'}"
        if batch.new_key_starts[-1] > self._slot_capacity:
            return f"{batch.new_key_starts[-1]} new keys; the plan has room for {self._slot_capacity}"
        if self.block_table is not None and batch.block_table is not None:
            wider = batch.block_table.shape[1]
            if wider > self.block_table.shape[1]:
                return f"a block_table of {wider} columns; the plan has room for {self.block_table.shape[1]}"
        return None

    def _read_host(self, batch: AttentionBatch) -> None:
        self.batch = batch
        self.num_tokens = batch.num_actual_tokens
        if batch.block_table is not None and self.config.block_size is not None:
            check_table(batch, self.config.block_size)

    def _build(self, batch: AttentionBatch) -> None:
        self._batch_causal = batch.causal
        self.causal = self.config.causal and batch.causal
        self._capacity, self._slot_capacity = batch.num_seqs, batch.new_key_starts[-1]
        device = self.device

        def room(like: torch.Tensor, *shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=like.dtype, device=device)

        self.query_starts = room(batch.query_start_loc, self._capacity + 1)
        self.seq_lens = room(batch.seq_lens, self._capacity)
        own = batch.kv_start_loc
        self._own_key_starts = None if own is None else room(own, self._capacity + 1)
        self.key_starts = self.query_starts if self._own_key_starts is None else self._own_key_starts
        table, slots = batch.block_table, batch.slot_mapping
        self.block_table = None if table is None else room(table, *table.shape)
        self.slots = None if slots is None or slots.shape[0] < self._slot_capacity else room(slots, self._slot_capacity)
        self._read_host(batch)
        self._fill(batch)
        self.segments = self._segments(batch)

    def _fill(self, batch: AttentionBatch) -> None:
        """Copy what kernels read. Sequences that are not there are empty, and new keys that are not there go nowhere.

        Which tensors there are does not change: `update` has looked.
        """
        count = batch.num_seqs
        _copy_starts(self.query_starts, batch.query_start_loc, count)
        self.seq_lens[:count].copy_(batch.seq_lens)
        self.seq_lens[count:] = 0
        if self._own_key_starts is not None and batch.kv_start_loc is not None:
            _copy_starts(self._own_key_starts, batch.kv_start_loc, count)
        if self.block_table is not None and batch.block_table is not None:
            self.block_table[:count, : batch.block_table.shape[1]].copy_(batch.block_table)
        if self.slots is not None and batch.slot_mapping is not None:
            new = batch.new_key_starts[-1]
            self.slots[:new].copy_(batch.slot_mapping[:new])
            self.slots[new:] = -1

    def _segments(self, batch: AttentionBatch) -> list[Segment]:
        starts = batch.query_start_loc_host
        lengths = [end - start for start, end in pairwise(starts)]
        short = [number for number, length in enumerate(lengths) if 0 < length <= self.decode.tokens]
        long = [number for number, length in enumerate(lengths) if length > self.decode.tokens]
        self._all_short = not long
        segments = []
        if not long:
            # Also the empty ones, so that every step of as many sequences is the same launch.
            everyone = torch.zeros(len(lengths), 2, dtype=torch.int32, device=self.device)
            everyone[:, 0] = torch.arange(len(lengths), device=self.device)
            segments.append(self._decode(everyone, batch.max_seq_len))
        elif short:
            most = max(batch.seq_lens_host[number] for number in short)
            segments.append(self._decode(self._work([(number, 0) for number in short]), most))
        if long:
            tokens = self.prefill.tokens
            items = [(number, first) for number in long for first in range(0, lengths[number], tokens)]
            # The longest first: what starts last should end soon.
            items.sort(key=lambda item: item[1] - lengths[item[0]] + batch.seq_lens_host[item[0]], reverse=True)
            segments.append(Segment(shape=self.prefill, work=self._work(items), num_splits=1))
        return segments

    def _decode(self, work: torch.Tensor, most_keys: int) -> Segment:
        """Split long sequences where they alone would leave multiprocessors idle."""
        config, shape = self.config, self.decode
        num_splits = 1
        # The number of splits would follow from what else is in the batch.
        if not config.batch_invariant:
            if config.sliding_window is not None and self.causal:
                most_keys = min(most_keys, config.sliding_window + shape.tokens)
            keys = _KEYS_PER_SPLIT_INTERPRETED if self.hardware.interpreted else _KEYS_PER_SPLIT
            programs = max(1, len(work) * config.num_kv_heads * shape.head_blocks)
            # Two for each multiprocessor, so that one computes while the other waits for memory.
            num_splits = max(1, min(-(-2 * self.hardware.units // programs), most_keys // keys, _MAX_SPLITS))
        return Segment(shape=shape, work=work, num_splits=num_splits)

    def _work(self, items: list[tuple[int, int]]) -> torch.Tensor:
        return torch.tensor(items, dtype=torch.int32).to(self.device, non_blocking=True)


def _copy_starts(ours: torch.Tensor, theirs: torch.Tensor, count: int) -> None:
    ours[: count + 1].copy_(theirs)
    if ours.shape[0] > count + 1:
        ours[count + 1 :] = ours[count]
