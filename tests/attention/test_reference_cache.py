from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any

import pytest

from hardpoint.attention import (
    AttentionBatch,
    AttentionConfig,
    CacheTensorSpec,
    KVCacheSpec,
    reference_attention,
    write_kv_cache,
)
from tests.attention.steps import AXES, Layout, cache_spec, make_step

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")

NAN = float("nan")


def config(**changes: Any) -> AttentionConfig:
    """A small layer with some fields changed."""
    arguments: dict[str, Any] = {"head_size": 3, "v_head_size": 2, "num_heads": 2, "dtype": "float32", "block_size": 4}
    return AttentionConfig(**{**arguments, **changes})


def batch_of(slots: list[int], **changes: Any) -> AttentionBatch:
    """One sequence whose keys go to these slots."""
    arguments: dict[str, Any] = {"query_lens": [len(slots)], "seq_lens": [len(slots)], "slot_mapping": slots}
    return AttentionBatch.build(**{**arguments, **changes})


def rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """So many keys and values, no two elements alike."""
    return (
        torch.arange(1.0, count * 6 + 1).reshape(count, 2, 3),
        -torch.arange(1.0, count * 4 + 1).reshape(count, 2, 2),
    )


@pytest.mark.parametrize("axes", [("block", *inner) for inner in permutations(AXES[1:])])
def test_rows_land_in_their_slots_and_nowhere_else(axes: tuple[str, ...]) -> None:
    """A slot is block times block size plus offset, in any order of axes and of memory; all else stays as it was."""
    key, value = rows(4)
    for stride_order in permutations(axes):
        spec = cache_spec(config(), Layout(axes=axes, stride_order=stride_order))
        cache = spec.allocate(3, device="cpu")
        for tensor in cache:
            tensor.fill_(NAN)
        write_kv_cache(config(), batch_of([9, 0, -1, 7]), key, value, cache, spec=spec)
        for tensor, new in zip(cache, (key, value), strict=True):
            stored = tensor.permute([axes.index(axis) for axis in ("block", "token", "head", "content")]).flatten(0, 1)
            assert torch.equal(stored[[9, 0, 7]], new[[0, 1, 3]])
            untouched = [slot for slot in range(12) if slot not in (9, 0, 7)]
            assert stored[untouched].isnan().all()


def test_without_a_spec_the_axes_are_the_usual_ones() -> None:
    """Block, head, token, content; the latent has no head."""
    key, value = rows(1)
    cache = [torch.zeros(2, 2, 4, 3), torch.zeros(2, 2, 4, 2)]
    write_kv_cache(config(), batch_of([6]), key, value, cache)
    assert torch.equal(cache[0][1, :, 2], key[0])
    assert torch.equal(cache[1][1, :, 2], value[0])
    latent = AttentionConfig(
        kind="mla_attention", head_size=3, num_heads=2, dtype="float32", kv_lora_rank=2, qk_rope_head_dim=1
    )
    (stored,) = cache = [torch.zeros(2, 4, 3)]
    write_kv_cache(latent, batch_of([6]), key[:, 0], None, cache)
    assert torch.equal(stored[1, 2], key[0, 0])
    assert stored.count_nonzero() == 3


def test_a_spec_may_name_its_tensors_in_any_order_and_leave_out_a_single_head() -> None:
    """Tensors are found by their role, and one key head needs no axis."""
    asked = config(num_kv_heads=1)
    axes = ("block", "token", "content")
    spec = KVCacheSpec(
        tensors=tuple(
            CacheTensorSpec(role=role, axes=axes, sizes=(4, size), dtype="float32", stride_orders=(axes,))
            for role, size in (("value", 2), ("key", 3))
        )
    )
    cache = spec.allocate(2, device="cpu")
    key, value = rows(1)
    write_kv_cache(asked, batch_of([5]), key[:, :1], value[:, :1], cache, spec=spec)
    assert torch.equal(cache[1][1, 1], key[0, 0])
    assert torch.equal(cache[0][1, 1], value[0, 0])


def test_rows_beyond_the_new_keys_are_not_written() -> None:
    """Padding rows are left out even where their slot is a real one."""
    key, value = rows(4)
    cache = [torch.zeros(2, 2, 4, 3), torch.zeros(2, 2, 4, 2)]
    write_kv_cache(config(), batch_of([0, 1, 2, 3], query_lens=[2], seq_lens=[2]), key, value, cache)
    assert cache[0].count_nonzero() == 2 * 6
    assert cache[1].count_nonzero() == 2 * 4


@pytest.mark.parametrize("given", [True, False])
def test_a_sharing_layer_and_a_step_without_keys_write_nothing(given: bool) -> None:
    """A layer that reads another's cache leaves it alone, and so does a step without new keys."""
    cache = [torch.zeros(2, 2, 4, 3), torch.zeros(2, 2, 4, 2)]
    key, value = rows(2)
    if given:
        write_kv_cache(config(kv_sharing=True), batch_of([0, 1]), key, value, cache)
    else:
        write_kv_cache(config(), batch_of([0, 1]), None, None, cache)
    assert not any(tensor.any() for tensor in cache)


@pytest.mark.parametrize(
    ("dtype", "scale", "given", "stored"),
    [
        ("int8", None, [1.4, -1.6, 200.0, -200.0, 0.5, 1.5], [1, -2, 127, -128, 0, 2]),
        ("int8", 0.5, [0.6, 63.0, 64.0, -64.0, -65.0, 0.0], [1, 126, 127, -128, -128, 0]),
        ("float8_e4m3fn", None, [1.0, 1.06, 448.0, 500.0, -1e9, 0.0], [1.0, 1.0, 448.0, 448.0, -448.0, 0.0]),
        ("float8_e4m3fn", 2.0, [2.0, 1000.0, -1000.0, 4.0, 8.0, 0.5], [1.0, 448.0, -448.0, 2.0, 4.0, 0.25]),
        ("float8_e5m2", None, [1.0, 70000.0, -1e9, 1.1, 0.0, 3.0], [1.0, 57344.0, -57344.0, 1.0, 0.0, 3.0]),
        ("float8_e4m3fnuz", None, [1.0, 300.0, -1e9, 240.0, 0.0, 3.0], [1.0, 240.0, -240.0, 240.0, 0.0, 3.0]),
        ("bfloat16", None, [1.0, 1.001, 257.0, 0.1, 0.0, -3.0], [1.0, 1.0, 256.0, 0.10009765625, 0.0, -3.0]),
        ("float16", None, [1.0, 2049.0, 0.1, 0.0, -1.0, 3.0], [1.0, 2048.0, 0.0999755859375, 0.0, -1.0, 3.0]),
    ],
)
def test_a_cache_stores_as_its_dtype_can(
    dtype: str, scale: float | None, given: list[float], stored: list[float]
) -> None:
    """The stored element is value / scale, rounded to the nearest and, where quantised, saturated."""
    asked = config(num_heads=2, v_head_size=3, kv_cache_dtype=dtype)
    key = torch.tensor(given).reshape(1, 2, 3)
    kind = getattr(torch, dtype)
    cache = [torch.zeros(1, 2, 4, 3, dtype=kind), torch.zeros(1, 2, 4, 3, dtype=kind)]
    write_kv_cache(asked, batch_of([1]), key, -key, cache, key_scale=scale, value_scale=scale)
    assert cache[0][0, :, 1].double().flatten().tolist() == stored
    assert cache[0].double()[0, :, 0].count_nonzero() == 0


@pytest.mark.parametrize(
    ("dtype", "key_scale", "value_scale", "tolerance"),
    [
        ("int8", 0.05, 0.02, 0.026),
        ("float8_e4m3fn", 0.5, 2.0, 2**-4 * 4),
        ("float8_e5m2", 1.0, 0.25, 2**-3 * 4),
        ("float8_e4m3fn", None, None, 2**-4 * 4),
        ("bfloat16", None, None, 2**-9 * 4),
    ],
)
def test_keys_are_read_as_they_were_stored(
    dtype: str, key_scale: float | None, value_scale: float | None, tolerance: float
) -> None:
    """Attention from a rounded cache is exactly attention over the stored elements times their scale."""
    asked = config(kv_cache_dtype=dtype, dtype="float64")
    step = make_step(asked, [(5, 5)])
    (one,) = step.sequences
    assert one.value is not None
    kind = getattr(torch, dtype)
    cache = [torch.zeros(3, 2, 4, 3, dtype=kind), torch.zeros(3, 2, 4, 2, dtype=kind)]
    batch = batch_of([8, 9, 10, 11, 0], block_table=[[2, 0]])
    scales: dict[str, Any] = {"key_scale": key_scale, "value_scale": value_scale}
    found = reference_attention(asked, batch, one.query, one.key, one.value, cache, scale=step.scale, **scales)
    write_kv_cache(asked, batch, one.key, one.value, cache, **scales)
    slots = [(2, 0), (2, 1), (2, 2), (2, 3), (0, 0)]
    key, value = (
        torch.stack([tensor[block, :, token].double() for block, token in slots]) * (factor or 1.0)
        for tensor, factor in zip(cache, (key_scale, value_scale), strict=True)
    )
    assert (key - one.key).abs().max() <= tolerance
    assert not torch.equal(key, one.key)
    unpaged = AttentionBatch.build(query_lens=[5], seq_lens=[5])
    expected = reference_attention(asked, unpaged, one.query, key, value, scale=step.scale)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-12, atol=1e-12)


def test_a_token_without_a_slot_is_read_from_where_it_lies() -> None:
    """With a cache, keys come from there alone: a new key with slot -1 is not seen, what lay at its place is."""
    asked = config(dtype="float64")
    step = make_step(asked, [(3, 3)])
    (one,) = step.sequences
    assert one.value is not None
    cache = [torch.zeros(1, 2, 4, 3, dtype=torch.float64), torch.zeros(1, 2, 4, 2, dtype=torch.float64)]
    cache[0][0, :, 1] = one.key[1]
    cache[1][0, :, 1] = one.value[1]
    key, value = one.key.clone(), one.value.clone()
    key[1] = value[1] = NAN
    batch = batch_of([0, -1, 2], block_table=[[0]])
    out, lse = reference_attention(asked, batch, one.query, key, value, cache, scale=step.scale)
    torch.testing.assert_close(out, step.textbook()[0])
    torch.testing.assert_close(lse, step.textbook()[1])


def test_a_latent_cache_is_stored_with_the_key_scale() -> None:
    """The latent tensor serves as key and value, so one scale holds for both."""
    asked = AttentionConfig(
        kind="mla_attention",
        head_size=3,
        num_heads=2,
        dtype="float64",
        kv_cache_dtype="int8",
        kv_lora_rank=2,
        qk_rope_head_dim=1,
    )
    (stored,) = cache = [torch.zeros(1, 4, 3, dtype=torch.int8)]
    latent = torch.tensor([[0.5, 1.0, -1.5]], dtype=torch.float64)
    batch = batch_of([2], block_table=[[0]])
    write_kv_cache(asked, batch, latent, None, cache, key_scale=0.5)
    assert stored[0, 2].tolist() == [1, 2, -3]
    # One key alone: the result is its latent, wherever in the block it lies.
    out, _ = reference_attention(
        asked,
        batch_of([0], block_table=[[0]]),
        torch.ones(1, 2, 3),
        latent,
        None,
        cache,
        scale=1.0,
        key_scale=0.5,
    )
    assert out.tolist() == [[[0.5, 1.0], [0.5, 1.0]]]
