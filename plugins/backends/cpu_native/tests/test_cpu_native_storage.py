"""What a cache may be stored in, the latent form, lengths at the edges of blocks, and random configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hardpoint.attention import AttentionBatch, AttentionConfig, reference_attention, write_kv_cache
from hardpoint_cpu_native.plugin import CACHE_DTYPES, DTYPES
from tests.attention.conformance import MIXED, TOLERANCES, Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from hardpoint_cpu_native._kernels import Kernels

pytestmark = pytest.mark.torch


def _config(**options: Any) -> AttentionConfig:
    defaults: dict[str, Any] = {"head_size": 32, "num_heads": 4, "num_kv_heads": 2, "dtype": "float32", "block_size": 4}
    return AttentionConfig(**defaults | options)


def _latent(**options: Any) -> AttentionConfig:
    defaults: dict[str, Any] = {"kv_lora_rank": 32, "qk_rope_head_dim": 16, "num_heads": 6, "dtype": "float32"}
    chosen: dict[str, Any] = {"kind": "mla_attention", "block_size": 4} | defaults | options
    return AttentionConfig(head_size=chosen["kv_lora_rank"] + chosen["qk_rope_head_dim"], **chosen)


@pytest.mark.parametrize("cache", CACHE_DTYPES[1:])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_storage_dtype_agrees_with_the_reference(
    random_step: Callable[..., Step], dtype: str, cache: str
) -> None:
    """What is written is the reference's byte for byte; decodes and prefills read it alike."""
    random_step(_config(dtype=dtype, kv_cache_dtype=cache, sinks=True), **MIXED, padding=2).check()
    random_step(_config(dtype=dtype, kv_cache_dtype=cache, head_size=80, num_heads=18), [1, 40], [150, 90]).check()


@pytest.mark.parametrize("cache", ["auto", "float8_e4m3fn", "int8", "bfloat16"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [6, 32])
def test_the_latent_form_agrees_with_the_reference(latent: Any, dtype: str, cache: str, heads: int) -> None:
    """Key and value are both what the storage holds; long sequences are cut, few heads and many."""
    config = _latent(dtype=dtype, kv_cache_dtype=cache, num_heads=heads)
    Step.random(latent, config, [1, 7, 1], [1200, 300, 3]).check()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_latent_form_of_real_size(latent: Any, dtype: str) -> None:
    """512 and 64, sixteen heads."""
    config = _latent(kv_lora_rank=512, qk_rope_head_dim=64, num_heads=16, dtype=dtype, block_size=16)
    Step.random(latent, config, [1, 3], [70, 40]).check()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_every_8_bit_number_is_read_as_it_is(backend: Any, dtype: torch.dtype) -> None:
    """All 256 of them, NaN too: one key per sequence, so that the result is its value."""
    config = _config(head_size=16, num_heads=1, num_kv_heads=1, block_size=1, kv_cache_dtype=str(dtype))
    values = torch.arange(256, dtype=torch.uint8).view(16, 1, 1, 16).view(dtype)
    keys = torch.zeros(16, 1, 1, 16).to(dtype)
    batch = AttentionBatch.build(
        query_lens=[1] * 16, seq_lens=[1] * 16, block_table=[[n] for n in range(16)], slot_mapping=[-1] * 16
    )
    layer = backend.create_layer(config, scale=1.0, device="cpu")
    new = torch.zeros(16, 1, 16)
    out = layer.forward(torch.zeros(16, 1, 16), new, new, (keys, values), backend.plan(config, batch))
    torch.testing.assert_close(out.flatten(), values.flatten().float(), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("cache", ["float8_e4m3fn", "int8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_stored_numbers_round_to_the_nearest_and_saturate(
    random_step: Callable[..., Step], dtype: str, cache: str
) -> None:
    """Ties, denormal numbers, numbers beyond the largest and infinities are stored as the reference stores them."""
    step = random_step(_config(dtype=dtype, kv_cache_dtype=cache, block_size=16), [64], [64])
    edges = torch.cat([torch.arange(0, 520, 0.25), torch.linspace(0, 0.04, 1500), torch.tensor([1e9, torch.inf])])
    both = torch.cat([edges, -edges])[: 64 * 2 * 32]
    for name in ("key", "value"):
        tensor = getattr(step, name)
        tensor.view(-1)[: len(both)] = both.to(tensor.dtype)
    step.arguments |= {"key_scale": 1.0, "value_scale": 0.3}
    written = tuple(tensor.clone() for tensor in step.cache or ())
    scales = {"key_scale": 1.0, "value_scale": 0.3}
    write_kv_cache(step.config, step.batch, step.key, step.value, written, spec=step.spec, **scales)
    step.forward()
    for ours, theirs in zip(step.cache or (), written, strict=True):
        assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


@pytest.mark.parametrize("block_size", [1, 16, 48])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lengths_at_the_edges_of_blocks(random_step: Callable[..., Step], dtype: str, block_size: int) -> None:
    """0, 1, one less than a block, a block, one more; decoded and prefilled whole."""
    lengths = [0, 1, max(1, block_size - 1), block_size, block_size + 1, 2 * block_size]
    config = _config(dtype=dtype, block_size=block_size)
    random_step(config, [min(1, n) for n in lengths], lengths).check()
    random_step(config, lengths, lengths).check()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_hundred_thousand_keys(random_step: Callable[..., Step], dtype: str) -> None:
    """One decode and one short prefill at the end of a very long sequence."""
    config = _config(head_size=16, num_heads=2, num_kv_heads=1, dtype=dtype, block_size=16)
    step = random_step(config, [1, 2], [100_000, 70_000])
    wanted, wanted_lse = step.reference()
    out, lse = step.forward()
    tolerance, lse_tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(out.double(), wanted, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse.double(), wanted_lse, atol=lse_tolerance, rtol=lse_tolerance)


def test_sequences_may_share_blocks(backend: Any) -> None:
    """Three sequences with one prefix in the same blocks."""
    config = _config(head_size=16, block_size=4)
    cache = tuple(torch.randn(6, 2, 4, 16) for _ in range(2))
    table = [[0, 1, 2], [0, 1, 3], [0, 1, 4]]
    batch = AttentionBatch.build(query_lens=[1, 3, 1], seq_lens=[9, 11, 8], block_table=table, slot_mapping=[-1] * 5)
    new, query = torch.zeros(5, 2, 16), torch.randn(5, 4, 16)
    wanted, _ = reference_attention(config, batch, query, new, new, cache, scale=0.25)
    out = backend.create_layer(config, scale=0.25, device="cpu").forward(
        query, new, new, cache, backend.plan(config, batch)
    )
    torch.testing.assert_close(out.double(), wanted, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("offset", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_need_no_alignment_beyond_their_elements(
    random_step: Callable[..., Step], dtype: str, offset: int
) -> None:
    """Query, new rows, cache and result begin anywhere."""
    step = random_step(_config(dtype=dtype), [1, 20], [70, 40])
    wanted, _ = step.reference()

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        memory = torch.empty(tensor.numel() + offset, dtype=tensor.dtype)
        return memory[offset:].view(tensor.shape).copy_(tensor)

    for name in ("query", "key", "value"):
        setattr(step, name, moved(getattr(step, name)))
    step.cache = tuple(map(moved, step.cache or ()))
    out = moved(torch.zeros_like(step.query))
    step.forward(out=out)
    tolerance, _ = TOLERANCES[dtype]
    torch.testing.assert_close(out.double(), wanted, atol=tolerance, rtol=tolerance)


@st.composite
def _steps(draw: st.DrawFn) -> tuple[AttentionConfig, dict[str, Any]]:
    sizes = st.sampled_from([16, 48, 80, 128, 256])
    kv_heads = draw(st.integers(1, 3))
    options: dict[str, Any] = {
        "head_size": draw(sizes),
        "v_head_size": draw(sizes),
        "num_kv_heads": kv_heads,
        "num_heads": kv_heads * draw(st.integers(1, 9)),
        "dtype": draw(st.sampled_from(DTYPES)),
        "kv_cache_dtype": draw(st.sampled_from(CACHE_DTYPES)),
        "block_size": draw(st.integers(1, 40)),
        "sliding_window": draw(st.none() | st.integers(1, 60)),
        "sinks": draw(st.booleans()),
        "alibi": draw(st.booleans()),
        "soft_cap": draw(st.none() | st.floats(0.5, 50)),
        "causal": draw(st.booleans()),
    }
    lengths = draw(st.lists(st.tuples(st.integers(0, 25), st.integers(0, 90)), min_size=1, max_size=3))
    step = {"query_lens": [new for new, _ in lengths], "seq_lens": [new + old for new, old in lengths]}
    return AttentionConfig(**options), step | {"skip_slots": draw(st.booleans()), "padding": draw(st.integers(0, 2))}


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=_steps())
def test_any_configuration_on_any_batch(
    backend: Any, kernels: Kernels, drawn: tuple[AttentionConfig, dict[str, Any]]
) -> None:
    """Whatever is declared agrees with the reference."""
    config, step = drawn
    Step.random(backend, config, **step).check()
