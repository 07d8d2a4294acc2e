"""Masks for several rows of one sequence. They depend on relative positions, so one template serves a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK_ROWS = 256
_MASK_ELEMENTS = 1 << 22


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows ``first … end-1`` of a sequence's rows, and the keys ``low … high-1`` (positions) that any of them sees."""

    first: int
    end: int
    low: int
    high: int


class MaskTemplate:
    """Visibility by relative position: row i of a chunk and key position minus position of the chunk's first row.

    `reach` is at least the greatest distance between a query and a key of the step.
    """

    def __init__(self, *, causal: bool, window: int | None, reach: int, device: torch.device) -> None:
        self.causal = causal
        self.window = window
        self.device = device
        self._reach = reach
        self._template: torch.Tensor | None = None
        self._origin = 0

    def chunks(self, position: int, num_rows: int, num_keys: int, mask_heads: int) -> Iterator[Chunk]:
        """Cut the rows of a sequence (the first at `position`) so that a mask for `mask_heads` heads stays small."""
        span = num_keys if self.window is None else min(num_keys, 2 * self.window + _CHUNK_ROWS)
        step = min(_CHUNK_ROWS, max(1, _MASK_ELEMENTS // (mask_heads * span)))
        for first in range(0, num_rows, step):
            end = min(first + step, num_rows)
            low, high = 0, num_keys
            if self.window is not None:
                low = max(0, position + first - self.window + 1)
            if self.causal:
                high = min(high, position + end)
            elif self.window is not None:
                high = min(high, position + end - 1 + self.window)
            yield Chunk(first, end, low, high)

    def mask(self, position: int, chunk: Chunk) -> torch.Tensor | None:
        """Additive float32 ``(rows, keys)`` for a chunk; None where every row sees every key."""
        if not self.causal and self.window is None:
            return None
        position += chunk.first
        if self._template is None:
            self._template = self._build()
        start, end = chunk.low - position - self._origin, chunk.high - position - self._origin
        return self._template[: chunk.end - chunk.first, start:end]

    def _build(self) -> torch.Tensor:
        back = self._reach if self.window is None else min(self._reach, self.window - 1)
        ahead = 0 if self.causal or self.window is None else min(self._reach, self.window - 1)
        self._origin = -back
        row = torch.arange(_CHUNK_ROWS, device=self.device)[:, None]
        offset = torch.arange(-back, _CHUNK_ROWS + ahead, device=self.device) - row
        hidden = offset > ahead
        if self.window is not None:
            hidden |= offset <= -self.window
        return torch.zeros(hidden.shape, device=self.device).masked_fill_(hidden, -torch.inf)

    def distance(self, position: int, chunk: Chunk) -> torch.Tensor:
        """Key position minus query position, int64 ``(rows, keys)``."""
        keys = torch.arange(chunk.low, chunk.high, device=self.device)
        rows = torch.arange(position + chunk.first, position + chunk.end, device=self.device)
        return keys - rows[:, None]
