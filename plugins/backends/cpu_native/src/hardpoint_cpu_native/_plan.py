"""A step, as the kernels take it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention._kernel_forward import OpaquePlan

if TYPE_CHECKING:
    from hardpoint.attention import AttentionBatch, AttentionConfig
    from hardpoint_cpu_native._kernels import Kernels, NativeStep

# The kernels count in 32 bits; no sequence is longer, so a wider window hides no more.
_MOST: Final = (1 << 31) - 1


class CpuNativePlan(OpaquePlan):
    """Holds copies: changing the batch's tensors afterwards changes nothing here."""

    def __init__(self, config: AttentionConfig, batch: AttentionBatch, *, kernels: Kernels) -> None:
        super().__init__(config)
        self.kernels = kernels
        self.update(batch)

    def update(self, batch: AttentionBatch) -> None:
        """Work it all out anew."""
        self._batch = batch
        self.num_tokens = batch.num_actual_tokens
        self._step: NativeStep | None = None
        self._block_size = 0
        if batch.block_table is None or self.config.block_size is not None:
            self.step(self.config.block_size or 0)

    def step(self, block_size: int) -> NativeStep:
        """The step for a cache of that block size, which the config need not tell; 0 where there is no cache."""
        if self._step is not None and (block_size == self._block_size or not block_size):
            return self._step
        config, batch = self.config, self._batch
        table, slots = batch.block_table, batch.slot_mapping
        self._step = self.kernels.step(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            block_size=block_size if table is not None else 0,
            bfloat=config.dtype == "bfloat16",
            causal=config.causal and batch.causal,
            window=min(config.sliding_window or 0, _MOST),
            query_starts=batch.query_start_loc_host,
            seq_lens=batch.seq_lens_host,
            key_starts=batch.new_key_starts,
            table=_as(torch.int32, table),
            slots=_as(torch.int64, slots),
            threads=torch.get_num_threads(),
        )
        self._block_size = block_size
        return self._step


def _as(dtype: torch.dtype, tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Whole numbers in that width; one that does not fit stays outside the cache. What is none the kernels refuse."""
    if tensor is None or tensor.dtype == dtype or tensor.dtype not in (torch.int32, torch.int64):
        return tensor
    limits = torch.iinfo(torch.int32)
    return tensor.clamp(limits.min, limits.max).to(dtype)
