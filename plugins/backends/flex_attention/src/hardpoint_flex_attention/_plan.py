"""What is worked out once per step: which tokens are attended in which call, and where their keys are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention._kernel_layer import KernelPlan
from hardpoint_flex_attention._family import Family
from hardpoint_flex_attention._group import Group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hardpoint.attention._kernel_shares import Share


class FlexPlan(KernelPlan):
    """A step's groups. Those through the cache depend on its block size, so they are made when that is known."""

    def prepare(self) -> None:
        """Work out the groups. Errors: `ConfigError` where the batch does not fit the config."""
        self.device = self.batch.query_start_loc.device
        self._groups: dict[int | None, list[Group]] = {}
        if self.batch.block_table is None:
            self.groups(None)
        elif self.config.block_size is not None:
            self.groups(self.config.block_size)

    @torch.inference_mode(mode=False)
    def groups(self, block_size: int | None) -> list[Group]:
        """The calls of the step, through a cache of that block size or (None) over the new keys alone."""
        found = self._groups.get(block_size)
        if found is None:
            found = self._groups[block_size] = list(self._group(block_size))
        return found

    def _group(self, block_size: int | None) -> Iterator[Group]:
        self.check_keys(block_size)
        decodes: list[Share] = []
        prefills: list[Share] = []
        for share in self.shares:
            (decodes if block_size is not None and share.end - share.first == 1 else prefills).append(share)
        if decodes and block_size is not None:
            family = Family.decode(self.config, self.device, block_size)
            yield Group(self, family, decodes, block_size, in_place=family.block == block_size)
        if prefills:
            yield Group(self, Family.prefill(self.config, self.device), prefills, block_size, in_place=False)
