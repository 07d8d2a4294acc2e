"""The platforms' orders against the backends' declared support: every rank is of use to somebody."""

from __future__ import annotations

import itertools
from functools import cache, partial
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import pytest

from hardpoint import DeviceCapability
from hardpoint._evaluation import _architecture_reason
from hardpoint.attention import AttentionConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hardpoint.hookspecs import BackendSpec
    from hardpoint.platforms import BackendPriority

pytestmark = [pytest.mark.plugins]

LATENT = {"kind": "mla_attention", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "head_size": 576}
BASE: dict[str, Any] = {"num_heads": 16, "dtype": "bfloat16", "block_size": 16}
# One thing at a time, and the pairs of them: what makes a better backend step back.
TWISTS: tuple[dict[str, Any], ...] = (
    {},
    {"dtype": "float32"},
    {"dtype": "float64"},
    {"dtype": "float16"},
    {"kv_cache_dtype": "fp8"},
    {"kv_cache_dtype": "int8"},
    {"sinks": True},
    {"alibi": True},
    {"soft_cap": 30.0},
    {"sliding_window": 64},
    {"causal": False},
    {"batch_invariant": True},
    {"block_size": 256},
    {"block_size": 5},
    {"block_size": None},
)
SHAPES: tuple[dict[str, Any], ...] = (
    *(
        {"head_size": size, "attention_type": kind}
        for size in (40, 64, 128, 256, 512, 1024)
        for kind in ("decoder", "encoder_only", "encoder_decoder")
    ),
    *({**LATENT, "num_heads": heads} for heads in (5, 8, 16, 24)),
    {**LATENT, "head_size": 1088, "kv_lora_rank": 1024},
)


@cache
def installed() -> dict[str, BackendSpec]:
    """Every backend of this repository that is installed here."""
    found = {entry.name: entry.load().hardpoint_backend() for entry in entry_points(group="hardpoint.backends")}
    return {name: spec for name, spec in found.items() if type(spec).__module__.startswith("hardpoint")}


@cache
def configs() -> tuple[AttentionConfig, ...]:
    """Requests of many kinds."""

    def build() -> Iterator[AttentionConfig]:
        for shape, (one, two) in itertools.product(SHAPES, itertools.combinations(TWISTS, 2)):
            yield AttentionConfig(**{**BASE, **shape, **one, **two})

    return tuple(dict.fromkeys(build()))


def takes(spec: BackendSpec, capability: DeviceCapability, config: AttentionConfig) -> bool:
    """Whether a backend with all its packages would be valid, as far as declared."""
    if spec.kind != config.kind or spec.support.reasons(capability, config):
        return False
    return not spec.kernel_architectures or _architecture_reason(spec, capability) is None


def winners(
    order: Callable[[AttentionConfig], Sequence[BackendPriority]], capability: DeviceCapability
) -> tuple[set[str], set[str]]:
    """All names that stand in some order on such a device, and those of them that are first for some request."""
    listed: set[str] = set()
    first: set[str] = set()
    for config in configs():
        names = [item.name for item in order(config)]
        listed.update(names)
        first.update(
            itertools.islice((n for n in names if n in installed() and takes(installed()[n], capability, config)), 1)
        )
    return listed & installed().keys(), first


@pytest.mark.parametrize("version", [(7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (11, 0), (12, 0)])
def test_every_rank_of_cuda_can_win(version: tuple[int, int]) -> None:
    """With everything installed, each listed backend is the best one for some request on each generation."""
    from hardpoint_cuda._features import capability_of
    from hardpoint_cuda._priorities import priorities

    capability = capability_of(version)
    assert capability is not None
    listed, first = winners(lambda config: priorities(capability, config), capability)
    assert listed == first


def test_every_rank_of_the_cpu_can_win() -> None:
    """The same on a CPU with every feature."""
    from hardpoint_cpu._priorities import priorities

    features = frozenset({"avx2", "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "amx_tile", "amx_bf16"})
    capability = DeviceCapability(runtime="cpu", arch="x86_64", features=features)
    listed, first = winners(priorities, capability)
    assert listed == first


def test_every_rank_of_rocm_can_win() -> None:
    """The same on AMD's architectures."""
    rocm = pytest.importorskip("hardpoint_rocm._priorities")
    for architecture in ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"):
        capability = DeviceCapability(runtime="rocm", arch=architecture)
        listed, first = winners(partial(rocm.priorities, capability), capability)
        assert listed == first, architecture


@pytest.mark.parametrize("module", ["hardpoint_cuda._priorities", "hardpoint_cpu._priorities"])
def test_dense_latent_and_encoder_attention_have_an_order(module: str) -> None:
    """None is empty, and each rank says why it stands there and which distribution brings it."""
    import importlib

    found = importlib.import_module(module).priorities
    for shape in SHAPES:
        config = AttentionConfig(**{**BASE, **shape})
        for version in ((7, 5), (9, 0), (10, 0)) if "cuda" in module else (None,):
            items = found(config) if version is None else found(DeviceCapability.parse(version), config)
            assert items
            assert all(item.reason and item.distribution.startswith("hardpoint-") for item in items)
