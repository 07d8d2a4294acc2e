"""Writing a step's new keys and values into the paged cache."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202, N803
# As in `_attend`.

from __future__ import annotations

import triton.language as tl  # noqa: TID253  # imported only with a chosen backend

from hardpoint_triton._kernel import Kernel


def _store(
    key, value, key_cache, value_cache, slots, num_slots,
    key_scale, value_scale, largest,
    key_row, key_head, value_row, value_head,
    key_cache_block, key_cache_head, key_cache_token, key_cache_content,
    value_cache_block, value_cache_head, value_cache_token, value_cache_content,
    HEADS: tl.constexpr, TILE_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    K: tl.constexpr, K_PAD: tl.constexpr, V: tl.constexpr, V_PAD: tl.constexpr,
    LATENT: tl.constexpr, QUANTISED: tl.constexpr,
    MANTISSA: tl.constexpr, MIN_EXPONENT: tl.constexpr, SIGNED_ZERO: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    # -1 is not to be written; a slot outside the cache would be somebody else's memory.
    if (slot < 0) | (slot >= num_slots):
        return
    block = slot // BLOCK_SIZE
    offset = slot % BLOCK_SIZE
    heads = (tl.program_id(1) * TILE_HEADS + tl.arange(0, TILE_HEADS)[:, None]).to(tl.int64)
    content = tl.arange(0, K_PAD)[None, :]
    mask = (heads < HEADS) & (content < K)
    rows = tl.load(key + row.to(tl.int64) * key_row + heads * key_head + content, mask=mask, other=0.0)
    if QUANTISED:
        # How a conversion rounds, and what it makes of numbers beyond the largest, depends on the hardware: here it is
        # left nothing to round. A number of the wanted last digit's size, added and taken away, rounds to the nearest.
        rows = tl.minimum(tl.maximum(tl.div_rn(rows.to(tl.float32), key_scale), -largest), largest)
        exponent = tl.maximum((rows.to(tl.int32, bitcast=True) >> 23) & 0xFF, 127 + MIN_EXPONENT)
        digit = ((exponent + 23 - MANTISSA) << 23).to(tl.float32, bitcast=True) * 1.5
        rounded = (tl.abs(rows) + digit) - digit
        rows = tl.where(rows.to(tl.int32, bitcast=True) < 0, -rounded, rounded)
        if not SIGNED_ZERO:
            rows = tl.where(rounded == 0.0, 0.0, rows)
    at = key_cache + block * key_cache_block + offset * key_cache_token
    tl.store(at + heads * key_cache_head + content * key_cache_content, rows.to(at.dtype.element_ty), mask=mask)
    if not LATENT:
        content = tl.arange(0, V_PAD)[None, :]
        mask = (heads < HEADS) & (content < V)
        rows = tl.load(value + row.to(tl.int64) * value_row + heads * value_head + content, mask=mask, other=0.0)
        if QUANTISED:
            rows = tl.minimum(tl.maximum(tl.div_rn(rows.to(tl.float32), value_scale), -largest), largest)
            exponent = tl.maximum((rows.to(tl.int32, bitcast=True) >> 23) & 0xFF, 127 + MIN_EXPONENT)
            digit = ((exponent + 23 - MANTISSA) << 23).to(tl.float32, bitcast=True) * 1.5
            rounded = (tl.abs(rows) + digit) - digit
            rows = tl.where(rows.to(tl.int32, bitcast=True) < 0, -rounded, rounded)
            if not SIGNED_ZERO:
                rows = tl.where(rounded == 0.0, 0.0, rows)
        at = value_cache + block * value_cache_block + offset * value_cache_token
        tl.store(at + heads * value_cache_head + content * value_cache_content, rows.to(at.dtype.element_ty), mask=mask)


store = Kernel(_store, do_not_specialize=("num_slots",))
