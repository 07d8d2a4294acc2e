"""The vendor's own operators. Importing this registers them with torch, and the device before them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any  # Any: an operator's arguments

import torch

from wherrow import torch_device  # noqa: F401  # operators of a device that torch knows
from wherrow._memory import memory_of, seen
from wherrow._streams import current_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

_library: Any = torch.library.Library("wherrow", "DEF")  # type: ignore[no-untyped-call]
_library.define(
    "attention(Tensor query, Tensor? key, Tensor? value, Tensor(a!) key_cache, Tensor(b!) value_cache,"
    " Tensor block_table, Tensor slot_mapping, int[] query_starts, int[] seq_lens, float scale,"
    " Tensor(c!) out, Tensor(d!)? lse) -> ()"
)


def attention(*arguments: torch.Tensor | Sequence[int] | float | None) -> None:
    """Write the new keys and values, then attend, in the current stream. The caller does not wait."""
    tensors = [item for item in arguments if isinstance(item, torch.Tensor)]
    if strange := [item.device for item in tensors if item.device != tensors[0].device]:
        raise RuntimeError(f"attention on {tensors[0].device} with a tensor on {strange[0]}")
    given: list[Any] = [seen(item) if isinstance(item, torch.Tensor) else item for item in arguments]
    current_stream(tensors[0].device).launch(lambda: _attend(*given), *memory_of(*tensors))


def _attend(
    query: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    slot_mapping: torch.Tensor,
    starts: Sequence[int],
    lens: Sequence[int],
    scale: float,
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    """What the device computes. Caches are ``(block, token, head, content)``."""
    size, kv_heads = key_cache.shape[1:3]
    if key is not None and value is not None:
        slots = slot_mapping[: starts[-1]]
        kept = (slots >= 0).nonzero().flatten()
        place = slots[kept] // size, slots[kept] % size
        key_cache[place] = key[kept].to(key_cache.dtype)
        value_cache[place] = value[kept].to(value_cache.dtype)
    out[starts[-1] :] = 0
    if lse is not None:
        lse[:, starts[-1] :] = -torch.inf
    for number, (first, end, length) in enumerate(zip(starts[:-1], starts[1:], lens, strict=True)):
        count = end - first
        if not count:
            continue
        blocks = block_table[number, : -(-length // size)].long()
        keys, values = (cache[blocks].flatten(0, 1)[:length].float() for cache in (key_cache, value_cache))
        grouped = query[first:end].float().reshape(count, kv_heads, -1, query.shape[-1])
        scores = torch.einsum("qkgd,nkd->kgqn", grouped, keys) * scale
        # Queries align to the end: the last one sees every key.
        position = torch.arange(length - count, length)[:, None]
        scores = scores.masked_fill(torch.arange(length) > position, -torch.inf)
        attended = torch.einsum("kgqn,nkd->qkgd", scores.softmax(-1), values)
        out[first:end] = attended.flatten(1, 2).to(out.dtype)
        if lse is not None:
            lse[:, first:end] = scores.logsumexp(-1).flatten(0, 1)


_library.impl("attention", attention, "PrivateUse1")
