"""Every option against the float64 reference, on batches that mix all kinds of sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from hardpoint.attention import AttentionBatch, AttentionConfig

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

# Decodes of several lengths, prefills, chunked prefills, empty sequences, one that has keys and no query.
MIXED = {"query_lens": [1, 5, 0, 7, 1, 1, 3, 0], "seq_lens": [9, 5, 0, 19, 12, 1, 3, 4]}
OPTIONS: dict[str, dict[str, Any]] = {
    "not causal, alibi": {"causal": False, "alibi": True},
    "batch invariant": {"batch_invariant": True, "sinks": True},
    "soft cap and all": {"soft_cap": 2.0, "sliding_window": 3, "alibi": True, "sinks": True},
    "smaller value head": {"v_head_size": 16},
    "larger value head": {"v_head_size": 112, "sinks": True},
    "one key head": {"num_kv_heads": 1},
    "no groups": {"num_kv_heads": 4},
    "groups of three": {"num_heads": 6},
    "groups of seven": {"num_heads": 14},
    "groups of sixteen": {"num_heads": 16, "num_kv_heads": 1},
    "uneven sizes": {"head_size": 80, "v_head_size": 48},
    "largest sizes": {"head_size": 256, "v_head_size": 256},
}


def _config(**options: Any) -> AttentionConfig:
    defaults: dict[str, Any] = {"head_size": 32, "num_heads": 4, "num_kv_heads": 2, "dtype": "float32", "block_size": 4}
    return AttentionConfig(**defaults | options)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in OPTIONS for dtype in ("float32", "bfloat16")] + [("uneven sizes", "float16")],
)
def test_every_option_agrees_with_the_reference_on_a_mixed_batch(
    random_step: Callable[..., Any], name: str, dtype: str
) -> None:
    """Padding rows, unused slots and rows beyond the new keys hold NaN, half the slots are -1, and nothing shows."""
    random_step(_config(dtype=dtype, **OPTIONS[name]), **MIXED, skip_slots=True, padding=3).check()


@pytest.mark.parametrize(
    "options",
    [{}, {"sliding_window": 3}, {"alibi": True}, {"causal": True}, {"causal": True, "sinks": True, "v_head_size": 16}],
    ids=["plain", "window", "alibi", "causal", "causal, sinks, value head"],
)
def test_encoders_run_without_a_cache(random_step: Callable[..., Any], options: dict[str, Any]) -> None:
    """Neighbours of equal length (attended in one call), others, and empty sequences."""
    config = _config(block_size=None, attention_type="encoder_only", **options)
    random_step(config, [3, 5, 5, 5, 0, 1, 1, 4], [3, 5, 5, 5, 0, 1, 1, 4], padding=2).check()


@pytest.mark.parametrize("options", [{"sinks": True, "alibi": True}, {"causal": True}, {"sliding_window": 4}])
@pytest.mark.parametrize("cached", [True, False])
def test_cross_attention_takes_keys_of_other_lengths(
    random_step: Callable[..., Any], options: dict[str, Any], cached: bool
) -> None:
    """More queries than keys, fewer, none, one; queries that see nothing give zeros."""
    config = _config(attention_type="encoder_decoder", **options)
    lens = [7, 2, 6, 0, 11]
    random_step(config, [3, 5, 1, 2, 1], lens, kv_lens=lens, cached=cached).check()


def test_nothing_is_seen_and_there_are_sinks(random_step: Callable[..., Any]) -> None:
    """The result is zero, and the denominator is the sink alone; without sinks its logarithm is minus infinity."""
    step = random_step(_config(sinks=True, attention_type="encoder_decoder"), [2, 1], [0, 3], kv_lens=[0, 3])
    out, lse = step.forward()
    assert (out[:2] == 0).all()
    assert torch.equal(lse[:, 0], step.arguments["sinks"])
    step = random_step(_config(attention_type="encoder_decoder"), [2, 1], [0, 3], kv_lens=[0, 3])
    assert (step.forward()[1][:, :2] == -torch.inf).all()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("options", [{"alibi": True}, {"sliding_window": 300}, {"sliding_window": 40, "sinks": True}])
def test_long_chunked_prefills_agree_across_their_pieces(
    random_step: Callable[..., Any], options: dict[str, Any], causal: bool
) -> None:
    """300 queries behind 400 keys are attended piece by piece; a decode is cut in two."""
    config = _config(head_size=16, num_heads=4, num_kv_heads=1, block_size=32, causal=causal, **options)
    random_step(config, [300, 1, 70], [700, 1200, 70]).check()


def test_sinks_of_minus_infinity_are_no_sinks(random_step: Callable[..., Any]) -> None:
    """The result is that of a layer without sinks, also for the heads beside them."""
    step = random_step(_config(sinks=True), **MIXED)
    step.arguments["sinks"][1:3] = -torch.inf
    step.check()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_sinks_and_slopes_come_in_any_floating_dtype(random_step: Callable[..., Any], dtype: torch.dtype) -> None:
    """They are used as they are, not rounded to the layer's dtype."""
    step = random_step(_config(dtype="bfloat16", sinks=True, alibi=True), **MIXED)
    for name in ("sinks", "alibi_slopes"):
        step.arguments[name] = step.arguments[name].to(dtype)
    step.check()


def test_autocast_rounds_nothing(random_step: Callable[..., Any]) -> None:
    """A float32 layer computes in float32 where the caller has autocast on, copies of strided inputs too."""
    step = random_step(_config(), **MIXED)
    wanted = step.forward()
    step.query = step.query.repeat_interleave(2, dim=-1)[..., ::2]
    with torch.autocast("cpu", torch.bfloat16):
        found = step.forward()
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.equal(ours, theirs)


def test_inputs_need_not_be_dense(random_step: Callable[..., Any]) -> None:
    """Query, key and value as slices of one projection, and with a strided last axis."""
    step = random_step(_config(), **MIXED)
    joined = torch.cat([step.query, step.key, step.value], dim=1)
    step.query, step.key, step.value = torch.split(joined, [4, 2, 2], dim=1)
    step.check()
    step = random_step(_config(block_size=None, attention_type="encoder"), [4, 4, 3], [4, 4, 3])
    for name in ("query", "key", "value"):
        tensor = getattr(step, name)
        setattr(step, name, tensor.transpose(1, 2).contiguous().transpose(1, 2))
        assert getattr(step, name).stride(-1) != 1
    step.check()


def test_caches_that_share_one_allocation_are_read_in_place(random_step: Callable[..., Any]) -> None:
    """Key and value interleaved block by block, and strides that belong to no declared order at all."""
    for shape, order in (((2, 4, 32), (0, 1, 2, 3)), ((4, 2, 32), (0, 2, 1, 3))):
        step = random_step(_config(), **MIXED)
        memory = torch.full((len(step.cache[0]), 2, *shape), torch.nan)
        caches = tuple(memory[:, side].permute(order) for side in (0, 1))
        for cache, old in zip(caches, step.cache, strict=True):
            cache.copy_(old)
        step.cache = caches
        out, _ = step.forward()
        step.cache = tuple(cache.contiguous() for cache in caches)
        torch.testing.assert_close(out, step.forward()[0])


@pytest.mark.parametrize(
    "options", [{}, {"sinks": True}, {"dtype": "bfloat16"}, {"v_head_size": 16}, {"block_size": None}]
)
def test_batch_invariance_is_bit_for_bit(random_step: Callable[..., Any], options: dict[str, Any]) -> None:
    """A sequence's result is the same bits alone and behind others, decoding, prefilling and without a cache."""
    config = _config(head_size=48, num_heads=6, batch_invariant=True, **options)
    cached = config.block_size is not None
    seq_lens = [13, 9, 13, 70, 1] if cached else [3, 9, 13, 13, 2]
    query_lens = [1, 9, 1, 40, 1] if cached else seq_lens
    step = random_step(config, query_lens, seq_lens)
    together, _ = step.forward()
    starts = step.batch.query_start_loc_host
    for number, (query_len, seq_len) in enumerate(zip(query_lens, seq_lens, strict=True)):
        rows = slice(starts[number], starts[number + 1])
        batch = AttentionBatch.build(
            query_lens=[query_len],
            seq_lens=[seq_len],
            block_table=None if step.batch.block_table is None else step.batch.block_table[number : number + 1],
            slot_mapping=None if step.batch.slot_mapping is None else step.batch.slot_mapping[rows],
        )
        alone = step.layer().forward(
            step.query[rows], step.key[rows], step.value[rows], step.cache, step.backend.plan(config, batch)
        )
        assert torch.equal(alone, together[rows])


def test_a_step_without_tokens_changes_nothing(random_step: Callable[..., Any]) -> None:
    """No sequence at all, or only empty ones."""
    for lens in ([], [0, 0]):
        step = random_step(_config(), lens, lens)
        out, lse = step.forward()
        assert out.shape == (0, 4, 32)
        assert lse.shape == (4, 0)


@pytest.mark.parametrize("group", [1, 3])
def test_the_bits_of_a_row_do_not_depend_on_how_a_prefill_is_cut(random_step: Callable[..., Any], group: int) -> None:
    """One thread or eight: other rows share an item, masked or not; neither result nor logarithm changes a bit."""
    config = _config(
        head_size=112, num_heads=group, num_kv_heads=1, dtype="bfloat16", block_size=16, batch_invariant=True
    )
    step = random_step(config, [333, 80], [700, 780])
    layer = step.layer()
    layer.most_threads = 8
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 3, 8):
            torch.set_num_threads(threads)
            plan = step.plan()
            results.append(layer.forward(step.query, step.key, step.value, step.cache, plan, return_lse=True))
    finally:
        torch.set_num_threads(before)
    for out, lse in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(lse, results[0][1])


@pytest.mark.parametrize("soft_cap", [1e-3, 1e3, 1e6])
def test_soft_caps_of_any_size_keep_their_digits(random_step: Callable[..., Any], soft_cap: float) -> None:
    """A cap that is far above every logit changes nothing, and one far below makes all alike."""
    random_step(_config(soft_cap=soft_cap), [1, 40], [60, 50]).check()


@pytest.mark.parametrize("window", [(1 << 31) - 1, 1 << 31, 1 << 40])
@pytest.mark.parametrize("causal", [True, False])
def test_a_window_wider_than_any_sequence_hides_nothing(
    random_step: Callable[..., Any], window: int, causal: bool
) -> None:
    """Also where queries stand before the first key."""
    random_step(_config(sliding_window=window, causal=causal), [1, 20], [60, 30]).check()
    config = _config(sliding_window=window, causal=causal, attention_type="encoder_decoder")
    random_step(config, [5, 3], [2, 30], kv_lens=[2, 30]).check()


@pytest.mark.parametrize("group", [1, 4, 8])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_value_that_is_no_number_reaches_its_own_element_only(
    random_step: Callable[..., Any], group: int, bad: float
) -> None:
    """Also where several elements are multiplied at once."""
    config = _config(dtype="bfloat16", head_size=64, num_heads=2 * group, block_size=16)
    step = random_step(config, [1, 1, 4], [100, 700, 40])
    layer = step.layer()

    def forward() -> torch.Tensor:
        found: torch.Tensor = layer.forward(step.query, step.key, step.value, step.cache, step.plan())
        return found[: step.batch.num_actual_tokens].float()

    before = forward()
    step.cache[1][..., 5] = bad
    after = forward()
    assert not after[..., 5].isfinite().any()
    others = [element for element in range(64) if element != 5]
    torch.testing.assert_close(after[..., others], before[..., others], atol=0.02, rtol=0.02)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("options", [{"sliding_window": 37, "sinks": True}, {"v_head_size": 48, "soft_cap": 30.0}])
def test_a_value_that_is_no_number_reaches_only_the_rows_that_see_it(
    random_step: Callable[..., Any], options: dict[str, Any], dtype: str, bad: float
) -> None:
    """A prefill multiplies many rows at once; those before the bad key, or beyond its window, keep every bit."""
    config = _config(dtype=dtype, head_size=64, num_heads=6, block_size=16, **options)
    step = random_step(config, [90, 1], [100, 40])
    before, before_lse = step.forward()
    step.value[50, 1, 5] = bad  # the key at position 60 of the first sequence: query tokens before it do not see it
    after, after_lse = step.forward()
    wanted, _ = step.reference()
    assert torch.equal(after.isfinite(), wanted.isfinite())
    assert torch.equal(after[wanted.isfinite()], before[wanted.isfinite()])
    assert torch.equal(after_lse, before_lse)
