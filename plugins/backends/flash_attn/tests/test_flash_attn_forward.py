"""Real steps through the layer, with packages that compute by the float64 reference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hardpoint.attention import AttentionConfig
from tests.kernel_steps import KernelStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from hardpoint.attention import AttentionBackend
    from tests.kernel_library import Library

    Flash = Callable[..., list[Library]]

torch = pytest.importorskip("torch")

STEPS: dict[str, tuple[list[int], list[int]]] = {
    "decode": ([1, 1, 1], [5, 1, 260]),
    "prefill": ([4, 7], [4, 7]),
    "chunked": ([3, 5], [20, 260]),
    "mixed": ([1, 6, 1, 3], [9, 6, 40, 30]),
    "with an empty one": ([1, 0, 1], [7, 0, 4]),
    "with one that asks nothing": ([1, 0, 2], [7, 9, 4]),
    "nothing at all": ([0, 0], [0, 3]),
}
DEVICES = {"fa2": (8, 0), "fa3": (9, 0), "fa4": (10, 0)}


def backend() -> type[AttentionBackend]:
    """Imported late, as everywhere."""
    from hardpoint_flash_attn.backend import FlashAttnBackend

    return FlashAttnBackend


def config(**changes: Any) -> AttentionConfig:
    """A small decoder with a block size that all three take."""
    return AttentionConfig(
        **{"head_size": 16, "num_heads": 4, "num_kv_heads": 2, "dtype": "bfloat16", "block_size": 256, **changes}
    )


@pytest.mark.parametrize("generation", ["fa2", "fa3", "fa4"])
@pytest.mark.parametrize("step", STEPS)
def test_each_kind_of_batch(flash: Flash, generation: str, step: str) -> None:
    """Decode, prefill, chunks, all of them at once, and sequences without keys or queries."""
    flash(generation, capability=DEVICES[generation])
    KernelStep.random(backend(), config(), *STEPS[step], padding=2, skip_slots=True).check()


@pytest.mark.parametrize("generation", ["fa2", "fa3", "fa4"])
@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 3},
        {"sliding_window": 1},
        {"sliding_window": 1000},
        {"soft_cap": 2.0},
        {"causal": False},
        {"causal": False, "sliding_window": 4},
        {"num_kv_heads": 4, "dtype": "float16"},
        {"num_kv_heads": 1, "head_size": 128},
    ],
)
def test_what_all_three_do(flash: Flash, generation: str, changes: dict[str, Any]) -> None:
    """Windows, soft cap, no causal mask, groups of heads, in both memory orders."""
    flash(generation, capability=DEVICES[generation])
    for order in (0, 1):
        KernelStep.random(backend(), config(**changes), *STEPS["mixed"], stride_order=order).check()


@pytest.mark.parametrize("window", [None, 2, 5, 1000])
@pytest.mark.parametrize("step", ["decode", "prefill", "mixed"])
def test_alibi_with_its_lse(flash: Flash, window: int | None, step: str) -> None:
    """FlashAttention 2 shifts its lse under a plain causal mask and not under a window; ours is right in both."""
    flash("fa2", capability=(8, 0))
    KernelStep.random(backend(), config(alibi=True, sliding_window=window), *STEPS[step]).check()


def test_alibi_without_a_causal_mask_is_refused_in_the_step(flash: Flash) -> None:
    """The config is causal, so it was accepted; a step that lifts the mask is not."""
    flash("fa2", capability=(8, 0))
    with pytest.raises(ValueError, match="alibi without a causal mask"):
        KernelStep.random(backend(), config(alibi=True), [2], [2], causal=False).plan()


@pytest.mark.parametrize("block_size", [None, 1, 3, 16, 256])
def test_sinks(flash: Flash, block_size: int | None) -> None:
    """FlashAttention 4 has them, with and without a cache, in blocks of any size."""
    flash("fa4", capability=(9, 0))
    KernelStep.random(backend(), config(sinks=True, block_size=block_size), [3, 0, 1], [3, 0, 1]).check()


@pytest.mark.parametrize("generation", ["fa2", "fa3", "fa4"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention_type": "encoder"},
        {"attention_type": "encoder_only", "sliding_window": 3},
        {"attention_type": "encoder_only", "soft_cap": 5.0},
    ],
)
def test_without_a_cache(flash: Flash, generation: str, changes: dict[str, Any]) -> None:
    """Encoders, vision towers and plain prefill attend over the new keys alone, packed."""
    flash(generation, capability=DEVICES[generation])
    KernelStep.random(backend(), config(block_size=None, **changes), [5, 0, 2, 1], [5, 0, 2, 1], padding=1).check()


@pytest.mark.parametrize("generation", ["fa2", "fa3", "fa4"])
def test_cross_attention(flash: Flash, generation: str) -> None:
    """The first step writes the other sequence's keys, later ones only read them; rows may outnumber keys."""
    flash(generation, capability=DEVICES[generation])
    cross = config(attention_type="encoder_decoder")
    KernelStep.random(backend(), cross, [2, 5, 0], [6, 3, 2], kv_lens=[6, 3, 2]).check()
    KernelStep.random(backend(), cross, [1, 1, 0], [6, 3, 2], new_keys=False).check()


@pytest.mark.parametrize("generation", ["fa3", "fa4"])
def test_cross_attention_with_more_queries_than_keys(flash: Flash, generation: str) -> None:
    """Rows before all keys see nothing under a causal mask: zero, and an lse of minus infinity."""
    flash(generation, capability=DEVICES[generation])
    for causal, window in ((True, None), (True, 2), (False, 3)):
        cross = config(attention_type="encoder_decoder", causal=causal, sliding_window=window)
        KernelStep.random(backend(), cross, [6, 2], [2, 5], kv_lens=[2, 5]).check()


def test_without_a_cache_keys_of_sequences_that_ask_nothing_are_left_out(flash: Flash) -> None:
    """The packed keys of such a sequence stand between those of the others."""
    for generation, capability in DEVICES.items():
        flash(generation, capability=capability)
        encoder = config(attention_type="encoder_only", block_size=None)
        KernelStep.random(backend(), encoder, [2, 0, 1], [3, 4, 2], kv_lens=[3, 4, 2]).check()


@pytest.mark.parametrize("changes", [{"block_size": 128}, {"block_size": None}, {"sliding_window": 3}])
def test_on_amd_devices(flash: Flash, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    """There FlashAttention 2 is Composable Kernel, with pages of 128; torch says which device it is."""
    flash("fa2")
    monkeypatch.setattr(torch.version, "hip", "6.4.1")
    properties = SimpleNamespace(gcnArchName="gfx942:sramecc+:xnack-")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: properties)
    asked = config(**{"block_size": 128, **changes})
    KernelStep.random(backend(), asked, [2, 1], [2, 1], padding=1).check()


def test_a_shared_cache_is_not_written(flash: Flash) -> None:
    """A layer that shares another's cache reads it, whatever new rows it is handed."""
    flash("fa3")
    KernelStep.random(backend(), config(kv_sharing=True), [2, 1], [9, 4]).check()


def test_different_head_sizes(flash: Flash) -> None:
    """The sizes of an up-projected latent, with and without a cache."""
    for generation, capability in (("fa3", (9, 0)), ("fa4", (10, 0))):
        flash(generation, capability=capability)
        for block_size in (None, 16):
            sizes = config(head_size=192, v_head_size=128, block_size=block_size, num_heads=1, num_kv_heads=1)
            KernelStep.random(backend(), sizes, [3], [3]).check()


def test_one_layer_and_one_plan_serve_many_steps(flash: Flash) -> None:
    """`update` takes the next step in place."""
    flash("fa3")
    first = KernelStep.random(backend(), config(), [4], [4])
    layer, plan = first.layer(), first.plan()
    first.check(layer, plan)
    for queries, keys in STEPS.values():
        step = KernelStep.random(backend(), config(), queries, keys)
        plan.update(step.batch)
        step.check(layer, plan)


def test_equal_bits_ask_for_one_split(flash: Flash) -> None:
    """Only FlashAttention 3 promises them, and only without splits and packing by the batch's shape."""
    (library,) = flash("fa3")
    KernelStep.random(backend(), config(head_size=128, batch_invariant=True), [1, 3], [9, 4]).check()
    assert {(call["num_splits"], call["pack_gqa"]) for _, call in library.calls} == {(1, False)}


@pytest.mark.parametrize("generation", ["fa3", "fa4"])
@pytest.mark.parametrize("step", STEPS)
def test_the_latent_form(flash: Flash, generation: str, step: str) -> None:
    """Both parts are views of one tensor; the lse of FlashAttention 4 has its heads last here."""
    from hardpoint_flash_attn.mla import FlashAttnMlaBackend

    flash(generation, capability=DEVICES[generation])
    latent = AttentionConfig(
        kind="mla_attention",
        head_size=576,
        num_heads=16,
        dtype="bfloat16",
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        block_size=64,
    )
    KernelStep.random(FlashAttnMlaBackend, latent, *STEPS[step], padding=1, skip_slots=True).check()
