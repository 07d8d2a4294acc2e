"""Real steps through the layers, with a package that computes by the float64 reference."""

from __future__ import annotations

import gc
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


def backend() -> type[AttentionBackend]:
    """Imported late, as everywhere."""
    from hardpoint_flashinfer.backend import FlashInferBackend

    return FlashInferBackend


def latent_backend() -> type[AttentionBackend]:
    """The latent one."""
    from hardpoint_flashinfer.mla import FlashInferMlaBackend

    return FlashInferMlaBackend


def config(**changes: Any) -> AttentionConfig:
    """A small decoder."""
    return AttentionConfig(
        **{"head_size": 64, "num_heads": 4, "num_kv_heads": 2, "dtype": "bfloat16", "block_size": 16, **changes}
    )


def latent(**changes: Any) -> AttentionConfig:
    """The latent form in its usual sizes."""
    sizes = {"head_size": 576, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    return AttentionConfig(
        **{"kind": "mla_attention", "num_heads": 8, "dtype": "bfloat16", "block_size": 16, **sizes, **changes}
    )


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", ["dense", "latent"])
def test_each_kind_of_batch(flashinfer: Library, kind: str, step: str) -> None:
    """Decode, prefill, chunks, all of them at once, and sequences without keys or queries; its lse has base 2."""
    tried, asked = (backend(), config()) if kind == "dense" else (latent_backend(), latent())
    KernelStep.random(tried, asked, *STEPS[step], padding=2, skip_slots=True).check()


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 3},
        {"sliding_window": 1, "block_size": 1},
        {"sliding_window": 1000},
        {"sliding_window": 17, "block_size": 5},
        {"soft_cap": 2.0},
        {"causal": False},
        {"dtype": "float16", "kv_cache_dtype": "fp8"},
        {"kv_cache_dtype": "float8_e5m2", "sliding_window": 4},
        {"num_heads": 8, "num_kv_heads": 1},
        {"num_kv_heads": 4, "kv_sharing": True},
    ],
)
@pytest.mark.parametrize("step", ["decode", "mixed"])
def test_what_it_does(flashinfer: Library, changes: dict[str, Any], step: str) -> None:
    """Windows, soft cap, no causal mask, 8-bit caches, groups of heads, pages of any size, both memory orders."""
    for order in (0, 1):
        KernelStep.random(backend(), config(**changes), *STEPS[step], stride_order=order).check()


@pytest.mark.parametrize(
    "changes",
    [
        {"causal": False},
        {"block_size": 1},
        {"num_heads": 128},
        {"kv_cache_dtype": "fp8"},
        {"head_size": 320, "kv_lora_rank": 256},
    ],
)
def test_what_the_latent_form_does(flashinfer: Library, changes: dict[str, Any]) -> None:
    """No causal mask, pages of one token, the most heads, an 8-bit cache, the smaller latent."""
    KernelStep.random(latent_backend(), latent(**changes), [1, 2], [9, 2]).check()


@pytest.mark.parametrize("causal", [True, False])
def test_rows_that_see_nothing_are_zero(flashinfer: Library, causal: bool) -> None:
    """More queries than keys: the library gives such rows the mean of all values."""
    shared = config(kv_sharing=True, causal=causal)
    KernelStep.random(backend(), shared, [6, 1], [2, 5], new_keys=False).check()
    KernelStep.random(latent_backend(), latent(causal=causal), [6, 1], [2, 0], new_keys=False).check()


def test_steps_of_one_token_go_through_the_decode_wrapper(flashinfer: Library) -> None:
    """With matrix units from four query heads per key head on; every other step through the prefill wrapper."""
    for heads, units in ((4, False), (8, True)):
        flashinfer.calls.clear()
        KernelStep.random(backend(), config(num_heads=heads), *STEPS["decode"]).check()
        made = [call for name, call in flashinfer.calls if name.endswith("__init__")]
        assert [call["use_tensor_cores"] for call in made] == [units]
    flashinfer.calls.clear()
    KernelStep.random(backend(), config(), *STEPS["mixed"]).check()
    assert {name.partition(".")[0] for name, _ in flashinfer.calls} == {
        "flashinfer:BatchPrefillWithPagedKVCacheWrapper"
    }


@pytest.mark.parametrize("kind", ["dense", "latent"])
def test_a_step_is_planned_once_for_all_layers(flashinfer: Library, kind: str) -> None:
    """Layers of one scale share a plan; a second scale, or a first lse of the latent form, is planned for itself."""
    tried, asked = (backend(), config()) if kind == "dense" else (latent_backend(), latent())
    step = KernelStep.random(tried, asked, *STEPS["mixed"])
    plan = step.plan()
    for _ in range(3):
        step.layer().forward(step.query, step.key, step.value, step.cache, plan)
    assert [name for name, _ in flashinfer.calls].count(_plan_name(kind)) == 1
    other = tried.create_layer(asked, scale=0.5, device="cpu")
    other.forward(step.query, step.key, step.value, step.cache, plan)
    other.forward(step.query, step.key, step.value, step.cache, plan, return_lse=True)
    assert [name for name, _ in flashinfer.calls].count(_plan_name(kind)) == (2 if kind == "dense" else 3)


def _plan_name(kind: str) -> str:
    if kind == "dense":
        return "flashinfer:BatchPrefillWithPagedKVCacheWrapper.plan"
    return "flashinfer.mla:BatchMLAPagedAttentionWrapper.plan"


def test_wrappers_are_kept_between_steps(flashinfer: Library) -> None:
    """A plan that is gone gives its wrapper back; one that is updated plans with its own."""
    for _ in range(3):
        KernelStep.random(backend(), config(), *STEPS["mixed"]).check()
        gc.collect()
    step = KernelStep.random(backend(), config(), *STEPS["prefill"])
    layer, plan = step.layer(), step.plan()
    for queries, keys in (STEPS["prefill"], STEPS["chunked"], STEPS["mixed"]):
        following = KernelStep.random(backend(), config(), queries, keys)
        plan.update(following.batch)
        following.check(layer, plan)
    made = [name for name, _ in flashinfer.calls if name.endswith("__init__")]
    assert made == ["flashinfer:BatchPrefillWithPagedKVCacheWrapper.__init__"]


def test_two_plans_at_once_have_two_wrappers(flashinfer: Library) -> None:
    """The groups of layers of one step may differ in their windows, so both plans are alive together."""
    steps = [
        KernelStep.random(backend(), config(sliding_window=window), *STEPS["mixed"], seed=2) for window in (None, 3)
    ]
    plans = [step.plan() for step in steps]
    for step, plan in zip(steps, plans, strict=True):
        step.check(plan=plan)
    for step, plan in zip(steps, plans, strict=True):
        step.check(plan=plan)


def test_a_window_without_a_causal_mask_is_refused_in_the_step(flashinfer: Library) -> None:
    """The config is causal, so it was accepted; a step that lifts the mask is not."""
    with pytest.raises(ValueError, match="has two sides; FlashInfer's has a left one only"):
        KernelStep.random(backend(), config(sliding_window=4), [2], [2], causal=False).plan()


def test_without_a_cache_it_says_so(flashinfer: Library) -> None:
    """Its paged kernels read nothing else."""
    step = KernelStep.random(backend(), config(), [2], [2])
    with pytest.raises(ValueError, match="paged kernels read a cache"):
        step.layer().forward(step.query, step.key, step.value, None, step.plan())
