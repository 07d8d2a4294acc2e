"""What both backends check of a layer's arguments."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention import DTYPE_SIZE_BYTES
from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    from hardpoint.attention import AttentionConfig


def check_per_head(config: AttentionConfig, *, sinks: torch.Tensor | None, alibi_slopes: torch.Tensor | None) -> None:
    """One number per head exactly where the config says so. Errors: `ConfigError`."""
    for name, tensor, asked in (("sinks", sinks, config.sinks), ("alibi_slopes", alibi_slopes, config.alibi)):
        if asked != (tensor is not None):
            state = "missing" if asked else "given"
            raise ConfigError(f"{name} {state}: the config says {name.split('_', 1)[0]}={asked}", field=name)
        if tensor is not None and (tuple(tensor.shape) != (config.num_heads,) or not tensor.is_floating_point()):
            raise ConfigError(
                f"{name} of shape {tuple(tensor.shape)} and {tensor.dtype}: "
                f"expected ({config.num_heads},), floating point",
                field=name,
            )


def check_scales(config: AttentionConfig, *, scale: float, key_scale: float | None, value_scale: float | None) -> None:
    """Finite; those of the cache positive, and only for one of 8-bit numbers. Errors: `ConfigError`."""
    if not math.isfinite(scale):
        raise ConfigError(f"scale={scale}: must be finite", field="scale")
    for name, factor in (("key_scale", key_scale), ("value_scale", value_scale)):
        if factor is not None and DTYPE_SIZE_BYTES[config.cache_dtype] != 1:
            raise ConfigError(f"{name}={factor}: a cache of {config.cache_dtype} has no scale", field=name)
        if factor is not None and not 0 < factor < math.inf:
            raise ConfigError(f"{name}={factor}: must be positive and finite", field=name)


def check_device(device: torch.device | str) -> None:
    """The host's memory. Errors: `ConfigError`."""
    if torch.device(device).type != "cpu":
        raise ConfigError(f"device={device}: these kernels run on the CPU", field="device")
