"""Arguments that do not fit end in an error that says so, before anything was computed or compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hardpoint.attention import AttentionBatch, AttentionConfig
from hardpoint.errors import ConfigError
from hardpoint_flex_attention.backend import FlexAttentionBackend
from tests.attention.conformance import Step

pytestmark = pytest.mark.torch

FOUR = torch.zeros(4)
CACHE = (torch.zeros(4, 16, 2, 16),) * 2


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({"sinks": True}, {}, "sinks missing: the config says sinks=True"),
        ({}, {"alibi_slopes": FOUR}, "alibi_slopes given: the config says alibi=False"),
        ({"sinks": True}, {"sinks": FOUR[:3]}, r"sinks of shape \(3,\) .*: expected \(4,\), floating point"),
        ({}, {"key_scale": 2.0}, "key_scale=2.0: a cache of float32 has no scale"),
        ({"kv_cache_dtype": "fp8"}, {}, "flex_attention cannot do .*kv_cache_dtype=float8_e4m3fn"),
    ],
)
def test_a_layer_is_refused_for_arguments_that_do_not_fit(
    base: dict[str, Any], options: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    """The message names the argument, what it is and what the config says."""
    with pytest.raises(ConfigError, match=message):
        FlexAttentionBackend.create_layer(AttentionConfig(**base, **options), scale=1.0, device="cpu", **arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": torch.zeros(5, 4, 8)}, r"query of shape \(5, 4, 8\) .*: expected \(at least 5, 4, 16\)"),
        ({"key": torch.zeros(5, 4, 16)}, r"key of shape \(5, 4, 16\)"),
        ({"value": None}, "a key without a value"),
        ({"cache": None, "key": None, "value": None}, "neither new keys nor a cache to read"),
        ({"cache": CACHE[:1]}, "a cache of 1 tensors"),
        ({"cache": (torch.zeros(4, 2, 16, 16),) * 2}, r"key cache of .*: expected \(blocks, 16, 2, 16\)"),
        ({"cache": tuple(cache.half() for cache in CACHE)}, "key cache of .* torch.float16: expected .*float32"),
    ],
)
def test_a_forward_is_refused_for_tensors_that_do_not_fit(
    base: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    """The message names the tensor, its shape and dtype, and what was expected."""
    step = Step.random(FlexAttentionBackend, AttentionConfig(**base), [1, 4], [1, 4])
    for name, tensor in changes.items():
        setattr(step, name, tensor)
    with pytest.raises(ConfigError, match=message):
        step.forward()


def test_a_plan_that_does_not_fit_is_refused(base: dict[str, Any]) -> None:
    """Of another config, or with an `out` of other rows."""
    config = AttentionConfig(**base)
    step = Step.random(FlexAttentionBackend, config, [1, 4], [1, 4])
    other = Step.random(FlexAttentionBackend, AttentionConfig(**base, sliding_window=2), [1, 4], [1, 4])
    with pytest.raises(ConfigError, match="the plan was made for another config"):
        step.layer().forward(step.query, step.key, step.value, step.cache, other.plan())
    with pytest.raises(ConfigError, match="out has 6 rows, query 5"):
        step.forward(out=torch.zeros(6, 4, 16))


def test_a_batch_that_lacks_something_is_refused(base: dict[str, Any]) -> None:
    """Too few blocks, no slots, no cache for old keys, no blocks at all, no block size."""
    config = AttentionConfig(**base)
    build, plan = AttentionBatch.build, FlexAttentionBackend.plan
    with pytest.raises(ConfigError, match="sequence 1: 40 keys need 3 blocks of 16, its block_table has 1"):
        plan(config, build(query_lens=[1, 1], seq_lens=[3, 40], block_table=[[0], [1]]))
    with pytest.raises(ConfigError, match="sequence 0: 1 new keys of 3, and no cache for the rest"):
        plan(config, build(query_lens=[1], seq_lens=[3]))
    layer = FlexAttentionBackend.create_layer(config, scale=1.0, device="cpu")
    query, key = torch.zeros(2, 4, 16), torch.zeros(2, 2, 16)
    without_slots = plan(config, build(query_lens=[2], seq_lens=[2], block_table=[[0]]))
    with pytest.raises(ConfigError, match="2 new keys, slot_mapping has none"):
        layer.forward(query, key, key, CACHE, without_slots)
    without_blocks = plan(config, build(query_lens=[2], seq_lens=[2]))
    with pytest.raises(ConfigError, match=r"a cache needs batch\.block_table"):
        layer.forward(query, None, None, CACHE, without_blocks)
    with pytest.raises(ConfigError, match="a cache needs block_size"):
        FlexAttentionBackend.kv_cache_spec(AttentionConfig(**{**base, "block_size": None}))
