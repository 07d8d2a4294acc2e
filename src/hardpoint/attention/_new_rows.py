"""Writing a step's new rows into a paged cache, in plain torch operators: any device, any strides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from hardpoint.attention._batch import AttentionBatch


@dataclass(frozen=True, slots=True)
class NewRows:
    """Where a step's new rows go: ``slot_mapping`` without those that go nowhere. Worked out once per step."""

    slots: torch.Tensor
    rows: torch.Tensor | None
    """Which of the new rows these slots are for; None: all of them."""

    @classmethod
    def of(cls, batch: AttentionBatch) -> NewRows:
        """Waits for the device once, to learn whether any slot is -1."""
        mapping, count = batch.slot_mapping, batch.new_key_starts[-1]
        if mapping is None or mapping.shape[0] < count:
            given = "none" if mapping is None else str(mapping.shape[0])
            raise ConfigError(f"{count} new keys, slot_mapping has {given}", field="slot_mapping")
        slots = mapping[:count]
        kept = slots >= 0
        if bool(kept.all()):
            return cls(slots, None)
        rows = kept.nonzero().flatten()
        return cls(slots[rows], rows)

    def write(self, cache: torch.Tensor, rows: torch.Tensor, factor: float | None) -> None:
        """Store ``(num_new, …)`` into a cache indexed block, token, …, as row / factor, rounded and saturated."""
        import torch

        new = rows if self.rows is None else rows[self.rows]
        target = cache
        if cache.dtype.itemsize == 1:
            # Few operators know the 8-bit floats. Divided in more digits than are kept, so that it is rounded once.
            new = new.float() if factor is None else new.double() / factor
            limits = torch.iinfo(cache.dtype) if cache.dtype == torch.int8 else torch.finfo(cache.dtype)
            new = new.round() if cache.dtype == torch.int8 else new
            new = new.clamp(limits.min, limits.max).to(cache.dtype).view(torch.uint8)
            target = cache.view(torch.uint8)
        size = cache.shape[1]
        target.index_put_((self.slots // size, self.slots % size), new.to(target.dtype))
