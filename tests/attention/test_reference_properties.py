from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardpoint.attention import AttentionConfig, merge_attention
from tests.attention.steps import AXES, Layout, Step, Tokens, assert_same, make_step

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")

properties = settings(deadline=None, max_examples=40)

LENS = st.lists(
    st.integers(0, 9).flatmap(lambda keys: st.tuples(st.just(keys), st.integers(0, min(keys, 5)))), max_size=4
)


@st.composite
def configs(draw: st.DrawFn) -> AttentionConfig:
    """Small layers with every option."""
    kv_heads = draw(st.integers(1, 2))
    causal = draw(st.booleans())
    options: dict[str, Any] = {
        "causal": causal,
        "sliding_window": draw(st.none() | st.integers(1, 6)),
        "sinks": draw(st.booleans()),
        "alibi": draw(st.booleans()),
        "soft_cap": draw(st.none() | st.floats(0.1, 5.0)),
    }
    if draw(st.integers(0, 3)) == 0:
        latent, rotary = draw(st.integers(1, 4)), draw(st.integers(0, 3))
        return AttentionConfig(
            kind="mla_attention",
            head_size=latent + rotary,
            num_heads=draw(st.integers(1, 3)),
            dtype="float64",
            kv_lora_rank=latent,
            qk_rope_head_dim=rotary,
            **options,
        )
    return AttentionConfig(
        head_size=draw(st.integers(1, 5)),
        v_head_size=draw(st.integers(1, 5)),
        num_heads=kv_heads * draw(st.integers(1, 3)),
        num_kv_heads=kv_heads,
        dtype="float64",
        **options,
    )


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Steps of at least one sequence."""
    return make_step(draw(configs()), draw(LENS.filter(bool)), seed=draw(st.integers(0, 2**16)))


@st.composite
def layouts(draw: st.DrawFn, config: AttentionConfig) -> Layout:
    """Every way in which a cache can lie in memory."""
    inner = ("token", "content") if config.kind == "mla_attention" else AXES[1:]
    axes = ("block", *draw(st.sampled_from(sorted(permutations(inner)))))
    return Layout(
        block_size=draw(st.integers(1, 6)),
        axes=axes,
        stride_order=draw(st.sampled_from(sorted(permutations(axes)))),
        seed=draw(st.integers(0, 2**16)),
    )


@properties
@given(steps())
def test_the_answer_is_that_of_the_textbook(step: Step) -> None:
    """Whatever is asked, the answer is a masked softmax over the whole matrix of logits."""
    assert_same(step.unpaged(), step.textbook())


@properties
@given(steps(), st.data())
def test_paging_does_not_matter(step: Step, data: st.DataObject) -> None:
    """Any block size, order of axes, memory order and scatter of blocks, among NaN, gives what no cache gives."""
    assert_same(step.paged(data.draw(layouts(step.config))), step.unpaged())


@properties
@given(steps())
def test_packing_does_not_matter(step: Step) -> None:
    """A batch gives each sequence what it gets alone."""
    alone = [replace(step, sequences=(one,)).unpaged() for one in step.sequences]
    assert_same(step.unpaged(), (torch.cat([out for out, _ in alone]), torch.cat([lse for _, lse in alone], dim=1)))


@properties
@given(steps(), st.randoms(use_true_random=False))
def test_the_order_of_sequences_does_not_matter(step: Step, random: object) -> None:
    """Shuffling the sequences shuffles the results, and nothing else."""
    order = list(range(len(step.sequences)))
    random.shuffle(order)  # type: ignore[attr-defined]  # Hypothesis' own subclass of random.Random
    shuffled = replace(step, sequences=tuple(step.sequences[number] for number in order))
    lens = [one.num_queries for one in step.sequences]
    out, lse = step.unpaged()
    outs, lses = torch.split(out, lens), torch.split(lse, lens, dim=1)
    assert_same(
        shuffled.paged(Layout()) if step.config.kind == "attention" else shuffled.unpaged(),
        (torch.cat([outs[number] for number in order]), torch.cat([lses[number] for number in order], dim=1)),
    )


@properties
@given(configs().filter(lambda config: config.causal), st.integers(1, 10), st.data())
def test_a_prefill_in_chunks_is_a_whole_prefill(config: AttentionConfig, length: int, data: st.DataObject) -> None:
    """A causal prompt computed in pieces, one-token pieces among them, gives the rows of the prompt at once."""
    whole = make_step(config, [(length, length)], seed=length)
    (one,) = whole.sequences
    cuts = sorted({0, length, *data.draw(st.lists(st.integers(0, length), max_size=4))})
    outs, lses = [], []
    for start, end in pairwise(cuts):
        piece = Tokens(one.query[start:end], one.key[:end], None if one.value is None else one.value[:end])
        layout = Layout(axes=("block", "token", "content"), stride_order=("block", "token", "content"))
        out, lse = replace(whole, sequences=(piece,)).paged(Layout() if one.value is not None else layout)
        outs.append(out)
        lses.append(lse)
    assert_same((torch.cat(outs), torch.cat(lses, dim=1)), whole.unpaged())


@properties
@given(configs(), st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**16))
def test_keys_in_two_parts_are_merged_by_their_lse(config: AttentionConfig, first: int, second: int, seed: int) -> None:
    """Attention over two groups of keys, merged, is attention over all of them, with the sinks counted once."""
    # Positions differ between a part and the whole, so only what does not depend on them can be split like this.
    config = replace(config, causal=False, sliding_window=None, alibi=False)
    whole = make_step(config, [(first + second, 3)], seed=seed)
    (one,) = whole.sequences
    value = one.value
    parts = [
        Tokens(one.query, one.key[:first], None if value is None else value[:first]),
        Tokens(one.query, one.key[first:], None if value is None else value[first:]),
    ]
    with_sinks = replace(whole, sequences=(parts[0],)).unpaged()
    without = replace(whole, sequences=(parts[1],), sinks=None).with_config(sinks=False).unpaged()
    assert_same(merge_attention(*with_sinks, *without), whole.unpaged())
    assert_same(merge_attention(*without, *with_sinks), whole.unpaged())


@properties
@given(steps(), st.integers(0, 5))
def test_a_window_of_the_whole_length_is_none(step: Step, more: int) -> None:
    """A window at least as long as the longest sequence hides nothing."""
    longest = max(one.num_keys for one in step.sequences)
    assert_same(
        step.with_config(sliding_window=max(1, longest + more)).unpaged(),
        step.with_config(sliding_window=None).unpaged(),
    )


@properties
@given(steps())
def test_sinks_of_minus_infinity_are_none(step: Step) -> None:
    """A sink that takes no weight changes neither result nor lse."""
    heads = step.config.num_heads
    sunk = replace(step, sinks=torch.full((heads,), -torch.inf, dtype=torch.float64)).with_config(sinks=True)
    assert_same(sunk.unpaged(), replace(step, sinks=None).with_config(sinks=False).unpaged())


@properties
@given(steps())
def test_slopes_of_zero_are_none(step: Step) -> None:
    """ALiBi without slope changes nothing."""
    flat = replace(step, slopes=torch.zeros(step.config.num_heads)).with_config(alibi=True)
    assert_same(flat.unpaged(), replace(step, slopes=None).with_config(alibi=False).unpaged())


@properties
@given(steps())
def test_a_high_soft_cap_is_none(step: Step) -> None:
    """As the cap grows the logits are left alone."""
    high, none = step.with_config(soft_cap=1e7).unpaged(), step.with_config(soft_cap=None).unpaged()
    torch.testing.assert_close(high[0], none[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(high[1], none[1], rtol=1e-6, atol=1e-6)


@properties
@given(steps(), st.floats(-50, 50))
def test_the_same_bias_on_every_logit_moves_only_the_lse(step: Step, shift: float) -> None:
    """A constant on all logits, put there by one more element of key and query, moves the lse by itself."""
    step = replace(step, sinks=None).with_config(sinks=False, soft_cap=None)
    if step.config.kind == "mla_attention":
        longer = step.with_config(
            head_size=step.config.head_size + 1, qk_rope_head_dim=(step.config.qk_rope_head_dim or 0) + 1
        )
    else:
        longer = step.with_config(head_size=step.config.head_size + 1)

    def widened(rows: torch.Tensor, element: float) -> torch.Tensor:
        return torch.cat([rows, torch.full((*rows.shape[:-1], 1), element, dtype=torch.float64)], dim=-1)

    sequences = tuple(
        replace(one, query=widened(one.query, 1.0), key=widened(one.key, shift / step.scale)) for one in step.sequences
    )
    out, lse = replace(longer, sequences=sequences).unpaged()
    assert_same((out, lse - shift), step.unpaged())


@properties
@given(steps())
def test_the_latent_form_is_attention_with_the_latent_as_value(step: Step) -> None:
    """Latent attention is explicit attention with one key head: key = latent and rotary part, value = latent."""
    explicit = step.config
    latent_size = max(1, explicit.head_size - 1)
    latent_config = AttentionConfig(
        kind="mla_attention",
        head_size=explicit.head_size,
        kv_lora_rank=latent_size,
        qk_rope_head_dim=explicit.head_size - latent_size,
        num_heads=explicit.num_heads,
        dtype="float64",
        **{name: getattr(explicit, name) for name in ("causal", "sliding_window", "sinks", "alibi", "soft_cap")},
    )
    latents = [one.key if one.key.ndim == 2 else one.key[:, 0] for one in step.sequences]
    as_latent = replace(
        step,
        config=latent_config,
        sequences=tuple(Tokens(one.query, key, None) for one, key in zip(step.sequences, latents, strict=True)),
    )
    as_explicit = replace(
        step,
        config=AttentionConfig(
            head_size=explicit.head_size,
            v_head_size=latent_size,
            num_heads=explicit.num_heads,
            num_kv_heads=1,
            dtype="float64",
            **{name: getattr(explicit, name) for name in ("causal", "sliding_window", "sinks", "alibi", "soft_cap")},
        ),
        sequences=tuple(
            Tokens(one.query, key[:, None], key[:, None, :latent_size])
            for one, key in zip(step.sequences, latents, strict=True)
        ),
    )
    assert_same(as_latent.unpaged(), as_explicit.unpaged())
