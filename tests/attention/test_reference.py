from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from hardpoint.attention import AttentionBatch, AttentionConfig, reference_attention, write_kv_cache
from tests.attention.steps import AXES, Layout, Tokens, assert_same, make_step

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")

INFINITY = float("inf")
NAN = float("nan")


def config(**changes: Any) -> AttentionConfig:
    """A small layer with some fields changed."""
    arguments: dict[str, Any] = {"head_size": 6, "num_heads": 4, "dtype": "float64"}
    return AttentionConfig(**{**arguments, **changes})


def doubles(values: Any) -> torch.Tensor:
    """Numbers as a float64 tensor."""
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
@pytest.mark.parametrize("v_head_size", [6, 3, 9])
@pytest.mark.parametrize("causal", [True, False])
def test_plain_attention_is_torchs(num_kv_heads: int, v_head_size: int, causal: bool) -> None:
    """Heads, grouped heads, other value heads and both masks give what torch's own attention gives in float64."""
    step = make_step(config(num_kv_heads=num_kv_heads, v_head_size=v_head_size, causal=causal), [(7, 7)])
    (one,) = step.sequences
    assert one.value is not None
    out, _ = step.unpaged()
    expected = torch.nn.functional.scaled_dot_product_attention(
        one.query.transpose(0, 1),
        one.key.transpose(0, 1),
        one.value.transpose(0, 1),
        is_causal=causal,
        scale=step.scale,
        enable_gqa=True,
    )
    torch.testing.assert_close(out, expected.transpose(0, 1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lens", [[(9, 4)], [(9, 1)], [(9, 1), (5, 5), (8, 3), (0, 0), (6, 0)]])
def test_a_chunk_sees_its_past_and_itself(lens: list[tuple[int, int]]) -> None:
    """Decodes, chunks and prefills in one batch give what torch gives with a mask aligned to the lower right corner."""
    step = make_step(config(num_kv_heads=2), lens)
    outs = []
    for one in step.sequences:
        assert one.value is not None
        mask = torch.ones(one.num_queries, one.num_keys, dtype=torch.bool).tril(one.num_keys - one.num_queries)
        outs.append(
            torch.nn.functional.scaled_dot_product_attention(
                one.query.transpose(0, 1),
                one.key.transpose(0, 1),
                one.value.transpose(0, 1),
                attn_mask=mask,
                scale=step.scale,
                enable_gqa=True,
            ).transpose(0, 1)
        )
    for out, _ in (step.unpaged(), step.paged(Layout())):
        torch.testing.assert_close(out, torch.cat(outs), rtol=1e-12, atol=1e-12)


def one_head(**changes: Any) -> AttentionConfig:
    """A layer of one head with one element."""
    return config(head_size=1, num_heads=1, **changes)


LN3 = math.log(3)


@pytest.mark.parametrize(
    ("changes", "options", "out", "lse"),
    [
        # Logits 0 and ln 3: weights 1/4 and 3/4 of the values 0 and 4.
        ({}, {}, 3.0, math.log(4)),
        # A sink of ln 4 doubles the denominator and carries no value.
        ({"sinks": True}, {"sinks": [math.log(4)]}, 1.5, math.log(8)),
        # ALiBi takes ln 3 from the older key: logits -ln 3 and ln 3.
        ({"alibi": True}, {"alibi_slopes": [LN3]}, 4 * 9 / 10, math.log(3 + 1 / 3)),
        # The cap turns ln 3 into tanh(ln 3) = 0.8.
        ({"soft_cap": 1.0}, {}, 4 / (1 + math.exp(-0.8)), math.log(1 + math.exp(0.8))),
        # The cap comes before ALiBi: logits -1 and 0.8, not tanh(-1) and 0.8.
        (
            {"soft_cap": 1.0, "alibi": True},
            {"alibi_slopes": [1.0]},
            4 / (1 + math.exp(-1.8)),
            math.log(math.exp(-1.0) + math.exp(0.8)),
        ),
        # A sink is neither scaled nor capped.
        (
            {"soft_cap": 1.0, "sinks": True},
            {"sinks": [2.0]},
            4 * math.exp(0.8) / (1 + math.exp(0.8) + math.exp(2.0)),
            math.log(1 + math.exp(0.8) + math.exp(2.0)),
        ),
        # A window of one sees itself only.
        ({"sliding_window": 1}, {}, 4.0, LN3),
    ],
)
def test_small_numbers_worked_out_by_hand(
    changes: dict[str, Any], options: dict[str, list[float]], out: float, lse: float
) -> None:
    """One query, two keys: each option does to the weights what its definition says, with scale 1/2 and query 2."""
    batch = AttentionBatch.build(query_lens=[1], seq_lens=[2], kv_lens=[2])
    found = reference_attention(
        one_head(**changes),
        batch,
        doubles([[[2.0]]]),
        doubles([[[0.0]], [[LN3]]]),
        doubles([[[0.0]], [[4.0]]]),
        scale=0.5,
        **{name: doubles(values) for name, values in options.items()},  # type: ignore[arg-type]  # tensors only
    )
    assert found[0].item() == pytest.approx(out, rel=1e-14)
    assert found[1].item() == pytest.approx(lse, rel=1e-14)


def visible(asked: AttentionConfig, batch: AttentionBatch) -> list[list[int]]:
    """Which keys each query has given weight to, read off values that are the rows of a unit matrix."""
    num_keys = batch.max_seq_len
    asked = replace(asked, v_head_size=max(1, num_keys))
    query = torch.ones(batch.num_actual_tokens, 1, 1, dtype=torch.float64)
    value = torch.eye(num_keys, dtype=torch.float64).unsqueeze(1)
    out, _ = reference_attention(asked, batch, query, torch.ones(num_keys, 1, 1), value, scale=1.0)
    return [row.nonzero().flatten().tolist() for row in out[:, 0]]


@pytest.mark.parametrize(
    ("changes", "queries", "keys", "expected"),
    [
        ({}, 3, 3, [[0], [0, 1], [0, 1, 2]]),
        ({}, 2, 4, [[0, 1, 2], [0, 1, 2, 3]]),
        ({"causal": False}, 2, 3, [[0, 1, 2], [0, 1, 2]]),
        ({"sliding_window": 2}, 4, 4, [[0], [0, 1], [1, 2], [2, 3]]),
        ({"sliding_window": 3}, 2, 5, [[1, 2, 3], [2, 3, 4]]),
        ({"sliding_window": 1}, 2, 3, [[1], [2]]),
        ({"sliding_window": 2, "causal": False}, 4, 4, [[0, 1], [0, 1, 2], [1, 2, 3], [2, 3]]),
        ({"sliding_window": 1, "causal": False}, 3, 3, [[0], [1], [2]]),
        ({"sliding_window": 3, "causal": False}, 1, 5, [[2, 3, 4]]),
        # Cross attention may have more queries than keys: the first then stand before the first key.
        ({"attention_type": "encoder_decoder"}, 3, 2, [[0, 1], [0, 1], [0, 1]]),
        ({"causal": True}, 4, 2, [[], [], [0], [0, 1]]),
        ({"sliding_window": 2, "causal": False}, 4, 2, [[], [0], [0, 1], [0, 1]]),
    ],
)
def test_a_query_sees_exactly_these_keys(
    changes: dict[str, Any], queries: int, keys: int, expected: list[list[int]]
) -> None:
    """The mask, key by key, for causal and not, with and without a window, at every alignment."""
    batch = AttentionBatch.build(query_lens=[queries], seq_lens=[keys], kv_lens=[keys])
    assert visible(one_head(**changes), batch) == expected


@pytest.mark.parametrize(
    ("layer", "step", "expected"),
    [
        (True, True, [[0], [0, 1]]),
        (True, False, [[0, 1], [0, 1]]),
        (False, True, [[0, 1], [0, 1]]),
        (False, False, [[0, 1], [0, 1]]),
    ],
)
def test_a_step_is_causal_where_layer_and_step_say_so(layer: bool, step: bool, expected: list[list[int]]) -> None:
    """A step may lift a causal layer's mask; it cannot put one on a layer that has none."""
    batch = AttentionBatch.build(query_lens=[2], seq_lens=[2], causal=step)
    assert visible(one_head(causal=layer), batch) == expected


@pytest.mark.parametrize("sink", [None, 0.5])
def test_a_token_that_sees_nothing_gets_zero(sink: float | None) -> None:
    """Without any key the result is zero, and the lse minus infinity or the sink's own logit."""
    asked = config(attention_type="encoder_decoder", sinks=sink is not None)
    batch = AttentionBatch.build(query_lens=[2, 1], seq_lens=[0, 3], kv_lens=[0, 3])
    sinks = None if sink is None else torch.full((4,), sink)
    rows = torch.randn(3, 4, 6)
    out, lse = reference_attention(asked, batch, rows, rows, rows, scale=1.0, sinks=sinks)
    assert not out[:2].any()
    assert (lse[:, :2] == (-INFINITY if sink is None else sink)).all()
    assert out[2].all()
    assert torch.isfinite(lse[:, 2]).all()


@pytest.mark.parametrize("lens", [[(0, 0)], [(5, 0)], [(0, 0), (3, 3), (4, 0), (2, 1), (0, 0)]])
def test_empty_sequences_yield_nothing_and_break_nothing(lens: list[tuple[int, int]]) -> None:
    """Sequences without queries or without keys leave the others as they are."""
    step = make_step(config(), lens)
    assert_same(step.unpaged(), step.textbook())
    assert_same(step.paged(Layout()), step.textbook())


def test_a_step_without_sequences_has_an_empty_answer() -> None:
    """No sequences, no tokens: the shapes still hold."""
    nothing = torch.zeros(0, 4, 6)
    batch = AttentionBatch.build(query_lens=[], seq_lens=[])
    out, lse = reference_attention(config(), batch, nothing, nothing, nothing, scale=1.0)
    assert (tuple(out.shape), tuple(lse.shape)) == ((0, 4, 6), (4, 0))


def test_padding_rows_give_zeros_and_change_nothing() -> None:
    """Rows beyond the step's own may hold NaN; their results are zero, their lse minus infinity."""
    step = make_step(config(sinks=True), [(3, 3), (2, 2)])
    key, value = step.keys([3, 2])
    assert value is not None
    batch = AttentionBatch.build(query_lens=[3, 2], seq_lens=[3, 2])
    padding = torch.full((4, 4, 6), NAN, dtype=torch.float64)
    out, lse = reference_attention(
        step.config,
        batch,
        torch.cat([step.query(), padding]),
        torch.cat([key, padding]),
        torch.cat([value, padding]),
        **step.options(),
    )
    assert_same((out[:5], lse[:, :5]), step.unpaged())
    assert not out[5:].any()
    assert (lse[:, 5:] == -INFINITY).all()


def test_hidden_keys_have_no_influence() -> None:
    """NaN in keys and values that a token does not see, of its own sequence too, does not reach it."""
    step = make_step(config(), [(6, 6)])
    (one,) = step.sequences
    assert one.value is not None
    key, value = one.key.clone(), one.value.clone()
    key[4:] = value[4:] = NAN
    out, lse = replace(step, sequences=(replace(one, key=key, value=value),)).unpaged()
    expected_out, expected_lse = step.unpaged()
    assert_same((out[:4], lse[:, :4]), (expected_out[:4], expected_lse[:, :4]))
    assert out[4:].isnan().all()


def test_blocks_before_the_window_are_never_read() -> None:
    """An engine may have given away the blocks that no query of the step can see any more."""
    asked = config(sliding_window=3, block_size=2)
    step = make_step(asked, [(9, 2)])
    (one,) = step.sequences
    assert one.value is not None
    cache = [torch.full((9, 4, 2, 6), NAN, dtype=torch.float64) for _ in range(2)]
    # Query 7 sees keys 5, 6, 7: blocks 2, 3 and 4 of the sequence are alive; the others' entries mean nothing.
    table = [-1, 4711, 6, 1, 3]
    for tensor, rows in zip(cache, (one.key, one.value), strict=True):
        for token in range(5, 7):
            tensor[table[token // 2], :, token % 2] = rows[token]
    batch = AttentionBatch.build(query_lens=[2], seq_lens=[9], block_table=[table], slot_mapping=[1 * 2 + 1, 3 * 2 + 0])
    found = reference_attention(asked, batch, one.query, one.key[7:], one.value[7:], cache, scale=step.scale)
    assert_same(found, step.textbook())


@pytest.mark.parametrize("causal", [False, True])
def test_cross_attention_writes_once_and_reads_ever_after(causal: bool) -> None:
    """The first step brings the encoder's keys; later ones bring none and read the cache."""
    asked = config(attention_type="encoder_decoder", causal=causal, block_size=2)
    first = make_step(asked, [(5, 2), (1, 3)])
    cache = [torch.full((6, 4, 2, 6), NAN, dtype=torch.float64) for _ in range(2)]
    table = [[4, 0, 2], [5]]
    slots = [8, 9, 0, 1, 4, 10]
    key, value = first.keys([5, 1])
    batch = AttentionBatch.build(
        query_lens=[2, 3], seq_lens=[5, 1], kv_lens=[5, 1], block_table=table, slot_mapping=slots
    )
    found = reference_attention(asked, batch, first.query(), key, value, cache, **first.options())
    assert_same(found, first.textbook())
    assert_same(first.unpaged(), first.textbook())
    write_kv_cache(asked, batch, key, value, cache)
    later = replace(
        first, sequences=tuple(replace(one, query=torch.randn(1, 4, 6, dtype=torch.float64)) for one in first.sequences)
    )
    batch = AttentionBatch.build(query_lens=[1, 1], seq_lens=[5, 1], kv_lens=[0, 0], block_table=table)
    found = reference_attention(asked, batch, later.query(), None, None, cache, **later.options())
    assert_same(found, later.textbook())


def test_a_sharing_layer_reads_what_another_wrote() -> None:
    """With KV sharing the step's own keys come from the other layer's cache, whatever is handed over."""
    asked = config(kv_sharing=True, block_size=4)
    step = make_step(asked, [(3, 3)])
    (one,) = step.sequences
    assert one.value is not None
    cache = [torch.zeros(2, 4, 4, 6, dtype=torch.float64) for _ in range(2)]
    for tensor, rows in zip(cache, (one.key, one.value), strict=True):
        tensor[1, :, :3] = rows.transpose(0, 1)
    batch = AttentionBatch.build(query_lens=[3], seq_lens=[3], block_table=[[1]])
    for key, value in ((None, None), (one.key * NAN, one.value * NAN)):
        assert_same(reference_attention(asked, batch, one.query, key, value, cache, scale=step.scale), step.textbook())


def test_low_precision_is_computed_in_float64() -> None:
    """Inputs of any dtype are taken at their exact value; result and lse are float64."""
    step = make_step(config(), [(4, 4)])
    (one,) = step.sequences
    assert one.value is not None
    rounded = Tokens(one.query.bfloat16().double(), one.key.bfloat16().double(), one.value.bfloat16().double())
    batch = AttentionBatch.build(query_lens=[4], seq_lens=[4])
    query, key, value = (rows.bfloat16() for rows in (one.query, one.key, one.value))
    out, lse = reference_attention(config(dtype="bfloat16"), batch, query, key, value, scale=step.scale)
    assert (out.dtype, lse.dtype) == (torch.float64, torch.float64)
    assert_same((out, lse), replace(step, sequences=(rounded,)).textbook())


def test_nothing_that_is_handed_in_is_changed() -> None:
    """The reference is a function: cache, keys and queries stay as they were."""
    asked = config(block_size=4)
    step = make_step(asked, [(3, 3)])
    key, value = step.keys([3])
    assert value is not None
    cache = [torch.zeros(2, 4, 4, 6, dtype=torch.float64) for _ in range(2)]
    batch = AttentionBatch.build(query_lens=[3], seq_lens=[3], block_table=[[1]], slot_mapping=[4, 5, 6])
    query = step.query()
    handed = (query, key, value, *cache)
    before = [tensor.clone() for tensor in handed]
    reference_attention(asked, batch, query, key, value, cache, scale=1.0)
    assert all(torch.equal(now, then) for now, then in zip(handed, before, strict=True))


def test_the_layouts_of_the_tests_cover_the_default() -> None:
    """The axes assumed without a spec are block, head, token, content."""
    step = make_step(config(), [(5, 2)])
    assert Layout().axes == AXES
    assert_same(step.paged(Layout(block_size=3)), step.textbook())
