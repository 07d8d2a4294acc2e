"""The class behind ``aiter_mla``: AITER's assembly kernel for decoding in the latent form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention import AttentionBackend, GraphSupport
from hardpoint.attention._kernel_cache import latent_cache
from hardpoint.attention._kernel_layer import KernelLayer, KernelPlan
from hardpoint.attention._kernel_lse import log_denominator
from hardpoint.attention._kernel_smallest import run_smallest
from hardpoint.errors import ConfigError
from hardpoint_aiter._library import load
from hardpoint_aiter._slots import KeySlots, by_slot

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from hardpoint import DeviceCapability
    from hardpoint._reasons import Reason
    from hardpoint.attention import AttentionBatch, AttentionConfig, KVCacheSpec
    from hardpoint.attention._kernel_layer import LayerArguments

_FUNCTION: Final = ("aiter.mla", "mla_decode_fwd", ("sm_scale",))
_KEYS_PER_CALL: Final = 1 << 22
"""Indices of keys that one call takes, 16 MB of them: a long prefill in the latent form is several calls."""


@dataclass(frozen=True, slots=True)
class Call:
    """Rows ``first … end-1`` of the rows that see anything."""

    first: int
    end: int
    query_starts: torch.Tensor
    keys: KeySlots
    last_page_lengths: torch.Tensor


class AiterMlaPlan(KernelPlan):
    """Every query row as a sequence of its own, over the keys that it sees.

    So the kernel for one query per sequence serves every step, and the causal mask is the rows' lengths. `rows` are
    the rows that see anything; None: all of them.
    """

    rows: torch.Tensor | None

    def prepare(self) -> None:
        """Lists the rows; the slots of their keys are made when a layer asks."""
        batch, starts = self.batch, self.batch.query_start_loc_host
        self._seen: list[tuple[int, int, int]] = []
        rows = []
        for number, length in enumerate(batch.seq_lens_host):
            first, end = starts[number], starts[number + 1]
            for row in range(first, end):
                visible = length - end + row + 1 if self.causal else length
                if visible > 0:
                    self._seen.append((number, visible, 0))
                    rows.append(row)
        self.rows = None
        if len(rows) < batch.num_actual_tokens:
            self.rows = torch.tensor(rows, dtype=torch.int64, device=batch.query_start_loc.device)
        self._calls: list[Call] | None = None

    @property
    def calls(self) -> list[Call]:
        """The calls of the step."""
        if self._calls is None:
            self._calls = []
            first = keys = 0
            for row, (_, visible, _) in enumerate(self._seen):
                if row > first and keys + visible > _KEYS_PER_CALL:
                    self._calls.append(self._call(first, row))
                    first, keys = row, 0
                keys += visible
            self._calls.append(self._call(first, len(self._seen)))
        return self._calls

    def _call(self, first: int, end: int) -> Call:
        device = self.batch.query_start_loc.device
        return Call(
            first=first,
            end=end,
            query_starts=torch.arange(end - first + 1, dtype=torch.int32, device=device),
            keys=KeySlots.of(self.batch, self.config.block_size or 1, self._seen[first:end]),
            last_page_lengths=torch.ones(end - first, dtype=torch.int32, device=device),
        )


class AiterMlaLayer(KernelLayer):
    """The kernel's own lse is filled in its persistent mode only: here query and key are multiplied a second time."""

    plan_type = AiterMlaPlan

    def __init__(self, config: AttentionConfig, spec: KVCacheSpec, **arguments: Unpack[LayerArguments]) -> None:
        super().__init__(config, spec, **arguments)
        self._function = load(*_FUNCTION)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: Sequence[torch.Tensor] | None,
        plan: KernelPlan,
        *,
        return_lse: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See `KernelLayer.attend`."""
        if kv_cache is None:
            raise ConfigError("the latent form reads a cache; attention over new keys is plain attention", field="key")
        assert isinstance(plan, AiterMlaPlan)  # noqa: S101  # for the type checker: `forward` has looked
        rows = query if plan.rows is None else query[plan.rows]
        cache = by_slot(kv_cache[0])[:, None, None]
        found = rows.new_empty(len(rows), self.config.num_heads, self.config.v_head_size)
        for call in plan.calls:
            self._function(
                rows[call.first : call.end].contiguous(),
                cache,
                found[call.first : call.end],
                call.query_starts,
                call.keys.starts,
                call.keys.slots,
                call.last_page_lengths,
                1,
                sm_scale=self.scale,
            )
        result = found
        if plan.rows is not None:
            result = query.new_zeros(len(query), self.config.num_heads, self.config.v_head_size)
            result[plan.rows] = found
        return result, log_denominator(self, plan, query, None, kv_cache) if return_lse else None


class AiterMlaBackend(AttentionBackend):
    """AITER's decode kernel of the latent form. About graphs see `AiterFaBackend`."""

    graph_support = GraphSupport.NEVER

    @classmethod
    def validate_configuration(
        cls, device_capability: DeviceCapability | None, config: AttentionConfig
    ) -> list[Reason]:
        """Imports the library."""
        load(*_FUNCTION)
        return []

    @classmethod
    def prepare(cls, config: AttentionConfig, device: torch.device | str) -> None:
        """Run the smallest step: the library loads its binary there."""
        run_smallest(cls, config, device)

    @classmethod
    def kv_cache_spec(cls, config: AttentionConfig) -> KVCacheSpec:
        """One tensor: latent and rotary part behind one another, tokens too, over all blocks."""
        return latent_cache(config)

    @classmethod
    def create_layer(
        cls,
        config: AttentionConfig,
        *,
        scale: float,
        device: torch.device | str,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        key_scale: float | None = None,
        value_scale: float | None = None,
    ) -> AiterMlaLayer:
        """Build one layer. Errors: `ConfigError`; those of importing the library."""
        return AiterMlaLayer(
            config,
            cls.kv_cache_spec(config),
            scale=scale,
            device=device,
            sinks=sinks,
            alibi_slopes=alibi_slopes,
            key_scale=key_scale,
            value_scale=value_scale,
        )

    @classmethod
    def plan(cls, config: AttentionConfig, batch: AttentionBatch) -> AiterMlaPlan:
        """The step, row by row."""
        return AiterMlaPlan(config, batch)
