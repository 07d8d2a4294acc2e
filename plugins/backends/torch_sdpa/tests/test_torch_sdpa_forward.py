"""Every option against the float64 reference, on batches that mix all kinds of sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from hardpoint.attention import AttentionBatch, AttentionConfig
from hardpoint_torch_sdpa.backend import TorchSdpaBackend

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

# Decodes of several lengths, prefills, chunked prefills, empty sequences, one that has keys and no query.
MIXED = {"query_lens": [1, 5, 0, 7, 1, 1, 3, 0], "seq_lens": [9, 5, 0, 19, 12, 1, 3, 4]}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"sliding_window": 5},
    "window of one": {"sliding_window": 1},
    "sinks": {"sinks": True},
    "alibi": {"alibi": True},
    "all at once": {"sliding_window": 3, "alibi": True, "sinks": True},
    "not causal": {"causal": False},
    "not causal, window": {"causal": False, "sliding_window": 3},
    "not causal, alibi": {"causal": False, "alibi": True},
    "batch invariant": {"batch_invariant": True, "sinks": True},
    "smaller value head": {"v_head_size": 8},
    "larger value head": {"v_head_size": 24, "sinks": True},
    "one key head": {"num_kv_heads": 1},
    "no groups": {"num_kv_heads": 4},
    "odd sizes": {"head_size": 5, "v_head_size": 3},
    "shared cache": {"kv_sharing": True},
}


def _config(**options: Any) -> AttentionConfig:
    defaults: dict[str, Any] = {"head_size": 16, "num_heads": 4, "num_kv_heads": 2, "dtype": "float32", "block_size": 4}
    return AttentionConfig(**defaults | options)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in OPTIONS for dtype in ("float32", "bfloat16")]
    + [(name, dtype) for name in ("plain", "all at once") for dtype in ("float64", "float16")],
)
def test_every_option_agrees_with_the_reference_on_a_mixed_batch(
    random_step: Callable[..., Any], name: str, dtype: str
) -> None:
    """Padding rows, unused slots and rows beyond the new keys hold NaN, half the slots are -1, and nothing shows."""
    random_step(_config(dtype=dtype, **OPTIONS[name]), **MIXED, skip_slots=True, padding=3).check()


@pytest.mark.parametrize("stride_order", [0, 1, 2])
@pytest.mark.parametrize("block_size", [1, 3, 16, 256])
@pytest.mark.parametrize("options", [{}, {"v_head_size": 8, "sliding_window": 6}], ids=["plain", "window, value head"])
def test_every_block_size_and_stride_order_gives_the_same(
    random_step: Callable[..., Any], options: dict[str, Any], block_size: int, stride_order: int
) -> None:
    """Blocks lie in random order and are read in each of the declared memory orders."""
    config = _config(block_size=block_size, **options)
    random_step(config, [1, 1, 6, 1], [17, 40, 35, 38], stride_order=stride_order).check()


@pytest.mark.parametrize("cache", ["float64", "float32", "bfloat16", "float16", "fp8", "fp8_e5m2", "int8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("stride_order", [0, 1])
def test_every_storage_dtype_agrees_with_the_reference(
    random_step: Callable[..., Any], dtype: str, cache: str, stride_order: int
) -> None:
    """What is read is what the storage holds, times its scale; what is written is rounded once and saturates."""
    config = _config(dtype=dtype, kv_cache_dtype=cache, sinks=True)
    random_step(config, **MIXED, stride_order=stride_order, padding=2).check()


@pytest.mark.parametrize("cache", ["float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_the_other_eight_bit_floats_agree_too(random_step: Callable[..., Any], cache: str) -> None:
    """The formats without a negative zero are stored and read like the others."""
    random_step(_config(kv_cache_dtype=cache), **MIXED).check()


@pytest.mark.parametrize("attention_type", ["encoder", "encoder_only"])
@pytest.mark.parametrize(
    "options",
    [{}, {"sliding_window": 3}, {"alibi": True}, {"causal": True}, {"causal": True, "sinks": True, "v_head_size": 8}],
    ids=["plain", "window", "alibi", "causal", "causal, sinks, value head"],
)
def test_encoders_run_without_a_cache(
    random_step: Callable[..., Any], attention_type: str, options: dict[str, Any]
) -> None:
    """Neighbours of equal length (attended in one call), others, and empty sequences."""
    config = _config(block_size=None, attention_type=attention_type, **options)
    random_step(config, [3, 5, 5, 5, 0, 1, 1, 4], [3, 5, 5, 5, 0, 1, 1, 4], padding=2).check()


def test_without_a_cache_its_storage_dtype_does_not_matter(random_step: Callable[..., Any]) -> None:
    """Biases that a float64 cache would need are rounded for float32 keys."""
    config = _config(kv_cache_dtype="float64", alibi=True, sliding_window=3)
    random_step(config, [3, 5, 5, 0, 1], [3, 5, 5, 0, 1], cached=False).check()


def test_a_decoder_runs_without_a_cache(random_step: Callable[..., Any]) -> None:
    """Prefills over their own keys alone, though the config has a block size."""
    random_step(_config(), [3, 5, 5, 0, 1], [3, 5, 5, 0, 1], cached=False).check()


@pytest.mark.parametrize("options", [{}, {"sinks": True, "alibi": True}, {"causal": True}, {"sliding_window": 4}])
@pytest.mark.parametrize("cached", [True, False])
def test_cross_attention_takes_keys_of_other_lengths(
    random_step: Callable[..., Any], options: dict[str, Any], cached: bool
) -> None:
    """More queries than keys, fewer, none, one; queries that see nothing give zeros."""
    config = _config(attention_type="encoder_decoder", **options)
    lens = [7, 2, 6, 0, 11]
    random_step(config, [3, 5, 1, 2, 1], lens, kv_lens=lens, cached=cached).check()


def test_cross_attention_reads_the_cache_in_later_steps(random_step: Callable[..., Any]) -> None:
    """After the first step there are no new keys."""
    config = _config(attention_type="encoder_decoder")
    random_step(config, [1, 1, 2, 1], [7, 2, 6, 0], kv_lens=[0, 0, 0, 0], new_keys=False).check()


def test_the_batch_may_switch_causality_off(random_step: Callable[..., Any]) -> None:
    """A causal layer whose step is not causal (a draft's tree, a bidirectional prefix) sees all keys."""
    random_step(_config(), **MIXED, causal=False).check()


def test_nothing_is_seen_and_there_are_sinks(random_step: Callable[..., Any]) -> None:
    """The result is zero, and the denominator is the sink alone; without sinks its logarithm is minus infinity."""
    step = random_step(_config(sinks=True, attention_type="encoder_decoder"), [2, 1], [0, 3], kv_lens=[0, 3])
    out, lse = step.forward()
    assert (out[:2] == 0).all()
    assert torch.equal(lse[:, 0], step.arguments["sinks"])
    step = random_step(_config(attention_type="encoder_decoder"), [2, 1], [0, 3], kv_lens=[0, 3])
    assert (step.forward()[1][:, :2] == -torch.inf).all()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"sliding_window": 300}, {"alibi": True}, {"sliding_window": 40, "sinks": True}]
)
def test_long_chunked_prefills_agree_across_their_pieces(
    random_step: Callable[..., Any], options: dict[str, Any], causal: bool
) -> None:
    """600 queries behind 400 keys are attended piece by piece."""
    config = _config(head_size=8, num_heads=2, num_kv_heads=1, block_size=32, causal=causal, **options)
    random_step(config, [600, 1, 270], [1000, 900, 270]).check()


@pytest.mark.parametrize("scale", [-0.3, 0.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_scale_may_be_negative_or_zero(random_step: Callable[..., Any], scale: float, dtype: str) -> None:
    """Where a layer is causal by itself torch masks before it scales: minus infinity must not be turned round."""
    for options in ({}, {"block_size": None}):
        step = random_step(_config(dtype=dtype, **options), [5, 5, 1, 9], [5, 5, 1, 9])
        step.arguments["scale"] = scale
        step.check()


def test_autocast_rounds_nothing(random_step: Callable[..., Any]) -> None:
    """A layer computes in its config's dtype, whatever its caller lets torch choose around it."""
    for options in ({"alibi": True}, {"block_size": None}):
        step = random_step(_config(**options), [5, 5, 1], [5, 5, 1])
        wanted, _ = step.reference()
        with torch.autocast("cpu", torch.bfloat16):
            out = step.layer().forward(step.query, step.key, step.value, step.cache, step.plan())
        torch.testing.assert_close(out.double(), wanted, atol=2e-5, rtol=2e-5)


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


def test_a_given_out_is_filled_and_returned(random_step: Callable[..., Any]) -> None:
    """Also where its rows are not dense, and where it held NaN; its padding becomes finite."""
    step = random_step(_config(), **MIXED, padding=2)
    wanted, _ = step.reference()
    out = torch.full((20, 8, 16), torch.nan)[:, ::2]
    result, _ = step.forward(out=out)
    assert result is out
    torch.testing.assert_close(out[:18].double(), wanted[:18], atol=2e-5, rtol=2e-5)
    assert out.isfinite().all()


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
    for shape, order in (((2, 4, 16), (0, 1, 2, 3)), ((4, 2, 16), (0, 2, 1, 3)), ((16, 2, 4), (0, 2, 3, 1))):
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
    "options", [{}, {"sinks": True}, {"dtype": "bfloat16"}, {"v_head_size": 8}, {"block_size": None}]
)
def test_batch_invariance_is_bit_for_bit(random_step: Callable[..., Any], options: dict[str, Any]) -> None:
    """A sequence's result is the same bits alone and behind others, decoding, prefilling and without a cache."""
    config = _config(head_size=20, num_heads=6, batch_invariant=True, **options)
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
            step.query[rows], step.key[rows], step.value[rows], step.cache, TorchSdpaBackend.plan(config, batch)
        )
        assert torch.equal(alone, together[rows])


def test_a_plan_can_be_updated_in_place(random_step: Callable[..., Any]) -> None:
    """After `update` it is the next step's plan."""
    first, second = random_step(_config(), [1, 4], [5, 4]), random_step(_config(), **MIXED)
    plan = first.plan()
    plan.update(second.batch)
    wanted, _ = second.reference()
    out = second.layer().forward(second.query, second.key, second.value, second.cache, plan)
    torch.testing.assert_close(out.double(), wanted, atol=2e-5, rtol=2e-5)


def test_a_step_without_tokens_changes_nothing(random_step: Callable[..., Any]) -> None:
    """No sequence at all, or only empty ones."""
    for lens in ([], [0, 0]):
        step = random_step(_config(), lens, lens)
        out, lse = step.forward()
        assert out.shape == (0, 4, 16)
        assert lse.shape == (4, 0)
