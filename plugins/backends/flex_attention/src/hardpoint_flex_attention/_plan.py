"""What is worked out once per step: which tokens are attended in which call, and where their keys are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention import AttentionPlan, _handles
from hardpoint.errors import ConfigError
from hardpoint_flex_attention._family import Family
from hardpoint_flex_attention._group import Group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hardpoint.attention import AttentionBatch, AttentionConfig


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


class FlexPlan(AttentionPlan):
    """A step's groups. Those through the cache depend on its block size, so they are made when that is known."""

    def __init__(self, config: AttentionConfig, batch: AttentionBatch) -> None:
        self.config = config
        self.handle = torch.tensor(_handles.register(self))
        self.update(batch)

    def update(self, batch: AttentionBatch) -> None:
        """Work it all out anew."""
        self.batch = batch
        self.device = batch.query_start_loc.device
        self.num_tokens = batch.num_actual_tokens
        self.causal = self.config.causal and batch.causal
        self.num_new_keys = batch.new_key_starts[-1]
        self.blank: list[slice] = []
        self.shares = list(self._share())
        self._groups: dict[int | None, list[Group]] = {}
        self._slots: torch.Tensor | None = None
        self._kept: torch.Tensor | None = None
        if batch.block_table is None:
            self.groups(None)
        elif self.config.block_size is not None:
            self.groups(self.config.block_size)

    def _share(self) -> Iterator[Share]:
        batch, window = self.batch, self.config.sliding_window
        starts = batch.query_start_loc_host
        for number, num_keys in enumerate(batch.seq_lens_host):
            first, end = starts[number], starts[number + 1]
            position = num_keys - (end - first)
            # Queries align to the end: with more queries than keys the first ones lie before all keys.
            blind = 0
            if num_keys == 0:
                blind = end - first
            elif self.causal:
                blind = max(0, -position)
            elif window is not None:
                blind = max(0, 1 - window - position)
            if blind:
                self.blank.append(slice(first, min(first + blind, end)))
            if first + blind < end:
                position += blind
                low = 0 if window is None else max(0, position - window + 1)
                yield Share(number=number, first=first + blind, end=end, position=position, low=low, num_keys=num_keys)

    @torch.inference_mode(mode=False)
    def groups(self, block_size: int | None) -> list[Group]:
        """The calls of the step, through a cache of that block size or (None) over the new keys alone."""
        found = self._groups.get(block_size)
        if found is None:
            found = self._groups[block_size] = list(self._group(block_size))
        return found

    def _group(self, block_size: int | None) -> Iterator[Group]:
        if block_size is None:
            self._check_new_keys()
            decodes: list[Share] = []
            prefills = self.shares
        else:
            self._check_blocks(block_size)
            decodes = [share for share in self.shares if share.end - share.first == 1]
            prefills = [share for share in self.shares if share.end - share.first > 1]
        if decodes and block_size is not None:
            family = Family.decode(self.config, self.device, block_size)
            yield Group(self, family, decodes, block_size, in_place=family.block == block_size)
        if prefills:
            yield Group(self, Family.prefill(self.config, self.device), prefills, block_size, in_place=False)

    def _check_new_keys(self) -> None:
        starts = self.batch.new_key_starts
        for share in self.shares:
            new = starts[share.number + 1] - starts[share.number]
            if new != share.num_keys:
                raise ConfigError(
                    f"sequence {share.number}: {new} new keys of {share.num_keys}, and no cache for the rest",
                    field="seq_lens",
                )

    def _check_blocks(self, block_size: int) -> None:
        table = self.batch.block_table
        if table is None:
            raise ConfigError("a cache needs batch.block_table", field="block_table")
        for share in self.shares:
            if (needed := -(-share.num_keys // block_size)) > table.shape[1]:
                raise ConfigError(
                    f"sequence {share.number}: {share.num_keys} keys need {needed} blocks of {block_size}, "
                    f"its block_table has {table.shape[1]}",
                    field="block_table",
                )

    def slots(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Where the step's new rows go, and which of them go somewhere (None: all)."""
        if self._slots is None:
            mapping = self.batch.slot_mapping
            if mapping is None or mapping.shape[0] < self.num_new_keys:
                given = "none" if mapping is None else str(mapping.shape[0])
                raise ConfigError(f"{self.num_new_keys} new keys, slot_mapping has {given}", field="slot_mapping")
            slots = mapping[: self.num_new_keys]
            kept = slots >= 0
            self._kept = None if bool(kept.all()) else kept.nonzero().flatten()
            self._slots = slots if self._kept is None else slots[self._kept]
        return self._slots, self._kept
