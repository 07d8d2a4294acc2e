"""Writes which attention backend wins where: device x installed packages x request, by simulated machines.

    python tools/selection_table.py > tests/selection_table.txt

Every backend plugin of this repository must be installed; the libraries that they need are said to be there or not.
A test compares the file with what is decided now, so a change of an order or of a support shows as a diff of it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import hardpoint
from hardpoint import AttentionConfig, ReasonCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NO_LIBRARIES: Final[dict[str, str | None]] = dict.fromkeys(
    ("triton", "pytorch-triton-rocm", "triton-rocm", "flash-attn", "flash-attn-3", "flash-attn-4", "flashinfer-python",
     "amd-aiter")
)  # fmt: skip
TORCH: Final = {"torch": "2.13.0"}
TRITON: Final = {**TORCH, "triton": "3.5.0"}
CUDA_PACKAGES: Final[tuple[dict[str, str], ...]] = (
    TORCH,
    TRITON,
    {**TRITON, "flash-attn": "2.8.3"},
    {**TRITON, "flash-attn": "2.8.3", "flash-attn-3": "3.0.0b1", "flash-attn-4": "4.0.0b36"},
    {**TRITON, "flashinfer-python": "0.7.4"},
    {**TRITON, "flash-attn": "2.8.3", "flash-attn-3": "3.0.0b1", "flash-attn-4": "4.0.0b36",
     "flashinfer-python": "0.7.4"},
)  # fmt: skip
ROCM_PACKAGES: Final[tuple[dict[str, str], ...]] = (
    TORCH,
    TRITON,
    {**TRITON, "flash-attn": "2.8.3"},
    {**TRITON, "amd-aiter": "0.1.7", "flash-attn": "2.8.3"},
)
DEVICES: Final[dict[str, tuple[dict[str, str], ...]]] = {
    "h100": CUDA_PACKAGES,
    "h200": CUDA_PACKAGES,
    "b200": CUDA_PACKAGES,
    "a100-80gb": CUDA_PACKAGES,
    "t4": CUDA_PACKAGES,
    "mi300x": ROCM_PACKAGES,
    "mi355x": ROCM_PACKAGES,
    "rx-7900-xtx": ROCM_PACKAGES,
    "amx": (TORCH,),
    "x86-64-v3": (TORCH,),
}
_LATENT: Final[dict[str, Any]] = {  # Any: fields of several types
    "kind": "mla_attention", "head_size": 576, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_heads": 16,
}  # fmt: skip
CONFIGS: Final[dict[str, dict[str, Any]]] = {  # Any: as above
    "decoder": {},
    "decoder, blocks of 256": {"block_size": 256},
    "decoder, float16": {"dtype": "float16"},
    "decoder, float32": {"dtype": "float32"},
    "decoder, head size 96": {"head_size": 96},
    "decoder, head size 256": {"head_size": 256},
    "decoder, head size 512": {"head_size": 512},
    "decoder, 8-bit cache": {"kv_cache_dtype": "fp8"},
    "decoder, 8-bit cache (AMD)": {"kv_cache_dtype": "float8_e4m3fnuz"},
    "decoder, window": {"sliding_window": 4096},
    "decoder, sinks": {"sinks": True, "sliding_window": 128, "head_size": 64},
    "decoder, ALiBi": {"alibi": True},
    "decoder, soft cap": {"soft_cap": 50.0, "head_size": 256},
    "decoder, not causal": {"causal": False},
    "decoder, batch invariant": {"batch_invariant": True},
    "cross attention": {"attention_type": "encoder_decoder"},
    "encoder": {"attention_type": "encoder_only", "block_size": None, "head_size": 64},
    "vision tower": {"attention_type": "encoder_only", "block_size": None, "head_size": 72, "dtype": "float16"},
    "prefill of the latent form": {"block_size": None, "head_size": 192, "v_head_size": 128},
    "latent form": _LATENT,
    "latent form, 128 heads": {**_LATENT, "num_heads": 128},
    "latent form, 24 heads": {**_LATENT, "num_heads": 24},
    "latent form, 8-bit cache": {**_LATENT, "kv_cache_dtype": "fp8"},
}


def lines() -> Iterator[str]:
    """The file, line by line."""
    yield "Which attention backend wins, made by tools/selection_table.py from simulated machines at depth static."
    yield "A row: the request, the winner, and why each better one whose packages are there was not taken. Plain"
    yield "decoders have head size 128, 32 query and 8 key heads, bfloat16 and blocks of 16."
    for device, sets in DEVICES.items():
        for packages in sets:
            yield ""
            yield from table(device, packages)


def table(device: str, packages: Mapping[str, str]) -> Iterator[str]:
    """One device with some packages."""
    simulate: Any = getattr(hardpoint, "simulate", None)  # Any: a core without simulation has none
    if simulate is None:
        raise SystemExit("this core cannot simulate machines")
    machine = simulate(device, distributions={**NO_LIBRARIES, **packages})
    platform = hardpoint.resolve(machine=machine).platform
    capability = platform.get_device_capability(0)
    yield f"## {device} ({platform.name} {capability}) with {', '.join(f'{n} {v}' for n, v in packages.items())}"
    for name, changes in CONFIGS.items():
        base: dict[str, Any] = {  # Any: fields of several types
            "head_size": 128, "num_heads": 32, "dtype": "bfloat16", "block_size": 16,
            **({} if "kind" in changes else {"num_kv_heads": 8}),
        }  # fmt: skip
        yield f"{name:27}{decided(platform, AttentionConfig(**{**base, **changes}))}"


def decided(platform: hardpoint.Platform, config: AttentionConfig) -> str:
    """The winner of one request, and what stood before it."""
    try:
        selection = platform.select_backend(config, depth="static")
        candidates, winner = selection.candidates, selection.backend
    except hardpoint.errors.NoBackendError as error:
        candidates, winner = error.candidates, None
    before = []
    for candidate in candidates:
        if candidate.name == winner:
            break
        # What its packages' absence already says needs no cell; backends of other platforms have no rank.
        absent = {ReasonCode.MISSING_DEPENDENCY, ReasonCode.NOT_INSTALLED} & {item.code for item in candidate.reasons}
        if not absent and (candidate.rank_reason is not None or winner is not None):
            before.append(f"{candidate.name}: {'; '.join(reason.message for reason in candidate.reasons)}")
    return f"{winner or 'none':16}{' | '.join(before)}".rstrip()


if __name__ == "__main__":
    sys.stdout.write("\n".join(lines()) + "\n")
