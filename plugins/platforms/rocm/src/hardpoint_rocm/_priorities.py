"""The order of attention backends on AMD devices, as data, with the reason for each rank.

A table lists only who can win on such a device: what needs another generation is not in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hardpoint.platforms import BackendPriority
from hardpoint_rocm._arch import parse_arch

if TYPE_CHECKING:
    from hardpoint import DeviceCapability
    from hardpoint.attention import AttentionConfig

_AITER: Final = "hardpoint-aiter"
_TRITON: Final = "hardpoint-triton"
_FLASH: Final = "hardpoint-flash-attn"
_FLEX: Final = "hardpoint-flex-attention"
_SDPA: Final = "hardpoint-torch-sdpa"

_AITER_FA: Final = BackendPriority(
    "aiter_fa", "AMD's own tuning of Composable Kernel, packed or paged; with pages head sizes up to 128", _AITER
)
_AITER_UNIFIED: Final = BackendPriority(
    "aiter_unified", "AMD's tuned Triton kernel: head sizes up to 256, sinks, ALiBi; causal masks only", _AITER
)
_TRITON_DENSE: Final = BackendPriority(
    "triton_attn", "runs on every generation, in every dtype and with every feature", _TRITON
)
_FLASH_DENSE: Final = BackendPriority(
    "flash_attn", "the build on Composable Kernel: head sizes up to 256, but large pages of the cache only", _FLASH
)
_FLEX_DENSE: Final = BackendPriority("flex_attention", "one compilation per family of shapes, at start-up", _FLEX)
_SDPA_DENSE: Final = BackendPriority("torch_sdpa", "gathers the cache before each call; needs nothing but torch", _SDPA)

DENSE_CDNA: Final = (_AITER_FA, _AITER_UNIFIED, _FLASH_DENSE, _TRITON_DENSE, _FLEX_DENSE, _SDPA_DENSE)
"""CDNA3 and 4, which AITER's binaries are for. Its table of architectures has neither RDNA4 nor gfx1250."""

DENSE_CDNA_BIDIRECTIONAL: Final = (_AITER_FA, _FLASH_DENSE, _TRITON_DENSE, _FLEX_DENSE, _SDPA_DENSE)

DENSE_CDNA2: Final = (
    BackendPriority("triton_attn", "the best paged kernel here: AITER begins with CDNA3", _TRITON),
    _FLASH_DENSE,
    _FLEX_DENSE,
    _SDPA_DENSE,
)
DENSE: Final = (
    BackendPriority("triton_attn", "the only paged kernel here: AITER has none for this generation", _TRITON),
    _FLEX_DENSE,
    _SDPA_DENSE,
)

CROSS_AITER: Final = (_AITER_FA, _FLASH_DENSE, _TRITON_DENSE, _SDPA_DENSE)
CROSS: Final = (_TRITON_DENSE, _SDPA_DENSE)

_SDPA_ENCODER: Final = BackendPriority("torch_sdpa", "torch's own kernel, one call per sequence", _SDPA)
_TRITON_ENCODER: Final = BackendPriority(
    "triton_attn", "for what torch refuses, or where that distribution is not installed", _TRITON
)
ENCODER_CDNA: Final = (
    BackendPriority("aiter_fa", "packed sequences in one call, by AMD's tuning of Composable Kernel", _AITER),
    _SDPA_ENCODER,
    _TRITON_ENCODER,
)
ENCODER_CDNA2: Final = (
    BackendPriority("flash_attn", "packed sequences in one call, on Composable Kernel", _FLASH),
    _SDPA_ENCODER,
    _TRITON_ENCODER,
)
ENCODER: Final = (_SDPA_ENCODER, _TRITON_ENCODER)

_TRITON_LATENT: Final = BackendPriority("triton_mla", "runs on every generation", _TRITON)
_TORCH_LATENT: Final = BackendPriority("torch_mla", "gathers the latent cache; needs nothing but torch", _SDPA)
LATENT_CDNA: Final = (
    BackendPriority("aiter_mla", "AMD's assembly for the latent form, for CDNA3 and 4", _AITER),
    _TRITON_LATENT,
    _TORCH_LATENT,
)
LATENT: Final = (_TRITON_LATENT, _TORCH_LATENT)


def priorities(capability: DeviceCapability | None, config: AttentionConfig) -> tuple[BackendPriority, ...]:
    """Best first. Of a device of unknown architecture CDNA3's order is assumed: support decides anyway."""
    arch = None if capability is None or capability.runtime != "rocm" else parse_arch(capability.arch)
    is_new = arch is None or arch.matches("gfx94 gfx95")
    is_cdna2 = arch is not None and arch.matches("gfx90a")
    if config.kind == "mla_attention":
        return LATENT_CDNA if is_new else LATENT
    if config.attention_type in ("encoder", "encoder_only"):
        return ENCODER_CDNA if is_new else ENCODER_CDNA2 if is_cdna2 else ENCODER
    if config.attention_type == "encoder_decoder":
        return CROSS_AITER if is_new else CROSS
    if is_new:
        return DENSE_CDNA if config.causal else DENSE_CDNA_BIDIRECTIONAL
    return DENSE_CDNA2 if is_cdna2 else DENSE
