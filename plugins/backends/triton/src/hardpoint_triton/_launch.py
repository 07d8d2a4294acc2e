"""From a layer, a plan and tensors to the launches of a step. Launches nothing and asks no device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint_triton._attend import attend
from hardpoint_triton._kernel import Launch
from hardpoint_triton._merge import merge
from hardpoint_triton._store import store
from hardpoint_triton._tiles import padded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hardpoint.attention import AttentionConfig
    from hardpoint_triton._plan import Segment, TritonPlan

_LOG2E = 1.4426950408889634
# Elements of one program's tile of new keys: more would leave registers, fewer leave threads idle.
_STORE_ELEMENTS = 4096
# Stored bits of the mantissa, smallest normal exponent, whether there is a negative zero (IEEE-like or FNUZ).
_EIGHT_BITS = {
    torch.float8_e4m3fn: (3, -6, True),
    torch.float8_e5m2: (2, -14, True),
    torch.float8_e4m3fnuz: (3, -7, False),
    torch.float8_e5m2fnuz: (2, -15, False),
}
# What the merging kernel takes over from the one before it.
_MERGED = (
    "partial_out", "partial_lse", "out", "lse", "sinks", "query_starts", "work", "num_splits",
    "out_row", "out_head", "lse_head", "TOKENS", "SINKS",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """What a layer brings to every launch. `scale` includes the scale of stored keys."""

    config: AttentionConfig
    scale: float
    cached_scale: float
    key_scale: float
    value_scale: float
    sinks: torch.Tensor | None
    slopes: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """A cache tensor seen as block, head, token, content."""

    tensor: torch.Tensor
    strides: tuple[int, int, int, int]
    block_size: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Cache:
        """Of a tensor ``(block, head, token, content)``, or ``(block, token, content)``."""
        if tensor.ndim == 3:
            block, token, content = tensor.stride()
            return cls(tensor=tensor, strides=(block, 0, token, content), block_size=tensor.shape[1])
        block, head, token, content = tensor.stride()
        return cls(tensor=tensor, strides=(block, head, token, content), block_size=tensor.shape[2])


def store_launch(
    parameters: Parameters, plan: TritonPlan, key: torch.Tensor, value: torch.Tensor, caches: tuple[Cache, Cache]
) -> Launch:
    """Writes the step's new rows, ``(tokens, heads, content)``, into the cache. `plan.slots` is there."""
    config = parameters.config
    latent = config.kind == "mla_attention"
    k_pad = padded(config.head_size)
    v_pad = k_pad if latent else padded(config.v_head_size)
    tile_heads = max(1, min(1 << (config.num_kv_heads - 1).bit_length(), _STORE_ELEMENTS // max(k_pad, v_pad)))
    slots = plan.slots
    assert slots is not None  # noqa: S101  # for the type checker: the layer has looked
    cache = caches[0]
    quantised = cache.tensor.dtype.itemsize == 1
    arguments: dict[str, Any] = {
        "key": key,
        "value": value,
        "key_cache": cache.tensor,
        "value_cache": caches[1].tensor,
        "slots": slots,
        "num_slots": cache.tensor.shape[0] * cache.block_size,
        "key_scale": parameters.key_scale,
        "value_scale": parameters.value_scale,
        "largest": torch.finfo(cache.tensor.dtype).max if quantised else 0.0,
        "key_row": key.stride(0),
        "key_head": key.stride(1),
        "value_row": value.stride(0),
        "value_head": value.stride(1),
        "HEADS": config.num_kv_heads,
        "TILE_HEADS": tile_heads,
        "BLOCK_SIZE": cache.block_size,
        "K": config.head_size,
        "K_PAD": k_pad,
        "V": config.v_head_size,
        "V_PAD": v_pad,
        "LATENT": latent,
        "QUANTISED": quantised,
    }
    digits = _EIGHT_BITS.get(cache.tensor.dtype, (0, 0, True))
    arguments |= dict(zip(("MANTISSA", "MIN_EXPONENT", "SIGNED_ZERO"), digits, strict=True))
    arguments |= _cache_strides("key_cache", caches[0]) | _cache_strides("value_cache", caches[1])
    grid = (slots.shape[0], -(-config.num_kv_heads // tile_heads), 1)
    return Launch(kernel=store, grid=grid, arguments=arguments, num_warps=4, num_stages=1)


def attend_launches(
    parameters: Parameters,
    plan: TritonPlan,
    query: torch.Tensor,
    keys: tuple[torch.Tensor, torch.Tensor] | tuple[Cache, Cache],
    out: torch.Tensor,
    lse: torch.Tensor,
) -> Iterator[Launch]:
    """Attends all query rows of the plan, to a cache or to dense ``(tokens, heads, content)`` keys and values."""
    config = parameters.config
    common: dict[str, Any] = {
        "query": query,
        "out": out,
        "lse": lse,
        "sinks": lse if parameters.sinks is None else parameters.sinks,
        "slopes": lse if parameters.slopes is None else parameters.slopes,
        "query_starts": plan.query_starts,
        "key_starts": plan.key_starts,
        "seq_lens": plan.seq_lens,
        "soft_cap": config.soft_cap or 0.0,
        "window": config.sliding_window or 0,
        "query_row": query.stride(0),
        "query_head": query.stride(1),
        "out_row": out.stride(0),
        "out_head": out.stride(1),
        "lse_head": lse.stride(0),
        "GROUP": config.group_size,
        "LATENT": config.kind == "mla_attention",
        "CAUSAL": plan.causal,
        "WINDOW": config.sliding_window is not None,
        "SINKS": parameters.sinks is not None,
        "ALIBI": parameters.slopes is not None,
        "SOFT_CAP": config.soft_cap is not None,
        # Matrix units would round float32 to ten bits.
        "PRECISION": "ieee",
        # The interpreter multiplies bfloat16 as if its bits were a whole number.
        "WIDE": plan.hardware.interpreted,
    }
    key, value = keys
    if isinstance(key, Cache) and isinstance(value, Cache):
        table = plan.block_table
        assert table is not None  # noqa: S101  # for the type checker: the layer has looked
        common |= {"key": key.tensor, "value": value.tensor, "block_table": table, "table_row": table.stride(0)}
        common |= {"BLOCK_SIZE": key.block_size, "scale_log2": parameters.cached_scale * _LOG2E}
        common |= {"value_scale": parameters.value_scale}
        common |= _cache_strides("key", key) | _cache_strides("value", value)
    elif isinstance(key, torch.Tensor) and isinstance(value, torch.Tensor):
        common |= {"key": key, "value": value, "block_table": plan.seq_lens, "table_row": 0, "BLOCK_SIZE": 0}
        common |= {"scale_log2": parameters.scale * _LOG2E, "value_scale": 1.0}
        for name, tensor in (("key", key), ("value", value)):
            common |= {f"{name}_block": 0, f"{name}_head": tensor.stride(1)}
            common |= {f"{name}_token": tensor.stride(0), f"{name}_content": 1}
    for segment in plan.segments:
        yield from _segment_launches(config, segment, common)


def _segment_launches(config: AttentionConfig, segment: Segment, common: dict[str, Any]) -> Iterator[Launch]:
    shape, out = segment.shape, common["out"]
    split = segment.num_splits > 1
    partial_out = partial_lse = common["lse"]
    if split:
        rows = segment.num_splits * segment.count * shape.tokens * config.num_heads
        partial_out = torch.empty(rows, config.v_head_size, dtype=torch.float32, device=out.device)
        partial_lse = torch.empty(rows, dtype=torch.float32, device=out.device)
    arguments = common | {
        "partial_out": partial_out,
        "partial_lse": partial_lse,
        "work": segment.work,
        "num_splits": segment.num_splits,
        "ROW_HEADS": shape.row_heads,
        "TOKENS": shape.tokens,
        "BLOCK_M": shape.block_m,
        "BLOCK_N": shape.tile.block_n,
        "K0": shape.key.first,
        "K0_PAD": shape.key.first_padded,
        "K1": shape.key.rest,
        "K1_PAD": shape.key.rest_padded,
        "V0": shape.value.first,
        "V0_PAD": shape.value.first_padded,
        "V1": shape.value.rest,
        "V1_PAD": shape.value.rest_padded,
        "SPLIT": split,
    }
    yield Launch(
        kernel=attend,
        grid=(segment.count, config.num_kv_heads * shape.head_blocks, segment.num_splits),
        arguments=arguments,
        num_warps=shape.tile.num_warps,
        num_stages=shape.tile.num_stages,
    )
    if not split:
        return
    merging = {name: arguments[name] for name in _MERGED}
    merging |= {"num_items": segment.count, "V": config.v_head_size, "V_PAD": padded(config.v_head_size)}
    grid = (segment.count * shape.tokens, config.num_heads, 1)
    yield Launch(kernel=merge, grid=grid, arguments=merging, num_warps=4, num_stages=1)


def _cache_strides(name: str, cache: Cache) -> dict[str, int]:
    return {f"{name}_{axis}": s for axis, s in zip(("block", "head", "token", "content"), cache.strides, strict=True)}
