"""Every kernel compiles for devices that are not there, in the forms in which it is launched, and fits them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch

import hardpoint_triton._tiles as tiles
from hardpoint.attention import AttentionBatch, AttentionConfig
from hardpoint_triton._ahead import compile_ahead
from hardpoint_triton._hardware import Hardware
from hardpoint_triton._kernel import interpreting
from hardpoint_triton._plan import TritonPlan, shape_of
from hardpoint_triton.backend import TritonAttentionBackend, TritonMlaBackend

if TYPE_CHECKING:
    from pathlib import Path

    from hardpoint_triton._kernel import Launch
    from hardpoint_triton._plan import Shape

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
DENSE: dict[str, Any] = {"head_size": 128, "num_heads": 32, "num_kv_heads": 8, "dtype": "float16", "block_size": 16}
LATENT: dict[str, Any] = {
    "kind": "mla_attention", "head_size": 576, "num_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "dtype": "float16", "block_size": 64,
}  # fmt: skip
EVERYTHING: dict[str, Any] = {**DENSE, "sinks": True, "alibi": True, "soft_cap": 20.0, "sliding_window": 4000}
ALL = ("store", "attend split", "merge", "attend")
DECODE = ALL[:3]
# Compiling takes seconds: every device compiles what a decode launches, and what differs in sizes, features or storage
# is compiled for some device of each code generator.
CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "plain": ("sm_90", DENSE, ALL),
    "bfloat16, 8 bits": ("sm_80", {**DENSE, "dtype": "bfloat16", "kv_cache_dtype": "fp8_e5m2"}, DECODE),
    "latent, 8 bits": ("sm_100", {**LATENT, "kv_cache_dtype": "fp8"}, ALL),
    "everything": ("sm_120", EVERYTHING, DECODE),
    "encoder": ("sm_120", {**DENSE, "head_size": 256, "attention_type": "encoder_only", "block_size": None}, ALL[3:]),
    "exact": ("sm_75", {**DENSE, "head_size": 256, "dtype": "float32", "block_size": 64}, ALL[3:]),
    "two pieces": (
        "gfx90a",
        {**DENSE, "head_size": 192, "v_head_size": 80, "num_kv_heads": 32, "block_size": 128, "dtype": "bfloat16"},
        DECODE,
    ),
    "8 bits": ("gfx942", {**DENSE, "kv_cache_dtype": "float8_e4m3fnuz"}, DECODE),
    "latent": ("gfx1100", LATENT, DECODE),
    "everything, 8 bits": ("gfx1201", {**EVERYTHING, "head_size": 64, "kv_cache_dtype": "fp8"}, DECODE),
}
# The prefill of the devices that compile none above.
PREFILLS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    f"prefill for {arch}": (arch, DENSE, ALL[3:]) for arch in ("sm_80", "gfx90a", "gfx942", "gfx1100", "gfx1201")
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
        query_lens = seq_lens = [33, 32]
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


def most_shared_bytes(arch: str, shape: Shape, dtype_bytes: int, *, latent: bool) -> int:
    """More than Triton takes for a tile: the query beside every stage's keys and values, or on AMD those alone.

    Turing, without matrix units for these shapes, multiplies what was widened. The latent's weights are laid out anew.
    """
    tile = shape.tile
    keys = tile.block_n * (shape.key.width + (0 if latent else shape.value.width))
    if arch.startswith("gfx"):
        return dtype_bytes * keys * max(1, tile.num_stages - 1)
    size = 4 if arch == "sm_75" else dtype_bytes
    again = 8 * shape.block_m * tile.block_n if latent else 0
    return size * (shape.block_m * shape.key.width + keys * tile.num_stages) + again


@pytest.mark.parametrize("name", [*CASES, *(pytest.param(name, marks=pytest.mark.long) for name in PREFILLS)])
def test_what_a_step_launches_compiles(name: str) -> None:
    """To machine code, in no more shared memory than the estimate that the next test trusts."""
    arch, options, expected = {**CASES, **PREFILLS}[name]
    config = AttentionConfig(**options)
    compiled = []
    for launch in launches(config, arch):
        kernel = launch.kernel.name + (" split" if launch.arguments.get("SPLIT") else "")
        if kernel not in expected:
            continue
        found = compile_ahead(launch, arch)
        assert "cubin" in found.asm or "hsaco" in found.asm
        if launch.kernel.name == "attend":
            shape = shape_of(config, Hardware(arch, 100), tiles.DECODE if "split" in kernel else tiles.PREFILL)
            dtype_bytes = 4 if config.dtype == "float32" else 2
            latent = config.kind == "mla_attention"
            assert found.metadata.shared <= most_shared_bytes(arch, shape, dtype_bytes, latent=latent)
        compiled.append(kernel)
    assert tuple(compiled) == expected


def test_every_device_that_the_project_names_is_compiled_for() -> None:
    """With the kernels of a decode and of a prefill."""
    named = {"sm_80", "sm_90", "sm_100", "sm_120", "gfx90a", "gfx942", "gfx1100", "gfx1201"}
    cases = [*CASES.values(), *PREFILLS.values()]
    assert {arch for arch, _, kernels in cases if kernels[:3] == DECODE} == named
    assert {arch for arch, _, kernels in cases if kernels[-1] == "attend"} >= named


@pytest.mark.parametrize("arch", SHARED_KIB)
def test_every_tile_of_the_table_fits_its_device(arch: str) -> None:
    """Of every width, dtype and phase that is declared for it, with the largest groups."""
    for dtype, phase in itertools.product(("float16", "float32"), (tiles.PREFILL, tiles.DECODE)):
        options: dict[str, Any] = {"num_heads": 64, "dtype": dtype}
        dense = [AttentionConfig(head_size=size, num_kv_heads=1, **options) for size in (16, 64, 128, 192, 256)]
        latents = [
            AttentionConfig(
                kind="mla_attention", head_size=rank + rope, kv_lora_rank=rank, qk_rope_head_dim=rope, **options
            )
            for rank, rope in ((512, 64), (512, 128), (256, 64))
            if arch != "sm_75"
        ]
        for config in (*dense, *latents):
            shape = shape_of(config, Hardware(arch, 100), phase)
            needed = most_shared_bytes(
                arch, shape, 4 if dtype == "float32" else 2, latent=config.kind == "mla_attention"
            )
            assert needed <= SHARED_KIB[arch] * 1024, (phase, config)
