from __future__ import annotations

from typing import Any

import pytest

from hardpoint import AttentionConfig, DeviceCapability, InMemoryMachine
from hardpoint_rocm import _priorities
from hardpoint_rocm._arch import capability_of, parse_arch
from hardpoint_rocm.platform import RocmPlatform

LATENT = {"kind": "mla_attention", "head_size": 576, "num_kv_heads": 1, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
CDNA = ["aiter_fa", "aiter_unified", "flash_attn", "triton_attn", "flex_attention", "torch_sdpa"]
CDNA2 = ["triton_attn", "flash_attn", "flex_attention", "torch_sdpa"]
PLAIN = ["triton_attn", "flex_attention", "torch_sdpa"]


def config(**changes: Any) -> AttentionConfig:
    """A plain decoder layer in bfloat16, with some fields changed."""
    return AttentionConfig(**{"head_size": 128, "num_heads": 8, "dtype": "bfloat16", "block_size": 16, **changes})


def order(arch: str | None, **changes: Any) -> list[str]:
    """The names in order."""
    return [item.name for item in _priorities.priorities(capability_of(parse_arch(arch)), config(**changes))]


@pytest.mark.parametrize(
    ("arch", "expected"),
    [
        ("gfx90a", CDNA2),
        ("gfx942", CDNA),
        ("gfx942:sramecc+:xnack-", CDNA),
        ("gfx950", CDNA),
        ("gfx1250", PLAIN),
        (None, CDNA),
        ("gfx1200", PLAIN),
        ("gfx1201", PLAIN),
        ("gfx1100", PLAIN),
        ("gfx1151", PLAIN),
        ("gfx1030", PLAIN),
        ("gfx908", PLAIN),
        ("gfx90c", PLAIN),
    ],
)
def test_decoders(arch: str | None, expected: list[str]) -> None:
    """AMD's own kernels where they were written for: AITER's on CDNA3 and 4, Triton elsewhere."""
    assert order(arch) == expected


@pytest.mark.parametrize(
    ("arch", "expected"),
    [("gfx942", [name for name in CDNA if name != "aiter_unified"]), ("gfx90a", CDNA2), ("gfx1201", PLAIN)],
)
def test_without_a_causal_mask(arch: str, expected: list[str]) -> None:
    """AITER's unified kernel has causal masks only."""
    assert order(arch, causal=False) == expected


@pytest.mark.parametrize("kind", ["encoder", "encoder_only"])
def test_encoders(kind: str) -> None:
    """Packed kernels first, then torch's own."""
    assert order("gfx942", attention_type=kind) == ["aiter_fa", "torch_sdpa", "triton_attn"]
    assert order("gfx90a", attention_type=kind) == ["flash_attn", "torch_sdpa", "triton_attn"]
    assert order("gfx1100", attention_type=kind) == ["torch_sdpa", "triton_attn"]


def test_cross_attention() -> None:
    """Only who takes keys of another sequence is named."""
    assert order("gfx942", attention_type="encoder_decoder") == ["aiter_fa", "flash_attn", "triton_attn", "torch_sdpa"]
    assert order("gfx1201", attention_type="encoder_decoder") == ["triton_attn", "torch_sdpa"]
    assert order("gfx90a", attention_type="encoder_decoder") == ["triton_attn", "torch_sdpa"]


@pytest.mark.parametrize(
    ("arch", "expected"),
    [
        ("gfx90a", ["triton_mla", "torch_mla"]),
        ("gfx942", ["aiter_mla", "triton_mla", "torch_mla"]),
        ("gfx950", ["aiter_mla", "triton_mla", "torch_mla"]),
        ("gfx1201", ["triton_mla", "torch_mla"]),
        (None, ["aiter_mla", "triton_mla", "torch_mla"]),
    ],
)
def test_latent(arch: str | None, expected: list[str]) -> None:
    """AITER's latent kernel is for CDNA3 and 4."""
    assert order(arch, **LATENT) == expected


def test_every_rank_has_its_reason() -> None:
    """Each line names a reason and a distribution, and no list names a backend twice."""
    tables = [table for name, table in vars(_priorities).items() if isinstance(table, tuple) and name.isupper()]
    public = [table for table in tables if table and not isinstance(table[0], str)]
    assert len(public) >= 9
    for table in public:
        assert all(item.reason and item.distribution for item in table)
        assert len({item.name for item in table}) == len(table)


def test_another_runtime_is_unknown() -> None:
    """A capability of another runtime is one of unknown architecture; the platform answers the same."""
    other = DeviceCapability.parse("9.0")
    platform = RocmPlatform(InMemoryMachine(), ())
    assert [item.name for item in platform.backend_priorities(other, config())] == CDNA
