"""The attention kernel: one family for prefill, chunked prefill, decode and split decode, dense and latent.

A program takes some query rows of one sequence (tokens x the query heads that share a key head) and walks over the keys
that they see. Query and key are multiplied in up to two parts, so that a head of 80, 192 or 576 elements is not padded
to the next power of two; the latent form's value is the first part of its key.

Read in Triton's language, not in Python's. Nothing here calls another jitted function, not even those of Triton's
standard library: so the same source is compiled and interpreted in one process.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202, N803, N806, SLF001
# Arguments are pointers, numbers and (in capitals) constants of the compilation, which Python's types do not describe.
# Triton's reductions take these two private functions for what they are; others its interpreter would run one by one.

from __future__ import annotations

import triton.language as tl  # noqa: TID253  # imported only with a chosen backend

from hardpoint_triton._kernel import Kernel


def _attend(
    query, key, value, out, lse, partial_out, partial_lse, sinks, slopes,
    query_starts, key_starts, seq_lens, block_table, work,
    scale_log2, value_scale, soft_cap, window, num_splits,
    query_row, query_head, out_row, out_head, lse_head,
    key_block, key_head, key_token, key_content,
    value_block, value_head, value_token, value_content, table_row,
    GROUP: tl.constexpr, ROW_HEADS: tl.constexpr, TOKENS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    K0: tl.constexpr, K0_PAD: tl.constexpr, K1: tl.constexpr, K1_PAD: tl.constexpr,
    V0: tl.constexpr, V0_PAD: tl.constexpr, V1: tl.constexpr, V1_PAD: tl.constexpr,
    LATENT: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    SINKS: tl.constexpr, ALIBI: tl.constexpr, SOFT_CAP: tl.constexpr,
    SPLIT: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    LOG2E: tl.constexpr = 1.4426950408889634
    LN2: tl.constexpr = 0.6931471805599453
    HEAD_BLOCKS: tl.constexpr = (GROUP + ROW_HEADS - 1) // ROW_HEADS

    item = tl.program_id(0)
    kv_head = tl.program_id(1) // HEAD_BLOCKS
    split = tl.program_id(2)
    sequence = tl.load(work + 2 * item)
    first_token = tl.load(work + 2 * item + 1)
    query_start = tl.load(query_starts + sequence)
    num_queries = tl.load(query_starts + sequence + 1) - query_start
    num_keys = tl.load(seq_lens + sequence)
    if first_token >= num_queries:
        return

    rows = tl.arange(0, BLOCK_M)
    token = first_token + rows // ROW_HEADS
    head_in_group = (tl.program_id(1) % HEAD_BLOCKS) * ROW_HEADS + rows % ROW_HEADS
    row_ok = (rows < TOKENS * ROW_HEADS) & (token < num_queries) & (head_in_group < GROUP)
    head = kv_head * GROUP + head_in_group
    # Queries align to the end; with more queries than keys (cross attention) the first ones stand before all keys.
    position = num_keys - num_queries + token

    # The keys low … high-1 that any row sees, and from which key on only some rows see them.
    first_position = num_keys - num_queries + first_token
    last_position = num_keys - num_queries + tl.minimum(first_token + TOKENS, num_queries) - 1
    low = 0
    high = num_keys
    everywhere = num_keys
    if WINDOW:
        low = tl.maximum(0, first_position - window + 1)
    if CAUSAL:
        high = tl.minimum(num_keys, last_position + 1)
        everywhere = tl.minimum(num_keys, first_position + 1)
    elif WINDOW:
        high = tl.minimum(num_keys, last_position + window)
    begin = low // BLOCK_N * BLOCK_N
    end = tl.maximum(high, begin)
    if SPLIT:
        share = ((end - begin + num_splits - 1) // num_splits + BLOCK_N - 1) // BLOCK_N * BLOCK_N
        begin = tl.minimum(begin + split * share, end)
        end = tl.minimum(begin + share, end)
    # Tiles from `ragged` on need a mask; with a window all do.
    ragged = begin
    if not WINDOW:
        ragged = begin + tl.maximum(0, tl.minimum(end, everywhere) - begin) // BLOCK_N * BLOCK_N

    k0 = tl.arange(0, K0_PAD)
    v0 = tl.arange(0, V0_PAD)
    query_rows = query + (query_start + token).to(tl.int64) * query_row + head * query_head
    if K0 == K0_PAD:
        q0 = tl.load(query_rows[:, None] + k0[None, :], mask=row_ok[:, None], other=0.0)
    else:
        q0 = tl.load(query_rows[:, None] + k0[None, :], mask=row_ok[:, None] & (k0 < K0)[None, :], other=0.0)
    if K1 > 0:
        k1 = tl.arange(0, K1_PAD)
        q1 = tl.load(query_rows[:, None] + (K0 + k1)[None, :], mask=row_ok[:, None] & (k1 < K1)[None, :], other=0.0)
        if WIDE:
            q1 = q1.to(tl.float32)
    if WIDE:
        q0 = q0.to(tl.float32)
    if V1 > 0:
        v1 = tl.arange(0, V1_PAD)
        acc1 = tl.full([BLOCK_M, V1_PAD], 0.0, tl.float32)
    if ALIBI:
        slope = tl.load(slopes + head, mask=row_ok, other=0.0) * LOG2E
    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.full([BLOCK_M], 0.0, tl.float32)
    acc0 = tl.full([BLOCK_M, V0_PAD], 0.0, tl.float32)

    key_base = key + kv_head.to(tl.int64) * key_head
    value_base = value + kv_head.to(tl.int64) * value_head
    if BLOCK_SIZE == 0:
        first_key = tl.load(key_starts + sequence).to(tl.int64)
    else:
        table = block_table + sequence.to(tl.int64) * table_row

    # First the tiles that every row sees wholly, then those that need a mask: the body is compiled twice.
    for phase in tl.static_range(2):
        start_from = begin if phase == 0 else ragged
        stop_at = ragged if phase == 0 else end
        for start in range(start_from, stop_at, BLOCK_N):
            keys = start + tl.arange(0, BLOCK_N)
            key_ok = (keys >= low) & (keys < end)
            if BLOCK_SIZE == 0:
                key_rows = (first_key + keys) * key_token
                value_rows = (first_key + keys) * value_token
            elif BLOCK_SIZE % BLOCK_N == 0:
                block = tl.load(table + start // BLOCK_SIZE).to(tl.int64)
                offsets = start % BLOCK_SIZE + tl.arange(0, BLOCK_N)
                key_rows = block * key_block + offsets * key_token
                value_rows = block * value_block + offsets * value_token
            else:
                if phase == 0:
                    blocks = tl.load(table + keys // BLOCK_SIZE).to(tl.int64)
                else:
                    # What the table holds for keys that nobody sees may be no block.
                    blocks = tl.load(table + keys // BLOCK_SIZE, mask=key_ok, other=0).to(tl.int64)
                key_rows = blocks * key_block + (keys % BLOCK_SIZE) * key_token
                value_rows = blocks * value_block + (keys % BLOCK_SIZE) * value_token

            # Unseen slots may hold NaN, which a weight of zero does not stop: they are not read.
            k0_at = key_base + key_rows[None, :] + k0[:, None] * key_content
            if phase == 0 and K0 == K0_PAD:
                k = tl.load(k0_at)
            elif phase == 0:
                k = tl.load(k0_at, mask=(k0 < K0)[:, None], other=0.0)
            elif K0 == K0_PAD:
                k = tl.load(k0_at, mask=key_ok[None, :], other=0.0)
            else:
                k = tl.load(k0_at, mask=(k0 < K0)[:, None] & key_ok[None, :], other=0.0)
            k = k.to(q0.dtype)
            scores = tl.dot(q0, k, input_precision=PRECISION)
            if K1 > 0:
                k1_at = key_base + key_rows[None, :] + (K0 + k1)[:, None] * key_content
                if phase == 0 and K1 == K1_PAD:
                    k_rest = tl.load(k1_at)
                elif phase == 0:
                    k_rest = tl.load(k1_at, mask=(k1 < K1)[:, None], other=0.0)
                else:
                    k_rest = tl.load(k1_at, mask=(k1 < K1)[:, None] & key_ok[None, :], other=0.0)
                scores = tl.dot(q1, k_rest.to(q0.dtype), scores, input_precision=PRECISION)

            # Logits count in powers of two: exp2 is what the hardware has.
            if SOFT_CAP:
                # tanh(x) = 1 - 2 / (exp(2x) + 1), which neither end overflows.
                scores = 1.0 - 2.0 / (tl.exp2(scores * (2.0 * scale_log2 / soft_cap)) + 1.0)
                scores = scores * (soft_cap * LOG2E)
            else:
                scores = scores * scale_log2
            if ALIBI:
                scores += slope[:, None] * (keys[None, :] - position[:, None])
            if phase == 1:
                visible = key_ok[None, :]
                if CAUSAL:
                    visible = visible & (keys[None, :] <= position[:, None])
                if WINDOW:
                    visible = visible & (keys[None, :] > position[:, None] - window)
                    if not CAUSAL:
                        visible = visible & (keys[None, :] < position[:, None] + window)
                scores = tl.where(visible, scores, float("-inf"))

            higher = tl.maximum(highest, tl.reduce(scores, 1, tl.standard._elementwise_max))
            # A row that has seen nothing yet: minus infinity minus itself is NaN.
            reference = tl.where(higher == float("-inf"), 0.0, higher)
            weights = tl.exp2(scores - reference[:, None])
            shrink = tl.exp2(highest - reference)
            total = total * shrink + tl.reduce(weights, 1, tl.standard._sum_combine)
            highest = higher
            weights = weights.to(q0.dtype)

            acc0 = acc0 * shrink[:, None]
            if LATENT:
                acc0 = tl.dot(weights, tl.trans(k), acc0, input_precision=PRECISION)
            else:
                v0_at = value_base + value_rows[:, None] + v0[None, :] * value_content
                if phase == 0 and V0 == V0_PAD:
                    v = tl.load(v0_at)
                elif phase == 0:
                    v = tl.load(v0_at, mask=(v0 < V0)[None, :], other=0.0)
                elif V0 == V0_PAD:
                    v = tl.load(v0_at, mask=key_ok[:, None], other=0.0)
                else:
                    v = tl.load(v0_at, mask=(v0 < V0)[None, :] & key_ok[:, None], other=0.0)
                acc0 = tl.dot(weights, v.to(q0.dtype), acc0, input_precision=PRECISION)
            if V1 > 0:
                acc1 = acc1 * shrink[:, None]
                v1_at = value_base + value_rows[:, None] + (V0 + v1)[None, :] * value_content
                if phase == 0 and V1 == V1_PAD:
                    v_rest = tl.load(v1_at)
                elif phase == 0:
                    v_rest = tl.load(v1_at, mask=(v1 < V1)[None, :], other=0.0)
                else:
                    v_rest = tl.load(v1_at, mask=(v1 < V1)[None, :] & key_ok[:, None], other=0.0)
                acc1 = tl.dot(weights, v_rest.to(q0.dtype), acc1, input_precision=PRECISION)

    if SINKS and not SPLIT:
        sink = tl.load(sinks + head, mask=row_ok, other=float("-inf")) * LOG2E
        higher = tl.maximum(highest, sink)
        reference = tl.where(higher == float("-inf"), 0.0, higher)
        shrink = tl.exp2(highest - reference)
        total = total * shrink + tl.exp2(sink - reference)
        acc0 = acc0 * shrink[:, None]
        if V1 > 0:
            acc1 = acc1 * shrink[:, None]
        highest = higher
    # Where nothing was seen the sum is 0: the result is 0, and the logarithm minus infinity.
    divisor = tl.where(total > 0.0, total, 1.0)
    share_of = tl.where(total > 0.0, value_scale / divisor, 0.0)
    log_total = tl.where(total > 0.0, highest + tl.log2(divisor), float("-inf"))
    acc0 = acc0 * share_of[:, None]
    if SPLIT:
        # (split, item, token, head), dense.
        heads = tl.num_programs(1) // HEAD_BLOCKS * GROUP
        at = ((split * tl.num_programs(0) + item).to(tl.int64) * TOKENS + rows // ROW_HEADS) * heads + head
        tl.store(partial_lse + at, log_total, mask=row_ok)
        out_at = partial_out + at * (V0 + V1)
    else:
        tl.store(lse + head * lse_head + query_start + token, log_total * LN2, mask=row_ok)
        out_at = out + (query_start + token).to(tl.int64) * out_row + head * out_head
    tl.store(out_at[:, None] + v0[None, :], acc0.to(out_at.dtype.element_ty), mask=row_ok[:, None] & (v0 < V0)[None, :])
    if V1 > 0:
        acc1 = acc1 * share_of[:, None]
        mask1 = row_ok[:, None] & (v1 < V1)[None, :]
        tl.store(out_at[:, None] + (V0 + v1)[None, :], acc1.to(out_at.dtype.element_ty), mask=mask1)


# What changes from step to step must not make another kernel of it.
attend = Kernel(_attend, do_not_specialize=("window", "num_splits", "lse_head", "table_row"))
