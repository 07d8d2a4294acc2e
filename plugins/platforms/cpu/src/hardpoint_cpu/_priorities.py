"""The order of attention backends on a CPU, as data, with the reason for each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hardpoint.platforms import BackendPriority

if TYPE_CHECKING:
    from hardpoint.attention import AttentionConfig

_NATIVE: Final = "hardpoint-cpu-native"
_SDPA: Final = "hardpoint-torch-sdpa"
_FLEX: Final = "hardpoint-flex-attention"

# Measured by benchmarks/cpu_order.py in bfloat16: flex_attention takes 0.91 to 0.96 of torch_sdpa's time in decode, 1.5
# to 2.0 times it in prefill, and 45 to 84 s to compile where torch's compiler has kept nothing.
DECODER: Final = (
    BackendPriority(
        name="cpu_native",
        reason="reads the paged cache where it lies; gathering it first moves every byte three times",
        distribution=_NATIVE,
    ),
    BackendPriority(
        name="torch_sdpa",
        reason="gathers the cache, then runs torch's own kernel; needs nothing but torch, compiles nothing",
        distribution=_SDPA,
    ),
    BackendPriority(
        name="flex_attention",
        reason="needs a C++ compiler at start-up, and compiles for a minute; decodes hardly faster, prefills slower",
        distribution=_FLEX,
    ),
)

ENCODER: Final = (
    BackendPriority(
        name="cpu_native",
        reason="packed sequences in one call, without padding or a loop over them",
        distribution=_NATIVE,
    ),
    BackendPriority(
        name="torch_sdpa",
        reason="torch's own kernel, one call per sequence; nothing to gather, nothing to compile",
        distribution=_SDPA,
    ),
    BackendPriority(
        name="flex_attention",
        reason="needs a C++ compiler at start-up, and compiles again for new families of shapes",
        distribution=_FLEX,
    ),
)

LATENT: Final = (
    BackendPriority(
        name="cpu_native_mla",
        reason="reads the latent cache where it lies, once for all heads",
        distribution=_NATIVE,
    ),
    BackendPriority(
        name="torch_mla",
        reason="gathers the latent cache, then multiplies with torch; needs nothing but torch",
        distribution=_SDPA,
    ),
)


def priorities(config: AttentionConfig) -> tuple[BackendPriority, ...]:
    """Best first. The CPU's features do not reorder it: they decide in declared support who can run at all."""
    if config.kind == "mla_attention":
        return LATENT
    # Cross attention reads a cache as a decoder does.
    return ENCODER if config.attention_type in ("encoder", "encoder_only") else DECODER
