"""The tests that every backend is held to, in the families that are cheap to have; the rest is marked long."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch

from hardpoint import DeviceCapability
from hardpoint.attention import AttentionConfig
from hardpoint_flex_attention.backend import FlexAttentionBackend
from hardpoint_flex_attention.plugin import SUPPORT
from tests.attention.conformance import FEATURES, MIXED, Conformance, Step

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

# What is compiled in, and so is another family.
_COMPILED_IN = {"alibi", "soft_cap", "v_head_size"}
CPU = DeviceCapability(runtime="cpu", arch="x86-64-v3", features=frozenset({"avx2"}))


class TestFlexAttention(Conformance):
    """Everything that is data to the compiled functions: windows, causality, sinks, chunks, cross attention."""

    backend = FlexAttentionBackend
    support = SUPPORT
    capability = CPU
    dtypes: ClassVar[tuple[str, ...]] = ("float32",)
    base: ClassVar[dict[str, Any]] = {"head_size": 16, "num_heads": 4, "num_kv_heads": 2, "block_size": 16}
    cases: ClassVar = {name: case for name, case in FEATURES.items() if not _COMPILED_IN & set(case.config)}
    block_sizes: ClassVar[tuple[int, ...]] = (16,)


@pytest.mark.long
class TestHalfPrecision(TestFlexAttention):
    """The same in 16 bits."""

    dtypes = ("bfloat16",)
    cases: ClassVar = {name: FEATURES[name] for name in ("plain", "sinks", "a longer prefill behind a longer context")}


@pytest.mark.long
class TestOtherFamilies(TestFlexAttention):
    """What is compiled in, with other blocks than those that the kernel reads in place."""

    base: ClassVar[dict[str, Any]] = {"head_size": 16, "num_heads": 4, "num_kv_heads": 2, "block_size": 4}
    cases: ClassVar = {name: FEATURES[name] for name in ("all and a soft cap", "smaller value head")}
    block_sizes = (1, 3, 256)


@pytest.mark.long
@pytest.mark.parametrize(
    ("head_size", "v_head_size", "num_heads", "num_kv_heads", "dtype"),
    [(576, 512, 16, 1, "bfloat16"), (72, 72, 3, 3, "float32"), (5, 3, 6, 2, "float16"), (256, 256, 8, 1, "bfloat16")],
)
def test_head_sizes_and_groups(head_size: int, v_head_size: int, num_heads: int, num_kv_heads: int, dtype: str) -> None:
    """From odd small sizes to the latent's, from one query head per key head to sixteen."""
    config = AttentionConfig(
        head_size=head_size,
        v_head_size=v_head_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        dtype=dtype,
        block_size=32,
    )
    Step.random(FlexAttentionBackend, config, **MIXED, skip_slots=True, padding=1).check()


@pytest.mark.long
def test_a_vision_tower_of_an_odd_head_size() -> None:
    """Encoder-only attention of head size 72 over images of different sizes, packed, without a cache."""
    config = AttentionConfig(head_size=72, num_heads=4, dtype="bfloat16", attention_type="encoder_only")
    Step.random(FlexAttentionBackend, config, [256, 64, 1, 100], [256, 64, 1, 100], padding=3).check()


def test_caches_that_share_one_allocation_are_gathered(base: dict[str, Any]) -> None:
    """Key and value interleaved block by block are no row of tokens, which the kernel would need."""
    step = Step.random(FlexAttentionBackend, AttentionConfig(**base), **MIXED)
    assert step.cache is not None
    memory = torch.full((len(step.cache[0]), 2, *step.cache[0].shape[1:]), torch.nan)
    caches = (memory[:, 0], memory[:, 1])
    for cache, old in zip(caches, step.cache, strict=True):
        cache.copy_(old)
    step.cache = caches
    step.check()


def test_a_block_may_stand_at_two_places(base: dict[str, Any]) -> None:
    """Sequences share a block, one of them at another place in its order; positions are by sequence then."""
    step = Step.random(FlexAttentionBackend, AttentionConfig(**base), [1, 1, 1], [40, 33, 48], poison=1.0)
    assert step.batch.block_table is not None
    step.key = step.value = None
    assert step.cache is not None
    for cache in step.cache:
        cache.nan_to_num_()
    step.batch.block_table[1, 0] = step.batch.block_table[0, 1]
    step.batch.block_table[2, 0] = step.batch.block_table[0, 1]
    for window in (None, 20):
        config = AttentionConfig(**base, sliding_window=window)
        step.config = config
        wanted, _ = step.reference()
        torch.testing.assert_close(step.forward()[0].double(), wanted, atol=2e-5, rtol=2e-5)
