"""Every kernel compiles for devices that are not there, in every form in which it is launched, and fits them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from hardpoint.attention import AttentionBatch, AttentionConfig
from hardpoint_triton._ahead import compile_ahead
from hardpoint_triton._hardware import Hardware
from hardpoint_triton._kernel import interpreting
from hardpoint_triton._plan import TritonPlan
from hardpoint_triton.backend import TritonAttentionBackend, TritonMlaBackend

if TYPE_CHECKING:
    from pathlib import Path

    from hardpoint_triton._kernel import Launch

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(interpreting(), reason="Triton interprets in this whole process"),
]

# Bytes of shared memory that one program may have: the CUDA C++ programming guide's table of technical
# specifications, and AMD's local data share (the CDNA and RDNA instruction set documents).
SHARED_KIB = {
    "sm_75": 64,
    "sm_80": 163,
    "sm_86": 99,
    "sm_89": 99,
    "sm_90": 227,
    "sm_100": 227,
    "sm_120": 99,
    "gfx90a": 64,
    "gfx942": 64,
    "gfx950": 160,
    "gfx1100": 64,
    "gfx1201": 64,
}
TARGETS = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx90a", "gfx942", "gfx1100", "gfx1201")

DENSE: dict[str, Any] = {"num_heads": 32, "num_kv_heads": 8, "dtype": "float16", "block_size": 16}
LATENT: dict[str, Any] = {
    "kind": "mla_attention", "head_size": 576, "num_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "dtype": "float16", "block_size": 64,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "plain": {**DENSE, "head_size": 128},
    "everything": {**DENSE, "head_size": 128, "sinks": True, "alibi": True, "soft_cap": 20.0, "sliding_window": 4000},
    "two pieces": {**DENSE, "head_size": 192, "v_head_size": 80, "num_kv_heads": 32, "block_size": 128},
    "wide encoder": {**DENSE, "head_size": 256, "attention_type": "encoder_only", "block_size": None},
    "exact": {**DENSE, "head_size": 256, "dtype": "float32", "block_size": 64},
    "latent": LATENT,
}
# Compiling takes seconds: what differs from these in sizes alone is compiled for one device of each code generator.
EVERYWHERE = ("plain", "latent")
SOME = ("sm_90", "sm_120", "gfx942", "gfx1100")
EIGHT_BITS = {
    "sm_80": ("float8_e5m2",),
    "sm_89": ("float8_e4m3fn", "float8_e5m2"),
    "sm_100": ("float8_e4m3fn",),
    "gfx942": ("float8_e4m3fnuz", "float8_e5m2fnuz"),
    "gfx950": ("float8_e4m3fn", "float8_e5m2"),
    "gfx1201": ("float8_e4m3fn", "float8_e5m2"),
}


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Triton's cache, of this module alone: what is there already would not be compiled."""
    patch = pytest.MonkeyPatch()
    folder: Path = tmp_path_factory.mktemp("triton")
    patch.setenv("TRITON_CACHE_DIR", str(folder))
    yield
    patch.undo()


def launches(config: AttentionConfig, arch: str) -> list[Launch]:
    """What a step with a long context, a decode and a prefill launches on such a device."""
    backend = TritonMlaBackend if config.kind == "mla_attention" else TritonAttentionBackend
    per_head = torch.zeros(config.num_heads)
    layer = backend.create_layer(
        config,
        scale=1.0,
        device="cpu",
        sinks=per_head if config.sinks else None,
        alibi_slopes=per_head if config.alibi else None,
    )
    cache = table = slots = None
    query_lens, seq_lens = [1, 64], [5000, 64]
    if config.block_size is None:
        query_lens = seq_lens = [1, 64]
    else:
        cache = backend.kv_cache_spec(config).allocate(1, device="cpu")
        table, slots = [[0] * -(-5000 // config.block_size)] * 2, [0] * 65
    batch = AttentionBatch.build(query_lens=query_lens, seq_lens=seq_lens, block_table=table, slot_mapping=slots)
    plan = TritonPlan(config, batch, Hardware(arch, 100))
    dtype = getattr(torch, config.dtype)
    latent = config.kind == "mla_attention"
    kv_heads = () if latent else (config.num_kv_heads,)
    query = torch.zeros(65, config.num_heads, config.head_size, dtype=dtype)
    key = torch.zeros(65, *kv_heads, config.head_size, dtype=dtype)
    value = None if latent else torch.zeros(65, *kv_heads, config.v_head_size, dtype=dtype)
    out = torch.zeros(65, config.num_heads, config.v_head_size, dtype=dtype)
    return list(layer.launches(query, key, value, cache, plan, out, torch.zeros(config.num_heads, 65)))


def _compile(config: AttentionConfig, arch: str, only: str | None = None) -> list[str]:
    """The names of the kernels, compiled and small enough."""
    names = []
    for launch in launches(config, arch):
        name = launch.kernel.name + (" split" if launch.arguments.get("SPLIT") else "")
        if only is not None and name != only:
            continue
        found = compile_ahead(launch, arch)
        assert found.metadata.shared <= SHARED_KIB[arch] * 1024, name
        assert "cubin" in found.asm or "hsaco" in found.asm
        names.append(name)
    return names


@pytest.mark.parametrize("arch", TARGETS)
def test_a_decode_compiles(arch: str) -> None:
    """To machine code, and into the shared memory of the device."""
    config = AttentionConfig(**{**DENSE, "head_size": 64})
    assert _compile(config, arch, "attend split") == ["attend split"]


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_every_kernel_of_a_mixed_step_compiles(arch: str) -> None:
    """Storing new keys, split decodes, merging them, and a prefill."""
    config = AttentionConfig(**{**DENSE, "head_size": 64})
    assert _compile(config, arch) == ["store", "attend split", "merge", "attend"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("arch", "family"),
    [(arch, family) for family in FAMILIES for arch in (TARGETS if family in EVERYWHERE else SOME)],
)
def test_every_family_compiles_for_every_device(arch: str, family: str) -> None:
    """All that the launch code can make of the constants: pieces, padding, masks, paging, precision."""
    options = FAMILIES[family]
    if family == "plain" and arch in ("sm_80", "gfx90a", "gfx1100", "gfx1201"):
        options = {**options, "dtype": "bfloat16"}
    assert "attend" in _compile(AttentionConfig(**options), arch)


@pytest.mark.long
@pytest.mark.parametrize(("arch", "cache"), [(arch, cache) for arch, found in EIGHT_BITS.items() for cache in found])
def test_eight_bit_caches_compile_where_they_are_declared(arch: str, cache: str) -> None:
    """What is read is converted, what is written is rounded."""
    assert "attend split" in _compile(AttentionConfig(**FAMILIES["plain"], kv_cache_dtype=cache), arch)


@pytest.mark.long
@pytest.mark.parametrize(("arch", "head_size", "dtype"), [("sm_75", 128, "float16"), ("sm_75", 256, "float32")])
def test_turing_takes_what_is_declared_for_it(arch: str, head_size: int, dtype: str) -> None:
    """Half precision and single, within 64 KiB."""
    assert "attend" in _compile(AttentionConfig(**{**DENSE, "head_size": head_size, "dtype": dtype}), arch)
