"""Merging what the splits of a decode have found, through the logarithms of their sums."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202, N803, N806
# As in `_attend`.

from __future__ import annotations

import triton.language as tl  # noqa: TID253  # imported only with a chosen backend

from hardpoint_triton._kernel import Kernel


def _merge(
    partial_out, partial_lse, out, lse, sinks, query_starts, work,
    num_items, num_splits, out_row, out_head, lse_head,
    TOKENS: tl.constexpr, V: tl.constexpr, V_PAD: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    LOG2E: tl.constexpr = 1.4426950408889634
    LN2: tl.constexpr = 0.6931471805599453
    item = tl.program_id(0) // TOKENS
    token = tl.program_id(0) % TOKENS
    head = tl.program_id(1)
    sequence = tl.load(work + 2 * item)
    query_start = tl.load(query_starts + sequence)
    if token >= tl.load(query_starts + sequence + 1) - query_start:
        return
    content = tl.arange(0, V_PAD)
    content_ok = content < V
    total = 0.0
    highest = float("-inf")
    if SINKS:
        highest = tl.load(sinks + head) * LOG2E
        total = tl.where(highest == float("-inf"), 0.0, 1.0)
    acc = tl.full([V_PAD], 0.0, tl.float32)
    for split in range(num_splits):
        at = ((split * num_items + item).to(tl.int64) * TOKENS + token) * tl.num_programs(1) + head
        part = tl.load(partial_lse + at)
        higher = tl.maximum(highest, part)
        reference = tl.where(higher == float("-inf"), 0.0, higher)
        shrink = tl.exp2(highest - reference)
        weight = tl.exp2(part - reference)
        acc = acc * shrink + tl.load(partial_out + at * V + content, mask=content_ok, other=0.0) * weight
        total = total * shrink + weight
        highest = higher
    divisor = tl.where(total > 0.0, total, 1.0)
    log_total = tl.where(total > 0.0, highest + tl.log2(divisor), float("-inf"))
    row = query_start + token
    tl.store(lse + head * lse_head + row, log_total * LN2)
    out_at = out + row.to(tl.int64) * out_row + head * out_head + content
    tl.store(out_at, (acc / divisor).to(out.dtype.element_ty), mask=content_ok)


merge = Kernel(_merge, do_not_specialize=("num_items", "num_splits", "lse_head"))
