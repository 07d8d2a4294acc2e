"""Real steps through the layers, with a package that computes by the float64 reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hardpoint.attention import AttentionConfig
from tests.kernel_steps import KernelStep

if TYPE_CHECKING:
    from hardpoint.attention import AttentionBackend
    from tests.kernel_library import Library

torch = pytest.importorskip("torch")

STEPS: dict[str, tuple[list[int], list[int]]] = {
    "decode": ([1, 1, 1], [5, 1, 40]),
    "prefill": ([4, 7], [4, 7]),
    "chunked": ([3, 5], [20, 27]),
    "mixed": ([1, 6, 1, 3], [9, 6, 26, 30]),
    "with an empty one": ([1, 0, 1], [7, 0, 4]),
    "with one that asks nothing": ([1, 0, 2], [7, 9, 4]),
    "nothing at all": ([0, 0], [0, 3]),
}


def of(name: str) -> type[AttentionBackend]:
    """A backend by its name, imported late, as everywhere."""
    from hardpoint_aiter.backend import AiterFaBackend
    from hardpoint_aiter.mla import AiterMlaBackend
    from hardpoint_aiter.unified import AiterUnifiedBackend

    found: dict[str, type[AttentionBackend]] = {
        "aiter_fa": AiterFaBackend,
        "aiter_unified": AiterUnifiedBackend,
        "aiter_mla": AiterMlaBackend,
    }
    return found[name]


def config(name: str = "aiter_fa", **changes: Any) -> AttentionConfig:
    """A small decoder, or the latent form."""
    if name == "aiter_mla":
        sizes = {"kind": "mla_attention", "head_size": 576, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
        return AttentionConfig(**{"num_heads": 16, "dtype": "bfloat16", "block_size": 8, **sizes, **changes})
    return AttentionConfig(
        **{"head_size": 32, "num_heads": 4, "num_kv_heads": 2, "dtype": "bfloat16", "block_size": 16, **changes}
    )


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", ["aiter_fa", "aiter_unified", "aiter_mla"])
def test_each_kind_of_batch(library: Library, name: str, step: str) -> None:
    """Decode, prefill, chunks, all of them at once, and sequences without keys or queries."""
    KernelStep.random(of(name), config(name), *STEPS[step], padding=2, skip_slots=True).check()


@pytest.mark.parametrize("name", ["aiter_fa", "aiter_unified"])
@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 3},
        {"sliding_window": 1},
        {"sliding_window": 1000},
        {"sliding_window": 20, "soft_cap": 2.0},
        {"dtype": "float16", "num_kv_heads": 4},
        {"num_heads": 8, "num_kv_heads": 1, "kv_sharing": True},
    ],
)
def test_what_both_dense_ones_do(library: Library, name: str, changes: dict[str, Any]) -> None:
    """Windows, soft cap, both dtypes, groups of heads, a shared cache, in every memory order."""
    for step, order in (("mixed", 0), ("decode", 1), ("prefill", 2)):
        KernelStep.random(of(name), config(**changes), *STEPS[step], stride_order=order).check()


@pytest.mark.parametrize(
    "changes",
    [
        {"sinks": True},
        {"sinks": True, "sliding_window": 5},
        {"alibi": True},
        {"kv_cache_dtype": "float8_e4m3fnuz"},
        {"kv_cache_dtype": "float8_e5m2"},
    ],
)
def test_what_the_unified_one_does(library: Library, changes: dict[str, Any]) -> None:
    """Sinks, ALiBi, 8-bit caches with their scales; the lse is worked out beside the kernel."""
    KernelStep.random(of("aiter_unified"), config(**changes), *STEPS["mixed"]).check()


@pytest.mark.parametrize(
    "changes",
    [
        {"block_size": 1},
        {"block_size": 5, "sliding_window": 7},
        {"causal": False},
        {"causal": False, "sliding_window": 4},
    ],
)
def test_what_flash_attention_does(library: Library, changes: dict[str, Any]) -> None:
    """Blocks of any size, no causal mask, a window of two sides."""
    KernelStep.random(of("aiter_fa"), config(**changes), *STEPS["mixed"]).check()


@pytest.mark.parametrize(
    "changes",
    [{}, {"attention_type": "encoder"}, {"attention_type": "encoder_only", "sliding_window": 3, "soft_cap": 5.0}],
)
def test_without_a_cache(library: Library, changes: dict[str, Any]) -> None:
    """Encoders, vision towers and plain prefill attend over the new keys alone, packed."""
    KernelStep.random(of("aiter_fa"), config(block_size=None, **changes), [5, 0, 2], [5, 0, 2], padding=1).check()


def test_cross_attention(library: Library) -> None:
    """The first step writes the other sequence's keys, later ones only read them; rows may outnumber keys."""
    for causal, window in ((False, None), (True, 2), (False, 3)):
        cross = config(attention_type="encoder_decoder", causal=causal, sliding_window=window)
        KernelStep.random(of("aiter_fa"), cross, [2, 5, 0], [6, 3, 2], kv_lens=[6, 3, 2]).check()
        KernelStep.random(of("aiter_fa"), cross, [1, 6, 0], [6, 3, 2], new_keys=False).check()


@pytest.mark.parametrize("changes", [{"causal": False}, {"num_heads": 128}, {"block_size": 1}, {"kv_sharing": True}])
def test_what_the_latent_form_does(library: Library, changes: dict[str, Any]) -> None:
    """No causal mask, the most heads, blocks of one token, a shared cache."""
    KernelStep.random(of("aiter_mla"), config("aiter_mla", **changes), [1, 2, 2], [9, 2, 5]).check()


def test_rows_that_see_nothing_are_zero(library: Library) -> None:
    """More queries than keys: rows before all keys."""
    for name in ("aiter_fa", "aiter_unified", "aiter_mla"):
        shared = config(name, kv_sharing=True)
        KernelStep.random(of(name), shared, [6, 1], [2, 5], new_keys=False).check()


def test_a_long_prefill_of_the_latent_form_is_several_calls(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of key indices of one call has a limit."""
    import hardpoint_aiter.mla

    monkeypatch.setattr(hardpoint_aiter.mla, "_KEYS_PER_CALL", 12)
    step = KernelStep.random(of("aiter_mla"), config("aiter_mla"), [6, 1], [6, 20])
    step.layer().forward(step.query, step.key, step.value, step.cache, step.plan())
    sizes = [len(call["kv_indices"]) for _, call in library.calls]
    assert sizes == [10, 11, 20]
    step.check()


def test_a_step_without_a_causal_mask_is_refused_by_the_unified_one(library: Library) -> None:
    """The config is causal, so it was accepted; a step that lifts the mask is not."""
    with pytest.raises(ValueError, match="has a causal mask always"):
        KernelStep.random(of("aiter_unified"), config(), [2], [2], causal=False).plan()


@pytest.mark.parametrize("name", ["aiter_unified", "aiter_mla"])
def test_without_a_cache_it_says_so(library: Library, name: str) -> None:
    """Their kernels read nothing else."""
    step = KernelStep.random(of(name), config(name), [2], [2])
    with pytest.raises(ValueError, match="reads a cache"):
        step.layer().forward(step.query, step.key, step.value, None, step.plan())


def test_one_plan_serves_many_steps(library: Library) -> None:
    """`update` takes the next step in place."""
    for name in ("aiter_fa", "aiter_unified", "aiter_mla"):
        first = KernelStep.random(of(name), config(name), [4], [4])
        layer, plan = first.layer(), first.plan()
        for queries, keys in STEPS.values():
            step = KernelStep.random(of(name), config(name), queries, keys)
            plan.update(step.batch)
            step.check(layer, plan)
