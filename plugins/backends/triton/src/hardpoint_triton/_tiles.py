"""How large a program's tile is, on which device: read from `tiles.json`, which says why.

The first row that fits is taken. `benchmarks/triton_tune.py` writes rows that it has measured before the others; they
have a least width too, so that one for wide heads does not take what narrow ones have.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

PREFILL, DECODE = "prefill", "decode"


@dataclass(frozen=True, slots=True)
class Part:
    """A head's elements, in one or two pieces of a power of two each, so that little of it is padding."""

    first: int
    first_padded: int
    rest: int = 0
    rest_padded: int = 0

    @property
    def width(self) -> int:
        """Elements with padding."""
        return self.first_padded + self.rest_padded


@dataclass(frozen=True, slots=True)
class Tile:
    """`block_m` query rows, `block_n` keys at a time, and how they are computed.

    In a decode `block_m` is the most that it grows to for large groups.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def padded(size: int) -> int:
    """The power of two that a matrix unit takes, at least 16."""
    return max(16, 1 << (size - 1).bit_length())


def split_head(size: int) -> Part:
    """80 as 64 + 16, 192 as 128 + 64; in one piece where two would be no smaller."""
    whole = padded(size)
    low = whole // 2
    if whole > 32 and low + padded(size - low) < whole:
        return Part(low, low, size - low, padded(size - low))
    return Part(size, whole)


def split_latent(rank: int, rope: int) -> Part:
    """The latent, which is the value too, and its rotary part."""
    return Part(rank, padded(rank), rope, padded(rope) if rope else 0)


@lru_cache(maxsize=1)
def rows() -> tuple[dict[str, Any], ...]:  # Any: JSON
    """The table, best first."""
    return tuple(json.loads(files(__package__).joinpath("tiles.json").read_text(encoding="utf-8"))["rows"])


@lru_cache(maxsize=256)
def choose(arch: str, phase: str, dtype_bytes: int, width: int) -> Tile:
    """The tile for an architecture, a phase, the bytes of a query element, and the width of a key with padding."""
    for row in rows():
        if (
            any(_matches(arch, pattern) for pattern in row["architectures"])
            and row["phase"] == phase
            and dtype_bytes in row["dtype_bytes"]
            and row.get("min_width", 0) <= width <= row["max_width"]
        ):
            return Tile(row["block_m"], row["block_n"], row["num_warps"], row["num_stages"])
    raise LookupError(f"tiles.json has no {phase} row for {arch}, {dtype_bytes} bytes and width {width}")


def _matches(arch: str, pattern: str) -> bool:
    return arch.startswith(pattern[:-1]) if pattern.endswith("*") else arch == pattern
