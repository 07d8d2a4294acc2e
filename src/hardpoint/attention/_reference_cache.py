"""The cache as the float64 reference sees it: how new keys are stored, and which keys a sequence has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hardpoint.attention._kernel_checks import check_scales
from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from hardpoint.attention._batch import AttentionBatch
    from hardpoint.attention._config import AttentionConfig
    from hardpoint.attention._contract import KVCacheSpec

_CANONICAL = ("block", "head", "token", "content")


def write_kv_cache(
    config: AttentionConfig,
    batch: AttentionBatch,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    kv_cache: Sequence[torch.Tensor],
    *,
    key_scale: float | None = None,
    value_scale: float | None = None,
    spec: KVCacheSpec | None = None,
) -> None:
    """Write the step's new keys and values into `kv_cache`, in place, as `AttentionLayer.forward` must.

    A quantised cache stores value / scale, rounded to the nearest and saturated. A slot of -1 is not written, nor are
    rows beyond the step's new keys, nor anything by a layer with `kv_sharing`.
    """
    check_scales(config, key_scale=key_scale, value_scale=value_scale)
    new = new_keys(config, batch, key, value)
    cache = StoredKeys(config, kv_cache, key_scale, value_scale, spec)
    if new is None or config.kv_sharing:
        return
    if batch.slot_mapping is None:
        raise ConfigError("new keys for a cache need batch.slot_mapping", field="slot_mapping")
    count = batch.new_key_starts[-1]
    slots = batch.slot_mapping.tolist()[:count]
    if len(slots) < count:
        raise ConfigError(f"{len(slots)} slots for {count} new keys", field="slot_mapping")
    for tensor, rows, factor in zip(cache.tensors, new, (key_scale, value_scale), strict=False):
        num_blocks, _, block_size, _ = tensor.shape
        for row, slot in enumerate(slots):
            if slot == -1:
                continue
            if not 0 <= slot < num_blocks * block_size:
                raise ConfigError(f"slot {slot} of a cache of {num_blocks} x {block_size}", field="slot_mapping")
            block, offset = divmod(slot, block_size)
            tensor[block, :, offset].copy_(_as_stored(rows[row], tensor.dtype, factor))


def new_keys(
    config: AttentionConfig, batch: AttentionBatch, key: torch.Tensor | None, value: torch.Tensor | None
) -> tuple[torch.Tensor, ...] | None:
    """The step's new rows, float64 ``(num_kv_tokens, num_kv_heads, …)``: key and value, or the latent alone."""
    if key is None:
        if value is not None:
            raise ConfigError("a value without a key", field="value")
        return None
    count = batch.new_key_starts[-1]
    if config.kind == "mla_attention":
        if value is not None:
            raise ConfigError("the latent form has no value: it is part of the latent", field="value")
        check_shape("key", key, (config.head_size,), count)
        return (key.detach().cpu().double().unsqueeze(1),)
    if value is None:
        raise ConfigError("a key without a value", field="value")
    check_shape("key", key, (config.num_kv_heads, config.head_size), count)
    check_shape("value", value, (config.num_kv_heads, config.v_head_size), count)
    return key.detach().cpu().double(), value.detach().cpu().double()


def split(config: AttentionConfig, parts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    if config.kind == "mla_attention":
        return parts[0], parts[0][..., : config.v_head_size]
    return parts[0], parts[1]


def _as_stored(rows: torch.Tensor, dtype: torch.dtype, factor: float | None) -> torch.Tensor:
    import torch

    if factor is not None:
        rows = rows / factor
    if dtype == torch.int8:
        rows = rows.round().clamp(-128, 127)
    elif dtype.itemsize == 1:
        # Beyond the largest number torch's own conversion saturates, overflows or gives NaN, depending on the dtype.
        limits = torch.finfo(dtype)
        rows = rows.clamp(limits.min, limits.max)
    return rows.to(dtype)


@dataclass(init=False, slots=True)
class StoredKeys:
    """Cache tensors seen as ``(block, head, token, content)``, whatever the order of their axes."""

    config: AttentionConfig
    tensors: tuple[torch.Tensor, ...]
    factors: tuple[float | None, ...]

    def __init__(
        self,
        config: AttentionConfig,
        kv_cache: Sequence[torch.Tensor],
        key_scale: float | None,
        value_scale: float | None,
        spec: KVCacheSpec | None,
    ) -> None:
        latent = config.kind == "mla_attention"
        roles = ("latent",) if latent else ("key", "value")
        if spec is None:
            axes_of: dict[str, tuple[str, ...]] = dict.fromkeys(
                roles, ("block", "token", "content") if latent else _CANONICAL
            )
        else:
            axes_of = {tensor.role: tensor.axes for tensor in spec.tensors}
        if sorted(axes_of) != sorted(roles) or len(kv_cache) != len(roles):
            raise ConfigError(f"a cache of {len(kv_cache)} tensors {tuple(axes_of)}; the reference knows {roles}")
        by_role = dict(zip(axes_of, kv_cache, strict=True))
        self.config = config
        self.factors = (key_scale, value_scale)
        self.tensors = tuple(self._canonical(role, by_role[role], axes_of[role]) for role in roles)

    def _canonical(self, role: str, tensor: torch.Tensor, axes: tuple[str, ...]) -> torch.Tensor:
        if tensor.ndim != len(axes):
            raise ConfigError(f"cache tensor {role!r} of shape {tuple(tensor.shape)} for axes {axes}")
        order = [axis for axis in _CANONICAL if axis in axes]
        seen = tensor.permute([axes.index(axis) for axis in order])
        if "head" not in axes:
            seen = seen.unsqueeze(1)
        content = self.config.v_head_size if role == "value" else self.config.head_size
        block_size = self.config.block_size or seen.shape[2]
        if seen.shape[1:] != (self.config.num_kv_heads, block_size, content):
            shape = tuple(tensor.shape)
            raise ConfigError(f"cache tensor {role!r} of shape {shape} does not fit: {self.config.describe()}")
        return seen

    def read(self, batch: AttentionBatch, number: int, oldest: int, num_keys: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``oldest … num_keys-1`` of one sequence, float64 ``(num_kv_heads, n, …)``."""
        import torch

        if batch.block_table is None:
            raise ConfigError("a cache needs batch.block_table", field="block_table")
        row = batch.block_table[number].tolist()
        parts = []
        for tensor, factor in zip(self.tensors, self.factors, strict=False):
            num_blocks, heads, block_size, content = tensor.shape
            first, end = oldest // block_size, -(-num_keys // block_size)
            blocks = row[first:end]
            if len(blocks) != max(0, end - first) or not all(0 <= block < num_blocks for block in blocks):
                raise ConfigError(
                    f"sequence {number}: {num_keys} keys do not lie in blocks {row} of {num_blocks} x {block_size}",
                    field="block_table",
                )
            empty = torch.zeros(heads, 0, content, dtype=torch.float64)
            joined = torch.cat([empty, *(tensor[block].double() for block in blocks)], dim=1)
            joined = joined[:, oldest - first * block_size : num_keys - first * block_size]
            parts.append(joined if factor is None else joined * factor)
        return split(self.config, parts)


def check_shape(name: str, tensor: torch.Tensor, row: tuple[int, ...], at_least: int) -> None:
    if tensor.ndim != len(row) + 1 or tuple(tensor.shape[1:]) != row or tensor.shape[0] < at_least:
        wanted = ", ".join(["num_tokens", *map(str, row)])
        raise ConfigError(
            f"{name} of shape {tuple(tensor.shape)}: expected ({wanted}) with at least {at_least} tokens", field=name
        )
