"""The plugin objects that the entry points name. Light: neither torch nor Triton is imported here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hardpoint.attention import ANYTHING, AttentionSupport, AttentionVariant, Integers, OneOf
from hardpoint.hookspecs import API_VERSION, BackendSpec, Setting, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterator

# The first Triton that this was tried with; torch's wheels for GPUs bring one of their own.
VERSION = ">=3.4"
# torch's wheels for ROCm bring Triton under names of their own.
_ROCM_PACKAGES = ("triton-rocm", "pytorch-triton-rocm", "triton")
_ROCM_ARCHITECTURES = ("gfx90a", "gfx942", "gfx950", "gfx11*", "gfx12*")
_FLOATS = ("float16", "bfloat16", "float32")

_FEATURES: dict[str, Any] = {
    # Both are axes of a launch grid, which ends at 65535.
    "num_heads": Integers(maximum=65535),
    "num_kv_heads": Integers(maximum=65535),
    "block_size": ANYTHING,
    "attention_type": OneOf("decoder", "encoder", "encoder_only", "encoder_decoder"),
    "causal": ANYTHING,
    "sliding_window": ANYTHING,
    "sinks": ANYTHING,
    "alibi": ANYTHING,
    "soft_cap": ANYTHING,
    "kv_sharing": ANYTHING,
    "batch_invariant": ANYTHING,
}
_DENSE: dict[str, Any] = _FEATURES | {"head_size": Integers(maximum=256), "v_head_size": Integers(maximum=256)}
_LATENT: dict[str, Any] = _FEATURES | {
    "head_size": ANYTHING,
    "v_head_size": ANYTHING,
    "kv_lora_rank": Integers(maximum=512),
    "qk_rope_head_dim": Integers(minimum=0, maximum=128),
}


class _RocmCaches(OneOf):
    """``auto`` alone; the text tells what other devices of the runtime take."""

    def describe(self) -> str:
        return (
            "auto, on gfx942 also float8_e4m3fnuz or float8_e5m2fnuz, "
            "on gfx950 and gfx120x also float8_e4m3fn or float8_e5m2"
        )


def _variants(sizes: dict[str, Any]) -> Iterator[AttentionVariant]:
    """Where Triton has a code generator, with what it converts in hardware there (Triton's `supported_fp8_dtypes`).

    8-bit floats that a device would have to convert in software are left to backends which do not pretend. The first of
    equally near variants explains a refusal, so the broadest stand first.
    """

    def variant(dtypes: tuple[str, ...], caches: tuple[str, ...] = (), **guard: Any) -> AttentionVariant:  # noqa: ANN401  # Any: a variant's own members
        return AttentionVariant(**sizes, dtype=OneOf(*dtypes), kv_cache_dtype=OneOf("auto", *caches), **guard)

    cuda: dict[str, Any] = {"runtimes": ("cuda",), "package": f"triton{VERSION}"}
    if sizes is _DENSE:
        # A tile of the latent form does not fit into Turing's shared memory.
        yield variant(("float16", "float32"), capability_majors=(7,), capability_floor=(7, 5), **cuda)
    yield variant(_FLOATS, ("float8_e5m2",), capability_floor=(8, 0), **cuda)
    yield variant(_FLOATS, ("float8_e4m3fn", "float8_e5m2"), capability_floor=(8, 9), **cuda)
    for package in _ROCM_PACKAGES:
        rocm: dict[str, Any] = {"runtimes": ("rocm",), "package": f"{package}{VERSION}"}
        yield AttentionVariant(
            **sizes,
            dtype=OneOf(*_FLOATS),
            kv_cache_dtype=_RocmCaches("auto"),
            architectures=_ROCM_ARCHITECTURES,
            **rocm,
        )
        yield variant(_FLOATS, ("float8_e4m3fnuz", "float8_e5m2fnuz"), architectures=("gfx942",), **rocm)
        yield variant(_FLOATS, ("float8_e4m3fn", "float8_e5m2"), architectures=("gfx950", "gfx120*"), **rocm)
    # The interpreter: the platform declares the feature `triton` only where it is switched on.
    yield variant(_FLOATS, ("float8_e4m3fn", "float8_e5m2"), runtimes=("cpu",), package=f"triton{VERSION}")
    # A vendor's device says itself that Triton compiles for it.
    yield variant(_FLOATS, features=("triton",))


SUPPORT = AttentionSupport(tuple(_variants(_DENSE)))
LATENT_SUPPORT = AttentionSupport(tuple(_variants(_LATENT)))

# Triton's own, which it reads itself.
_SETTINGS = (
    Setting("TRITON_INTERPRET", "1: Triton runs kernels in its interpreter, on the CPU", "0"),
    Setting("TRITON_CACHE_DIR", "where Triton keeps what it compiles", "~/.triton/cache"),
)


class TritonPlugin:
    """Describes one of the two backends."""

    def __init__(self, kind: str, target: str, support: AttentionSupport) -> None:
        self._spec = BackendSpec(
            api=API_VERSION,
            kind=kind,
            platforms=("torch-device",),
            torch_features=("triton",),
            target=target,
            requires=("torch>=2.5",),
            support=support,
            settings=_SETTINGS,
        )

    @hookimpl
    def hardpoint_backend(self) -> BackendSpec:
        """Any device for which Triton has a code generator; which Triton it needs stands in the variants."""
        return self._spec


dense = TritonPlugin("attention", "hardpoint_triton.backend:TritonAttentionBackend", SUPPORT)
latent = TritonPlugin("mla_attention", "hardpoint_triton.backend:TritonMlaBackend", LATENT_SUPPORT)
