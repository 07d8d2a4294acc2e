"""Whether a layer's arguments are those that its config asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint.attention import DTYPE_SIZE_BYTES
from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from hardpoint.attention import AttentionConfig


def check_per_head(config: AttentionConfig, *, sinks: torch.Tensor | None, alibi_slopes: torch.Tensor | None) -> None:
    """Errors: `ConfigError` for one that is missing, not asked for, or of another shape or kind of numbers."""
    for name, tensor, asked in (("sinks", sinks, config.sinks), ("alibi_slopes", alibi_slopes, config.alibi)):
        if asked != (tensor is not None):
            raise ConfigError(
                f"{name} {'missing' if asked else 'given'}: the config says {name.split('_', 1)[0]}={asked}",
                field=name,
            )
        if tensor is not None and (tuple(tensor.shape) != (config.num_heads,) or not tensor.is_floating_point()):
            raise ConfigError(
                f"{name} of shape {tuple(tensor.shape)} and {tensor.dtype}: expected ({config.num_heads},), "
                f"floating point",
                field=name,
            )


def check_scales(config: AttentionConfig, *, key_scale: float | None, value_scale: float | None) -> None:
    """Errors: `ConfigError` for a scale of a cache that has none, or one that is not positive."""
    quantised = DTYPE_SIZE_BYTES[config.cache_dtype] == 1
    for name, factor in (("key_scale", key_scale), ("value_scale", value_scale)):
        if factor is not None and not quantised:
            raise ConfigError(f"{name}={factor}: a cache of {config.cache_dtype} has no scale", field=name)
        if factor is not None and not factor > 0:
            raise ConfigError(f"{name}={factor}: must be positive", field=name)
