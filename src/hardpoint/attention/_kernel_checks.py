"""Whether a layer's arguments are what its config asks for, and a forward's tensors what config and step say.

All errors are `ConfigError`; each names what does not fit, what it is and what was expected.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hardpoint.attention._config import DTYPE_SIZE_BYTES
from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from hardpoint.attention._batch import AttentionBatch
    from hardpoint.attention._config import AttentionConfig


def check_per_head(config: AttentionConfig, *, sinks: torch.Tensor | None, alibi_slopes: torch.Tensor | None) -> None:
    """Sinks and slopes are there exactly where the config says so: one floating-point number for each query head."""
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
    """Scales belong to a quantised cache, and are positive; a latent has one."""
    if value_scale is not None and config.kind == "mla_attention":
        raise ConfigError(f"value_scale={value_scale}: the latent is stored with key_scale", field="value_scale")
    quantised = DTYPE_SIZE_BYTES[config.cache_dtype] == 1
    for name, factor in (("key_scale", key_scale), ("value_scale", value_scale)):
        if factor is not None and not quantised:
            raise ConfigError(f"{name}={factor}: a cache of {config.cache_dtype} has no scale", field=name)
        if factor is not None and not 0 < factor < math.inf:
            raise ConfigError(f"{name}={factor}: must be positive and finite", field=name)


def check_step(
    config: AttentionConfig,
    batch: AttentionBatch,
    query: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    out: torch.Tensor,
    *,
    dtype: torch.dtype,
    cached: bool,
) -> None:
    """Query, new rows and result have their shapes and the layer's dtype, and there are keys to read."""
    latent, num_new = config.kind == "mla_attention", batch.new_key_starts[-1]
    check_rows("query", query, dtype, (config.num_heads, config.head_size), batch.num_actual_tokens)
    check_rows("out", out, dtype, (config.num_heads, config.v_head_size), batch.num_actual_tokens)
    if out.shape[0] != query.shape[0]:
        raise ConfigError(f"out has {out.shape[0]} rows, query {query.shape[0]}", field="out")
    check_new_rows(key, value, latent=latent, cached=cached)
    heads = () if latent else (config.num_kv_heads,)
    if key is not None:
        check_rows("key", key, dtype, (*heads, config.head_size), num_new)
    if value is not None:
        check_rows("value", value, dtype, (*heads, config.v_head_size), num_new)


def check_new_rows(key: torch.Tensor | None, value: torch.Tensor | None, *, latent: bool, cached: bool) -> None:
    """New keys come with their values, which a latent does not have; without new keys there is a cache."""
    if latent and value is not None:
        raise ConfigError("the latent form has no value: it is part of the latent", field="value")
    if not latent and (key is None) != (value is None):
        raise ConfigError("a key without a value" if value is None else "a value without a key", field="value")
    if key is None and not cached:
        raise ConfigError("neither new keys nor a cache to read", field="key")


def check_rows(name: str, tensor: torch.Tensor, dtype: torch.dtype, row: tuple[int, ...], at_least: int) -> None:
    """A tensor is ``(rows, *row)`` with enough rows, of a dtype."""
    shape = tensor.shape
    if len(shape) != len(row) + 1 or shape[1:] != row or shape[0] < at_least or tensor.dtype != dtype:
        wanted = ", ".join(map(str, (f"at least {at_least}", *row)))
        raise ConfigError(
            f"{name} of shape {tuple(shape)} and {tensor.dtype}: expected ({wanted}) and {dtype}", field=name
        )


def check_new_keys(batch: AttentionBatch) -> None:
    """All keys of every sequence are the step's new ones."""
    starts = batch.new_key_starts
    for number, length in enumerate(batch.seq_lens_host):
        new = starts[number + 1] - starts[number]
        if new != length:
            raise ConfigError(
                f"sequence {number}: {new} new keys of {length}, and no cache for the rest", field="seq_lens"
            )


def check_table(batch: AttentionBatch, block_size: int) -> None:
    """Every sequence's keys lie in its blocks of that size."""
    if batch.block_table is None:
        raise ConfigError("a cache needs batch.block_table", field="block_table")
    width = batch.block_table.shape[1]
    for number, length in enumerate(batch.seq_lens_host):
        if (needed := -(-length // block_size)) > width:
            raise ConfigError(
                f"sequence {number}: {length} keys need {needed} blocks of {block_size}, its block_table has {width}",
                field="block_table",
            )


def check_caches(
    kv_cache: Sequence[torch.Tensor], expected: Sequence[tuple[str, tuple[int | None, ...], torch.dtype]]
) -> None:
    """Role, sizes of a block (None: the block size, whatever it is) and dtype of each tensor of a cache."""
    if len(kv_cache) != len(expected):
        roles = " and ".join(role for role, _, _ in expected)
        raise ConfigError(f"a cache of {len(kv_cache)} tensors: expected {roles}", field="kv_cache")
    block_size: int | None = None
    for tensor, (role, asked, dtype) in zip(kv_cache, expected, strict=True):
        sizes = tuple(block_size if size is None else size for size in asked)
        shape = tensor.shape[1:]
        if None in sizes and len(shape) == len(sizes):
            block_size = shape[sizes.index(None)]
            sizes = tuple(block_size if size is None else size for size in sizes)
        if shape != sizes or tensor.dtype != dtype:
            wanted = ", ".join("block size" if size is None else str(size) for size in sizes)
            raise ConfigError(
                f"{role} cache of shape {tuple(tensor.shape)} and {tensor.dtype}: "
                f"expected (blocks, {wanted}) and {dtype}",
                field="kv_cache",
            )
