"""Writing a step's new rows into a paged cache, in plain torch operators: any device, any strides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from hardpoint.attention._batch import AttentionBatch


class NewRows:
    """Where a step's new rows go: ``slot_mapping`` without those that go nowhere. Worked out once per step."""

    __slots__ = ("_places", "count", "rows", "slots")

    def __init__(self, slots: torch.Tensor) -> None:
        """Waits for the device, to learn whether any slot is -1."""
        self.count = slots.shape[0]
        kept = slots >= 0
        self.rows = None if bool(kept.all()) else kept.nonzero().flatten()
        """Which of the new rows `slots` are for; None: all of them."""
        self.slots = slots if self.rows is None else slots[self.rows]
        self._places: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @classmethod
    def of(cls, batch: AttentionBatch) -> NewRows:
        """Those of a step. Errors: `ConfigError` where it does not say where they go."""
        mapping, count = batch.slot_mapping, batch.new_key_starts[-1]
        if mapping is None or mapping.shape[0] < count:
            given = "none" if mapping is None else str(mapping.shape[0])
            raise ConfigError(f"{count} new keys, slot_mapping has {given}", field="slot_mapping")
        return cls(mapping[:count])

    def write(self, cache: torch.Tensor, rows: torch.Tensor, factor: float | None) -> None:
        """Store ``(num_new, …)`` into a cache indexed block, token, …, as row / factor, rounded and saturated."""
        import torch

        new = rows[: self.count] if self.rows is None else rows[self.rows]
        target = cache
        if cache.dtype.itemsize == 1:
            # Few operators know the 8-bit floats.
            new = _quantised(new, cache.dtype, factor).to(cache.dtype).view(torch.uint8)
            target = cache.view(torch.uint8)
        target.index_put_(self._place(cache.shape[1]), new.to(target.dtype))

    def _place(self, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Block numbers, and offsets inside them: the same for every layer."""
        found = self._places.get(block_size)
        if found is None:
            found = self._places[block_size] = (self.slots // block_size, self.slots % block_size)
        return found


def _quantised(rows: torch.Tensor, dtype: torch.dtype, factor: float | None) -> torch.Tensor:
    import torch

    if factor is not None:
        # Divided in more digits than are kept, so that the result is rounded once.
        rows = (rows.float() if rows.device.type == "mps" else rows.double()) / factor
    if dtype == torch.int8:
        return rows.round().clamp(-128, 127)
    limits = torch.finfo(dtype)
    return rows.clamp(limits.min, limits.max)
