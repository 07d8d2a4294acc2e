from __future__ import annotations

from typing import Any

import pytest

from hardpoint import AttentionConfig, DeviceCapability
from hardpoint_cuda import _priorities
from hardpoint_cuda._features import capability_of
from hardpoint_cuda.platform import CudaPlatform

LATENT = {"kind": "mla_attention", "head_size": 576, "num_kv_heads": 1, "kv_lora_rank": 512, "qk_rope_head_dim": 64}


def config(**changes: Any) -> AttentionConfig:
    """A plain decoder layer in bfloat16, with some fields changed."""
    return AttentionConfig(**{"head_size": 128, "num_heads": 8, "dtype": "bfloat16", "block_size": 16, **changes})


def order(version: tuple[int, int] | None, **changes: Any) -> list[str]:
    """The names in order."""
    return [item.name for item in _priorities.priorities(capability_of(version), config(**changes))]


TUNED = ["flash_attn", "flashinfer", "triton_attn", "flex_attention", "torch_sdpa"]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((7, 0), ["triton_attn", "flex_attention", "torch_sdpa"]),
        ((7, 5), ["triton_attn", "flex_attention", "torch_sdpa"]),
        ((8, 0), TUNED),
        ((8, 9), TUNED),
        ((9, 0), TUNED),
        ((10, 0), ["flashinfer", "flash_attn", "triton_attn", "flex_attention", "torch_sdpa"]),
        ((10, 3), ["flashinfer", "flash_attn", "triton_attn", "flex_attention", "torch_sdpa"]),
        ((11, 0), ["flash_attn", "flashinfer", "triton_attn", "flex_attention", "torch_sdpa"]),
        ((12, 1), TUNED),
        (None, TUNED),
    ],
)
def test_decoders(version: tuple[int, int] | None, expected: list[str]) -> None:
    """FlashAttention first; FlashInfer on 10.x; below 8.0 neither, which start there."""
    assert order(version) == expected


def test_without_a_causal_mask() -> None:
    """On 10.x FlashInfer loses its first place where the mask is not causal."""
    assert order((10, 0), causal=False)[0] == "flash_attn"


@pytest.mark.parametrize("kind", ["encoder", "encoder_only"])
def test_encoders(kind: str) -> None:
    """Packed kernels first; below 8.0 torch's own."""
    assert order((9, 0), attention_type=kind) == ["flash_attn", "triton_attn", "torch_sdpa"]
    assert order((7, 5), attention_type=kind) == ["torch_sdpa", "triton_attn"]


def test_cross_attention() -> None:
    """Only who takes keys of another sequence is named."""
    assert order((9, 0), attention_type="encoder_decoder") == ["flash_attn", "triton_attn", "torch_sdpa"]
    assert order((7, 5), attention_type="encoder_decoder") == ["triton_attn", "torch_sdpa"]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((7, 5), ["torch_mla"]),
        ((8, 0), ["flashinfer_mla", "triton_mla", "torch_mla"]),
        ((9, 0), ["flash_attn_mla", "flashinfer_mla", "triton_mla", "torch_mla"]),
        ((10, 0), ["flashinfer_mla", "triton_mla", "torch_mla"]),
        ((11, 0), ["flash_attn_mla", "flashinfer_mla", "triton_mla", "torch_mla"]),
        ((12, 0), ["triton_mla", "torch_mla"]),
        (None, ["flashinfer_mla", "triton_mla", "torch_mla"]),
    ],
)
def test_latent(version: tuple[int, int] | None, expected: list[str]) -> None:
    """A tuned latent kernel stands only where it has been built for that generation."""
    assert order(version, **LATENT) == expected


def test_every_rank_has_its_reason() -> None:
    """Each line names a reason and a distribution, and no list names a backend twice."""
    for name, table in vars(_priorities).items():
        if isinstance(table, tuple) and not name.startswith("_"):
            assert all(item.reason and item.distribution for item in table), name
            assert len({item.name for item in table}) == len(table), name


def test_another_runtime_is_unknown() -> None:
    """A capability without CUDA's numbers is one of unknown generation; the platform answers the same."""
    other = DeviceCapability(runtime="rocm", arch="gfx942")
    from hardpoint import InMemoryMachine

    platform = CudaPlatform(InMemoryMachine(), ())
    assert [item.name for item in platform.backend_priorities(other, config())] == TUNED
