from __future__ import annotations

from typing import Any

import pytest

from hardpoint import AttentionConfig
from hardpoint_cpu._priorities import DECODER, ENCODER, LATENT, priorities


def config(**fields: Any) -> AttentionConfig:
    """A plain decoder, but for what is given."""
    return AttentionConfig(**{"head_size": 64, "num_heads": 8, "dtype": "float32", **fields})


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, ["cpu_native", "torch_sdpa", "flex_attention"]),
        ({"attention_type": "encoder_decoder"}, ["cpu_native", "torch_sdpa", "flex_attention"]),
        ({"attention_type": "encoder"}, ["cpu_native", "torch_sdpa", "flex_attention"]),
        ({"attention_type": "encoder_only"}, ["cpu_native", "torch_sdpa", "flex_attention"]),
        (
            {
                "kind": "mla_attention",
                "head_size": 576,
                "kv_lora_rank": 512,
                "qk_rope_head_dim": 64,
                "qk_nope_head_dim": 128,
                "num_kv_heads": 1,
            },
            ["cpu_native_mla", "torch_mla"],
        ),
    ],
)
def test_order(fields: dict[str, Any], names: list[str]) -> None:
    """Native kernels come first, torch's own next, what must be compiled last."""
    assert [item.name for item in priorities(config(**fields))] == names


@pytest.mark.parametrize("table", [DECODER, ENCODER, LATENT])
def test_each_rank_has_a_reason_and_a_distribution(table: tuple[Any, ...]) -> None:
    """What is not installed can be asked for by the name of its distribution, and no name stands twice."""
    assert all(item.reason and item.distribution.startswith("hardpoint-") for item in table)
    assert len({item.name for item in table}) == len(table)


def test_encoders_have_reasons_of_their_own() -> None:
    """There is no cache to gather in an encoder, so that cannot be the reason."""
    assert not any("cache" in item.reason for item in ENCODER)
    assert priorities(config(attention_type="encoder_only")) is ENCODER
