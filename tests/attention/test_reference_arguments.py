from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from hardpoint.attention import AttentionBatch, AttentionConfig, reference_attention
from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")


def config(**changes: Any) -> AttentionConfig:
    """A small layer with some fields changed."""
    arguments: dict[str, Any] = {"head_size": 6, "num_heads": 4, "dtype": "float64"}
    return AttentionConfig(**{**arguments, **changes})


def arguments() -> dict[str, Any]:
    """Arguments that fit."""
    rows = torch.zeros(2, 4, 6)
    return {
        "config": config(block_size=4),
        "batch": AttentionBatch.build(query_lens=[2], seq_lens=[2], block_table=[[0]], slot_mapping=[0, 1]),
        "query": rows,
        "key": rows,
        "value": rows,
        "kv_cache": [torch.zeros(2, 4, 4, 6) for _ in range(2)],
        "scale": 1.0,
    }


def built(**changes: Any) -> AttentionBatch:
    """Their batch with some members changed."""
    return AttentionBatch.build(
        **{"query_lens": [2], "seq_lens": [2], "block_table": [[0]], "slot_mapping": [0, 1], **changes}
    )


BAD: list[tuple[dict[str, Any], str | None, str]] = [
    ({"query": torch.zeros(2, 4, 5)}, "query", r"query of shape \(2, 4, 5\): expected \(num_tokens, 4, 6\)"),
    ({"query": torch.zeros(1, 4, 6)}, "query", "with at least 2 tokens"),
    ({"key": torch.zeros(2, 24)}, "key", r"key of shape \(2, 24\)"),
    ({"key": torch.zeros(1, 4, 6)}, "key", "with at least 2 tokens"),
    ({"value": torch.zeros(2, 4, 7)}, "value", r"value of shape \(2, 4, 7\)"),
    ({"value": None}, "value", "a key without a value"),
    ({"key": None}, "value", "a value without a key"),
    ({"key": None, "value": None, "kv_cache": None}, "key", "neither new keys nor a cache"),
    ({"batch": built(seq_lens=[3]), "kv_cache": None}, "seq_lens", "2 new keys of 3, and no cache for the rest"),
    ({"sinks": torch.zeros(4)}, "sinks", "sinks given: the config says sinks=False"),
    ({"alibi_slopes": torch.zeros(4)}, "alibi_slopes", "alibi_slopes given: the config says alibi=False"),
    ({"config": config(sinks=True)}, "sinks", "sinks missing: the config says sinks=True"),
    ({"config": config(alibi=True)}, "alibi_slopes", "alibi_slopes missing: the config says alibi=True"),
    ({"config": config(sinks=True), "sinks": torch.zeros(3)}, "sinks", r"sinks of shape \(3,\) .*: expected \(4,\)"),
    ({"key_scale": 2.0}, "key_scale", "key_scale=2.0: a cache of float64 has no scale"),
    ({"value_scale": 2.0}, "value_scale", "value_scale=2.0: a cache of float64 has no scale"),
    ({"config": config(kv_cache_dtype="int8"), "key_scale": 0.0}, "key_scale", "key_scale=0.0: must be positive"),
    ({"batch": built(slot_mapping=None)}, "slot_mapping", "need batch.slot_mapping"),
    ({"batch": replace(built(), slot_mapping=torch.tensor([0]))}, "slot_mapping", "1 slots for 2 new keys"),
    ({"batch": built(slot_mapping=[0, 8])}, "slot_mapping", "slot 8 of a cache of 2 x 4"),
    ({"batch": built(slot_mapping=[0, -2])}, "slot_mapping", "slot -2 of a cache of 2 x 4"),
    ({"batch": built(block_table=None)}, "block_table", "a cache needs batch.block_table"),
    ({"batch": built(block_table=[[2]])}, "block_table", r"do not lie in blocks \[2\] of 2 x 4"),
    ({"batch": built(block_table=[[-1]])}, "block_table", r"do not lie in blocks \[-1\] of 2 x 4"),
    ({"batch": built(seq_lens=[5])}, "block_table", r"5 keys do not lie in blocks \[0\] of 2 x 4"),
    ({"kv_cache": [torch.zeros(2, 4, 4, 6)]}, None, r"a cache of 1 tensors \('key', 'value'\)"),
    ({"kv_cache": [torch.zeros(2, 4, 6)] * 2}, None, r"cache tensor 'key' of shape \(2, 4, 6\) for axes"),
    (
        {"kv_cache": [torch.zeros(2, 4, 8, 6)] * 2},
        None,
        r"cache tensor 'key' of shape \(2, 4, 8, 6\) does not fit: kind=",
    ),
]


@pytest.mark.parametrize(("changes", "field", "text"), BAD)
def test_arguments_that_do_not_fit_are_refused(changes: dict[str, Any], field: str | None, text: str) -> None:
    """The reference never guesses: a shape, number or missing part that contradicts the config is named."""
    given = {**arguments(), **changes}
    reference_attention(**arguments())
    with pytest.raises(ConfigError, match=text) as caught:
        reference_attention(given.pop("config"), given.pop("batch"), **given)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"value": torch.zeros(2, 4)}, "the latent form has no value"),
        ({"value_scale": 1.0}, "the latent is stored with key_scale"),
    ],
)
def test_the_latent_form_takes_no_value(changes: dict[str, Any], text: str) -> None:
    """Value and value scale have no meaning in the latent form."""
    asked = AttentionConfig(
        kind="mla_attention",
        head_size=6,
        num_heads=2,
        dtype="float32",
        kv_cache_dtype="int8",
        kv_lora_rank=4,
        qk_rope_head_dim=2,
    )
    given: dict[str, Any] = {"key": torch.zeros(2, 6), "value": None, "scale": 1.0, **changes}
    with pytest.raises(ConfigError, match=text):
        reference_attention(asked, built(block_table=None, slot_mapping=None), torch.zeros(2, 2, 6), **given)
