"""What the shared tests do not ask: every way in which heads, keys and programs are divided, in the interpreter."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from hardpoint.attention import AttentionBatch, AttentionConfig
from hardpoint.errors import ConfigError
from hardpoint_triton._plan import TritonPlan
from hardpoint_triton.backend import TritonAttentionBackend
from tests.attention.conformance import MIXED

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

LATENT: dict[str, Any] = {"kind": "mla_attention", "head_size": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8}
# Decodes, a short query behind others, and a prefill that takes several tiles.
SMALL: dict[str, Any] = {"query_lens": [1, 2, 9], "seq_lens": [11, 2, 13]}


def _config(**options: Any) -> AttentionConfig:
    defaults: dict[str, Any] = {"head_size": 16, "num_heads": 4, "num_kv_heads": 2, "dtype": "float32", "block_size": 4}
    return AttentionConfig(**defaults | options)


def _latent(**options: Any) -> AttentionConfig:
    return AttentionConfig(**{"num_heads": 4, "dtype": "float32", "block_size": 4, **LATENT, **options})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_inputs_and_results(dense_step: Callable[..., Any], dtype: str) -> None:
    """Inputs, cache and result are of the dtype asked for."""
    dense_step(_config(dtype=dtype, sinks=True), **MIXED, skip_slots=True, padding=3).check(plain=False)


@pytest.mark.parametrize(
    "sizes",
    [(1, 1), (5, 3), (16, 40), (80, 80), (96, 32), (112, 20), (192, 128), (256, 144)],
    ids=lambda sizes: f"{sizes[0]}-{sizes[1]}",
)
def test_every_head_size(dense_step: Callable[..., Any], sizes: tuple[int, int]) -> None:
    """In one piece or two, with and without padding, for keys and for values of their own size."""
    dense_step(_config(head_size=sizes[0], v_head_size=sizes[1]), **SMALL).check(plain=False)


@pytest.mark.parametrize("heads", [(1, 1), (6, 2), (5, 1), (4, 4), (20, 1), (34, 2)], ids=lambda h: f"{h[0]}-{h[1]}")
def test_every_group_size(dense_step: Callable[..., Any], heads: tuple[int, int]) -> None:
    """Groups that fill a tile, divide it, do not divide it, and need several."""
    dense_step(_config(num_heads=heads[0], num_kv_heads=heads[1], sinks=True, alibi=True), **SMALL).check(plain=False)


@pytest.mark.parametrize("heads", [1, 5, 20])
def test_every_number_of_heads_over_a_latent(latent_step: Callable[..., Any], heads: int) -> None:
    """The latent has one key head, which all query heads share."""
    latent_step(_latent(num_heads=heads, sinks=True, soft_cap=3.0), **SMALL).check(plain=False)


@pytest.mark.parametrize(
    ("cache", "dtype"),
    [("fp8", "bfloat16"), ("fp8_e5m2", "float16"), ("float8_e4m3fnuz", "float32"), ("float8_e5m2fnuz", "float32")],
)
def test_eight_bit_caches(dense_step: Callable[..., Any], dtype: str, cache: str) -> None:
    """What is read is what the storage holds, times its scale; what is written is rounded once, as torch rounds."""
    dense_step(_config(dtype=dtype, kv_cache_dtype=cache, soft_cap=2.0), **SMALL, skip_slots=True).check(plain=False)


def test_an_eight_bit_latent(latent_step: Callable[..., Any]) -> None:
    """Key and value are one number, with one scale."""
    latent_step(_latent(kv_cache_dtype="fp8"), **SMALL).check(plain=False)


@pytest.mark.parametrize("cache", ["fp8", "fp8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_eight_bit_numbers_are_rounded_as_torch_rounds_them(dense_step: Callable[..., Any], cache: str) -> None:
    """Ties, subnormals, the smallest, the largest and what lies beyond: the stored bytes are torch's."""
    step = dense_step(_config(kv_cache_dtype=cache, head_size=64, num_heads=1, num_kv_heads=1), [8], [8])
    largest = torch.finfo(step.cache[0].dtype).max
    exponents = torch.arange(512) // 16 - 22
    numbers = torch.exp2(exponents.float()) * (1 + torch.arange(512) % 16 / 16)
    numbers[-4:] = torch.tensor([largest, -largest, 1e6, -1e6])
    numbers[:2] = torch.tensor([0.0, -1e-30])
    step.key = (numbers * (-1) ** torch.arange(512)).view(8, 1, 64)
    step.arguments |= {"key_scale": 1.0, "value_scale": 1.0}
    step.check(plain=False)


@pytest.mark.parametrize(
    "options",
    [{}, {"sinks": True}, {"sliding_window": 90, "alibi": True}, {"causal": False, "v_head_size": 80}],
    ids=["plain", "sinks", "window, alibi", "not causal, value head"],
)
def test_long_decodes_are_split_and_merged(dense_step: Callable[..., Any], options: dict[str, Any]) -> None:
    """Programs that share a sequence's keys, also where a short sequence leaves most of them nothing."""
    step = dense_step(_config(num_kv_heads=1, **options), [1, 2, 0], [150, 5, 3])
    assert step.plan().segments[0].num_splits > 1
    step.check(plain=False)


def test_splits_beside_a_prefill(dense_step: Callable[..., Any]) -> None:
    """The step has two launches of the kernel, and the splits are numbered among the short queries alone."""
    step = dense_step(_config(num_kv_heads=1, sinks=True), [9, 1, 1], [20, 120, 3], padding=2)
    short, long = step.plan().segments
    assert short.num_splits > 1
    assert (short.work.tolist(), long.work.tolist()) == ([[1, 0], [2, 0]], [[0, 8], [0, 0]])
    step.check(plain=False)


def test_split_latents(latent_step: Callable[..., Any]) -> None:
    """The latent form is split in the same way."""
    step = latent_step(_latent(sinks=True), [1, 1], [130, 7])
    assert step.plan().segments[0].num_splits > 1
    step.check(plain=False)


@pytest.mark.parametrize("block_size", [1, 16, 32, 48])
def test_blocks_that_hold_several_tiles_or_none(dense_step: Callable[..., Any], block_size: int) -> None:
    """A tile inside one block finds it once; one that may lie across two looks for each key."""
    dense_step(_config(num_kv_heads=1, block_size=block_size, sliding_window=30), [1, 12], [50, 40]).check(plain=False)


def test_a_window_skips_blocks_that_were_given_back(dense_step: Callable[..., Any]) -> None:
    """Entries of the table before the window of the first query are never read, nor those beyond the last key."""
    step = dense_step(_config(sliding_window=6), [1, 9], [60, 70])
    wanted, _ = step.reference()
    step.batch.block_table[0, :13] = 1 << 30
    step.batch.block_table[1, :13] = 1 << 30
    step.batch.block_table[0, 15:] = 1 << 30
    torch.testing.assert_close(step.forward()[0].double(), wanted, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16", "sinks": True}, {"block_size": None}])
def test_batch_invariance_is_bit_for_bit(dense_step: Callable[..., Any], options: dict[str, Any]) -> None:
    """A sequence's result is the same bits alone and behind others, decoding, prefilling and without a cache."""
    config = _config(num_kv_heads=1, batch_invariant=True, **options)
    cached = config.block_size is not None
    seq_lens = [13, 9, 70, 40] if cached else [3, 9, 13, 2]
    query_lens = [1, 9, 1, 20] if cached else seq_lens
    step = dense_step(config, query_lens, seq_lens)
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
            step.query[rows], step.key[rows], step.value[rows], step.cache, TritonAttentionBackend.plan(config, batch)
        )
        assert torch.equal(alone, together[rows])


def test_a_captured_decode_is_replayed_at_the_same_addresses(dense_step: Callable[..., Any]) -> None:
    """Fewer sequences, longer and shorter ones: the launches are those that were captured, the result is right."""
    config = _config(num_kv_heads=1, sinks=True)
    plan = dense_step(config, [1, 1, 1, 1], [140, 9, 3, 12]).plan()
    plan.is_captured = True
    segments = plan.segments
    step = dense_step(config, [1, 1, 0], [11, 133, 4], seed=1)
    tensors = (plan.query_starts, plan.key_starts, plan.seq_lens, plan.block_table, plan.slots, segments[0].work)
    addresses = [tensor.data_ptr() for tensor in tensors if tensor is not None]
    plan.update(step.batch)
    assert plan.segments is segments
    assert addresses == [tensor.data_ptr() for tensor in tensors if tensor is not None]
    wanted, wanted_lse = step.reference()
    out, lse = step.layer().forward(step.query, step.key, step.value, step.cache, plan, return_lse=True)
    torch.testing.assert_close(out.double(), wanted, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(lse.double(), wanted_lse, atol=5e-5, rtol=5e-5)


@pytest.mark.parametrize(
    ("lens", "options", "message"),
    [
        (([1, 1, 1], [2, 2, 2]), {}, "3 sequences; the plan has room for 2"),
        (([9, 0], [9, 3]), {}, "a query of 9 tokens; the plan has room for 8"),
        (([1, 1], [50, 2]), {}, "a block_table of 13 columns; the plan has room for 5"),
        (([4, 4], [4, 4]), {}, "8 new keys; the plan has room for 2"),
        (([1, 1], [2, 2]), {"causal": False}, "causal=False; the plan has True"),
        (([1, 1], [1, 1]), {"cached": False}, "block_table is missing"),
    ],
)
def test_a_captured_graph_refuses_what_it_cannot_replay(
    dense_step: Callable[..., Any], lens: tuple[list[int], list[int]], options: dict[str, Any], message: str
) -> None:
    """It would go on with old addresses or old grids, and say nothing."""
    plan = dense_step(_config(), [1, 1], [19, 7]).plan()
    plan.is_captured = True
    with pytest.raises(ConfigError, match=f"the captured graph cannot replay this batch: {message}"):
        plan.update(dense_step(_config(), *lens, **options).batch)


def test_a_captured_prefill_is_not_replayed(dense_step: Callable[..., Any]) -> None:
    """Its launches follow from its lengths; `graph_support` promises decodes alone."""
    assert TritonAttentionBackend.graph_support == "decode"
    plan = dense_step(_config(), [20], [20]).plan()
    plan.is_captured = True
    with pytest.raises(ConfigError, match="graphs are replayed of steps whose queries are all short"):
        plan.update(dense_step(_config(), [20], [20]).batch)


def test_threads_may_run_layers_at_once(dense_step: Callable[..., Any]) -> None:
    """Each gets its own sequences' answer, from the interpreter too, whose place in the grid is a global."""
    steps = [dense_step(_config(sinks=True), [1, 2], [3, 2], seed=seed) for seed in range(3)]
    with ThreadPoolExecutor(len(steps)) as pool:
        found = list(pool.map(lambda step: step.forward()[0], steps))
    for step, out in zip(steps, found, strict=True):
        torch.testing.assert_close(out.double(), step.reference()[0], atol=2e-5, rtol=2e-5)


def test_a_plan_leaves_the_batch_alone(dense_step: Callable[..., Any]) -> None:
    """An update writes to memory of the plan's own, not to the first step's tensors."""
    step = dense_step(_config(), [1, 1], [19, 7])
    before = step.batch.seq_lens.clone()
    step.plan().update(dense_step(_config(), [1, 1], [2, 3]).batch)
    assert torch.equal(step.batch.seq_lens, before)


def test_nothing_is_seen_and_there_are_sinks(dense_step: Callable[..., Any]) -> None:
    """The result is zero, and the denominator is the sink alone; without sinks its logarithm is minus infinity."""
    step = dense_step(_config(sinks=True, attention_type="encoder_decoder"), [2, 1], [0, 3], kv_lens=[0, 3])
    out, lse = step.forward()
    assert (out[:2] == 0).all()
    torch.testing.assert_close(lse[:, 0], step.arguments["sinks"])
    step = dense_step(_config(attention_type="encoder_decoder"), [2, 1], [0, 3], kv_lens=[0, 3])
    assert (step.forward()[1][:, :2] == -torch.inf).all()


def test_sinks_of_minus_infinity_are_no_sinks(dense_step: Callable[..., Any]) -> None:
    """The result is that of a layer without sinks, split or not."""
    for lens in (([9, 1], [9, 4]), ([1, 1], [100, 1])):
        step = dense_step(_config(num_kv_heads=1, sinks=True), *lens)
        step.arguments["sinks"][1:3] = -torch.inf
        step.check(plain=False)


def test_caches_that_share_one_allocation_are_read_in_place(dense_step: Callable[..., Any]) -> None:
    """Key and value interleaved block by block, and strides that belong to no declared order at all."""
    for shape, order in (((2, 4, 16), (0, 1, 2, 3)), ((16, 2, 4), (0, 2, 3, 1))):
        step = dense_step(_config(), **SMALL)
        memory = torch.full((len(step.cache[0]), 2, *shape), torch.nan)
        caches = tuple(memory[:, side].permute(order) for side in (0, 1))
        for cache, old in zip(caches, step.cache, strict=True):
            cache.copy_(old)
        wanted, _ = step.reference()
        step.cache = caches
        torch.testing.assert_close(step.forward()[0].double(), wanted, atol=2e-5, rtol=2e-5)


def test_a_cache_may_come_without_a_block_size_in_the_config(dense_step: Callable[..., Any]) -> None:
    """The backend takes it from the tensors then."""
    step = dense_step(_config(), **SMALL)
    wanted, _ = step.reference()
    step.config = replace(step.config, block_size=None)
    torch.testing.assert_close(step.forward()[0].double(), wanted, atol=2e-5, rtol=2e-5)


def test_many_heads_of_new_keys_are_stored_in_pieces(dense_step: Callable[..., Any]) -> None:
    """A program stores as many heads as fit, and the last one fewer."""
    dense_step(_config(num_heads=18, num_kv_heads=18, head_size=256), [2], [3]).check(plain=False)


def test_programs_of_a_prefill_begin_with_the_longest(dense_step: Callable[..., Any]) -> None:
    """What sees most keys starts first, so that the launch does not wait for a latecomer."""
    step = dense_step(_config(), [20, 30], [20, 90])
    plan = step.plan()
    assert isinstance(plan, TritonPlan)
    (segment,) = plan.segments
    keys = [[20, 90][number] - [20, 30][number] + first for number, first in segment.work.tolist()]
    assert keys == sorted(keys, reverse=True)
    assert len(keys) == 4
