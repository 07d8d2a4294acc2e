"""The order of attention backends on NVIDIA devices, as data, with the reason for each rank.

A table lists only who can win on such a device: what needs a later generation is not in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hardpoint.platforms import BackendPriority

if TYPE_CHECKING:
    from hardpoint import DeviceCapability
    from hardpoint.attention import AttentionConfig

_FLASH: Final = "hardpoint-flash-attn"
_INFER: Final = "hardpoint-flashinfer"
_TRITON: Final = "hardpoint-triton"
_FLEX: Final = "hardpoint-flex-attention"
_SDPA: Final = "hardpoint-torch-sdpa"

_TRITON_DENSE: Final = BackendPriority(
    "triton_attn", "runs on every generation, in every dtype and with every feature; slower than tuned kernels", _TRITON
)
_FLEX_DENSE: Final = BackendPriority("flex_attention", "one compilation per family of shapes, at start-up", _FLEX)
_SDPA_DENSE: Final = BackendPriority("torch_sdpa", "gathers the cache before each call; needs nothing but torch", _SDPA)
_FLASH_DENSE: Final = BackendPriority(
    "flash_attn", "the fastest prefill and the broadest features here; FA3 on 9.0, FA2 elsewhere", _FLASH
)

DENSE_BLACKWELL: Final = (
    BackendPriority(
        "flashinfer", "picks cuDNN's kernels for this generation's matrix units, where they beat its own", _INFER
    ),
    BackendPriority("flash_attn", "FA4 where its head sizes fit, else FA2, which does not use these units", _FLASH),
    _TRITON_DENSE,
    _FLEX_DENSE,
    _SDPA_DENSE,
)
DENSE: Final = (
    _FLASH_DENSE,
    BackendPriority("flashinfer", "as fast in decode, and with more formats of the cache; decoders only", _INFER),
    _TRITON_DENSE,
    _FLEX_DENSE,
    _SDPA_DENSE,
)
DENSE_THOR: Final = (
    BackendPriority("flash_attn", "FA4's kernels for this generation's matrix units; FA2 has no binary for it", _FLASH),
    BackendPriority("flashinfer", "its kernels of generation 2, compiled for this one; decoders only", _INFER),
    _TRITON_DENSE,
    _FLEX_DENSE,
    _SDPA_DENSE,
)
DENSE_OLD: Final = (
    BackendPriority(
        "triton_attn", "the only paged kernel below 8.0: FlashAttention and FlashInfer start there", _TRITON
    ),
    _FLEX_DENSE,
    _SDPA_DENSE,
)
CROSS: Final = (_FLASH_DENSE, _TRITON_DENSE, _SDPA_DENSE)
CROSS_OLD: Final = (DENSE_OLD[0], _SDPA_DENSE)

ENCODER: Final = (
    BackendPriority("flash_attn", "packed sequences in one call, and the fastest prefill", _FLASH),
    BackendPriority("triton_attn", "packed sequences in one call, in every dtype", _TRITON),
    BackendPriority("torch_sdpa", "one call per sequence; takes what the others refuse", _SDPA),
)
ENCODER_OLD: Final = (
    BackendPriority("torch_sdpa", "torch's own kernel is the best that is left below 8.0", _SDPA),
    BackendPriority("triton_attn", "for what torch refuses, or where that distribution is not installed", _TRITON),
)

_TRITON_LATENT: Final = BackendPriority("triton_mla", "runs on every generation from 8.0 on", _TRITON)
_TORCH_LATENT: Final = BackendPriority("torch_mla", "gathers the latent cache; needs nothing but torch", _SDPA)
LATENT_BLACKWELL: Final = (
    BackendPriority("flashinfer_mla", "picks among its kernels for this generation by the size of the step", _INFER),
    _TRITON_LATENT,
    _TORCH_LATENT,
)
LATENT_THOR: Final = (
    BackendPriority("flash_attn_mla", "FA4's absorbed form, for this generation's matrix units", _FLASH),
    BackendPriority("flashinfer_mla", "its kernels of generation 2, compiled here; small head counts too", _INFER),
    _TRITON_LATENT,
    _TORCH_LATENT,
)
LATENT_HOPPER: Final = (
    BackendPriority("flash_attn_mla", "FA3's latent form: for this generation, and for no other", _FLASH),
    BackendPriority("flashinfer_mla", "its kernels of generation 3; fewer counts of heads, but 8-bit caches", _INFER),
    _TRITON_LATENT,
    _TORCH_LATENT,
)
LATENT_AMPERE: Final = (
    BackendPriority("flashinfer_mla", "the only tuned latent kernels for 8.x: those of generation 2", _INFER),
    _TRITON_LATENT,
    _TORCH_LATENT,
)
LATENT: Final = (_TRITON_LATENT, _TORCH_LATENT)
LATENT_OLD: Final = (_TORCH_LATENT,)


def priorities(capability: DeviceCapability | None, config: AttentionConfig) -> tuple[BackendPriority, ...]:
    """Best first. Of a device of unknown capability the order for 8.0 and later is assumed: support decides anyway."""
    version = None if capability is None or capability.runtime != "cuda" else capability.version
    major = 8 if version is None else version[0]
    if config.kind == "mla_attention":
        latent = {8: LATENT_AMPERE, 9: LATENT_HOPPER, 10: LATENT_BLACKWELL, 11: LATENT_THOR}
        return latent.get(major, LATENT if major >= 8 else LATENT_OLD)
    if config.attention_type in ("encoder", "encoder_only"):
        return ENCODER if major >= 8 else ENCODER_OLD
    if config.attention_type == "encoder_decoder":
        return CROSS if major >= 8 else CROSS_OLD
    if major < 8:
        return DENSE_OLD
    if major == 11:
        return DENSE_THOR
    # FlashInfer's kernels for this generation are not to be trusted without a causal mask.
    return DENSE_BLACKWELL if major == 10 and config.causal else DENSE
