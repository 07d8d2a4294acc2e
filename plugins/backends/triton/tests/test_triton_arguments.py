"""Arguments that do not fit end in an error that says so, before anything was computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from hardpoint.attention import AttentionBatch, AttentionConfig, AttentionPlan
from hardpoint.errors import ConfigError
from hardpoint_triton.backend import TritonAttentionBackend, TritonMlaBackend

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("interpreter")]

FOUR = torch.zeros(4)
LATENT: dict[str, Any] = {"kind": "mla_attention", "head_size": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8}


def _config(**options: Any) -> AttentionConfig:
    defaults: dict[str, Any] = {"head_size": 16, "num_heads": 4, "dtype": "float32", "block_size": 4}
    if "kind" not in options:
        defaults["num_kv_heads"] = 2
    return AttentionConfig(**defaults | options)


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({"sinks": True}, {}, "sinks missing: the config says sinks=True"),
        ({}, {"sinks": FOUR}, "sinks given: the config says sinks=False"),
        ({"alibi": True}, {}, "alibi_slopes missing: the config says alibi=True"),
        ({}, {"alibi_slopes": FOUR}, "alibi_slopes given: the config says alibi=False"),
        (
            {"sinks": True},
            {"sinks": FOUR[:3]},
            r"sinks of shape \(3,\) and torch.float32: expected \(4,\), floating point",
        ),
        ({"sinks": True}, {"sinks": FOUR.int()}, "sinks of shape .* torch.int32: expected"),
        ({}, {"key_scale": 2.0}, "key_scale=2.0: a cache of float32 has no scale"),
        ({"kv_cache_dtype": "fp8"}, {"value_scale": -1.0}, "value_scale=-1.0: must be positive"),
        (LATENT, {}, "TritonAttentionBackend is for kind='attention', not 'mla_attention'"),
    ],
)
def test_a_layer_is_refused_for_arguments_that_the_config_does_not_ask_for_or_lacks(
    options: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    """The message names the argument, what it is and what the config says."""
    with pytest.raises(ConfigError, match=message):
        TritonAttentionBackend.create_layer(_config(**options), scale=1.0, device="cpu", **arguments)


def test_a_latent_has_one_scale() -> None:
    """It is stored once, with the key's."""
    with pytest.raises(ConfigError, match=r"value_scale=1\.0: the latent is stored with key_scale"):
        TritonMlaBackend.create_layer(
            _config(**LATENT, kv_cache_dtype="fp8"), scale=1.0, device="cpu", key_scale=1.0, value_scale=1.0
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"query": torch.zeros(5, 4, 8)},
            r"query of shape \(5, 4, 8\) and torch.float32: expected \(at least 5, 4, 16\)",
        ),
        ({"query": torch.zeros(4, 4, 16)}, r"query of shape \(4, 4, 16\)"),
        ({"query": torch.zeros(5, 4, 16).half()}, "query of shape .* torch.float16: expected .* torch.float32"),
        ({"key": torch.zeros(5, 4, 16)}, r"key of shape \(5, 4, 16\)"),
        ({"value": torch.zeros(3, 2, 16)}, r"value of shape \(3, 2, 16\)"),
        ({"value": None}, "a key without a value"),
        ({"key": None}, "a value without a key"),
        ({"cache": None, "key": None, "value": None}, "neither new keys nor a cache to read"),
        ({"cache": (torch.zeros(4, 2, 4, 16),)}, "a cache of 1 tensors: expected key and value"),
        ({"cache": (torch.zeros(4, 2, 8, 16),) * 2}, r"key cache of shape \(4, 2, 8, 16\)"),
        ({"cache": (torch.zeros(4, 2, 4, 16).half(),) * 2}, "key cache of .* torch.float16: expected .* torch.float32"),
    ],
)
def test_a_forward_is_refused_for_tensors_that_do_not_fit(
    dense_step: Callable[..., Any], changes: dict[str, Any], message: str
) -> None:
    """The message names the tensor, its shape and dtype, and what was expected."""
    step = dense_step(_config(), [1, 4], [1, 4])
    for name, tensor in changes.items():
        setattr(step, name, tensor)
    with pytest.raises(ConfigError, match=message):
        step.forward()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key": torch.zeros(5, 1, 24)}, r"key of shape \(5, 1, 24\) .* expected \(at least 5, 24\)"),
        ({"value": torch.zeros(5, 16)}, "the latent form has no value: it is part of the latent"),
        ({"cache": (torch.zeros(4, 4, 24),) * 2}, "a cache of 2 tensors: expected latent"),
        ({"cache": (torch.zeros(4, 4, 16),)}, r"latent cache of shape \(4, 4, 16\) .* expected \(blocks, 4, 24\)"),
    ],
)
def test_a_latent_forward_is_refused_for_tensors_that_do_not_fit(
    latent_step: Callable[..., Any], changes: dict[str, Any], message: str
) -> None:
    """The latent form has other shapes, and says which."""
    step = latent_step(_config(**LATENT), [1, 4], [1, 4])
    for name, tensor in changes.items():
        setattr(step, name, tensor)
    with pytest.raises(ConfigError, match=message):
        step.forward()


def test_out_must_have_the_rows_of_the_query(dense_step: Callable[..., Any]) -> None:
    """Neither fewer nor more, nor another dtype."""
    step = dense_step(_config(), [1, 4], [1, 4])
    with pytest.raises(ConfigError, match="out has 6 rows, query 5"):
        step.forward(out=torch.zeros(6, 4, 16))
    with pytest.raises(ConfigError, match=r"out of shape \(5, 4, 16\) and torch.float64"):
        step.forward(out=torch.zeros(5, 4, 16).double())


def test_a_plan_of_another_config_or_backend_is_refused(dense_step: Callable[..., Any]) -> None:
    """Layers share a plan only where their configs are equal."""
    step, other = dense_step(_config(), [1, 4], [1, 4]), dense_step(_config(sliding_window=2), [1, 4], [1, 4])
    with pytest.raises(ConfigError, match=r"the plan was made for another config: .*sliding_window=2"):
        step.layer().forward(step.query, step.key, step.value, step.cache, other.plan())

    class Foreign(AttentionPlan):
        def update(self, batch: AttentionBatch) -> None:
            """Do nothing."""

    with pytest.raises(TypeError, match="the plan is a Foreign: expected a TritonPlan"):
        step.layer().forward(step.query, step.key, step.value, step.cache, Foreign())


def test_a_batch_that_lacks_something_is_refused() -> None:
    """Too few blocks, no slots for new keys, no cache for old keys, no blocks at all."""
    with pytest.raises(ConfigError, match="sequence 1: 9 keys need 3 blocks of 4, its block_table has 2"):
        TritonAttentionBackend.plan(
            _config(), AttentionBatch.build(query_lens=[1, 1], seq_lens=[3, 9], block_table=[[0, 1], [2, 3]])
        )
    layer = TritonAttentionBackend.create_layer(_config(), scale=1.0, device="cpu")
    query, key, cache = torch.zeros(2, 4, 16), torch.zeros(2, 2, 16), (torch.zeros(4, 2, 4, 16),) * 2
    plan = TritonAttentionBackend.plan(_config(), AttentionBatch.build(query_lens=[2], seq_lens=[3]))
    with pytest.raises(ConfigError, match="sequence 0: 2 new keys of 3, and no cache for the rest"):
        layer.forward(query, key, key, None, plan)
    batch = AttentionBatch.build(query_lens=[2], seq_lens=[2], block_table=[[0]])
    with pytest.raises(ConfigError, match="2 new keys, slot_mapping has none"):
        layer.forward(query, key, key, cache, TritonAttentionBackend.plan(_config(), batch))
    plan = TritonAttentionBackend.plan(_config(), AttentionBatch.build(query_lens=[2], seq_lens=[2]))
    with pytest.raises(ConfigError, match=r"a cache needs batch\.block_table"):
        layer.forward(query, None, None, cache, plan)
