"""Plan and layer of the dense form. FlashInfer plans with a layer's scale, so a step is planned at its first layer."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, Any, Final

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention._kernel_layer import KernelLayer, KernelPlan
from hardpoint.errors import ConfigError
from hardpoint_flashinfer._pages import Pages
from hardpoint_flashinfer._workspace import Wrappers, scratch_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Unpack

    from hardpoint.attention import AttentionBatch, AttentionConfig, KVCacheSpec
    from hardpoint.attention._kernel_layer import LayerArguments

_LN2: Final = log(2)
# With so many query heads per key head the matrix units win in decoding; below, the plain kernel reads less.
_TENSOR_CORES_FROM: Final = 4


@dataclass(slots=True)
class Planned:
    """A wrapper that knows the step."""

    wrapper: Any  # of FlashInfer
    is_decode: bool


class FlashInferPlan(KernelPlan):
    """A step's pages, and the wrappers planned for it so far: one per scale, which is one in most models."""

    pages: Pages | None

    def __init__(self, config: AttentionConfig, batch: AttentionBatch) -> None:
        # They stay with the plan, whatever step it is for.
        self._wrappers = Wrappers(self)
        super().__init__(config, batch)

    def prepare(self) -> None:
        """Errors: `ConfigError` for a window without a causal mask."""
        if self.config.sliding_window is not None and not self.causal:
            raise ConfigError(
                "a sliding window without a causal mask has two sides; FlashInfer's has a left one only", field="causal"
            )
        self.pages = Pages.of(self.config, self.batch)
        self._planned: dict[float, Planned] = {}

    def planned(self, library: ModuleType, scale: float) -> Planned:
        """The step, planned for a scale."""
        found = self._planned.get(scale)
        if found is None:
            if self.pages is None:
                raise ConfigError("FlashInfer reads a cache: batch.block_table is missing", field="block_table")
            found = self._planned[scale] = self._plan(library, scale, self.pages)
        return found

    def _plan(self, library: ModuleType, scale: float, pages: Pages) -> Planned:
        config, device = self.config, self.batch.query_start_loc.device
        shared = {
            "sm_scale": scale,
            "window_left": -1 if config.sliding_window is None else config.sliding_window - 1,
            "logits_soft_cap": config.soft_cap,
            "q_data_type": getattr(torch, config.dtype),
            "kv_data_type": getattr(torch, config.cache_dtype),
        }
        if pages.is_decode:
            units = config.group_size >= _TENSOR_CORES_FROM
            wrapper = self._wrappers.get(
                (library.__name__, "decode", device, units),
                scale,
                lambda: library.BatchDecodeWithPagedKVCacheWrapper(
                    scratch_of(device), kv_layout="NHD", use_tensor_cores=units
                ),
            )
            wrapper.plan(
                pages.page_starts,
                pages.pages,
                pages.last_page_lengths,
                config.num_heads,
                config.num_kv_heads,
                config.head_size,
                config.block_size,
                **shared,
            )
            return Planned(wrapper, is_decode=True)
        wrapper = self._wrappers.get(
            (library.__name__, "prefill", device),
            scale,
            lambda: library.BatchPrefillWithPagedKVCacheWrapper(scratch_of(device), kv_layout="NHD"),
        )
        wrapper.plan(
            pages.query_starts,
            pages.page_starts,
            pages.pages,
            pages.last_page_lengths,
            config.num_heads,
            config.num_kv_heads,
            config.head_size,
            config.block_size,
            causal=self.causal,
            **shared,
        )
        return Planned(wrapper, is_decode=False)


class FlashInferLayer(KernelLayer):
    """One dense layer. Steps of one token per sequence go through the decode wrapper, all others through the other."""

    plan_type = FlashInferPlan

    def __init__(
        self, config: AttentionConfig, spec: KVCacheSpec, library: ModuleType, **arguments: Unpack[LayerArguments]
    ) -> None:
        super().__init__(config, spec, **arguments)
        self.library = library

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
            raise ConfigError("FlashInfer's paged kernels read a cache, and none was given", field="kv_cache")
        assert isinstance(plan, FlashInferPlan)  # noqa: S101  # for the type checker: `forward` has looked
        planned = plan.planned(self.library, self.scale)
        arguments: dict[str, Any] = {"return_lse": return_lse}
        if self.is_quantised:
            arguments |= {"k_scale": self.key_scale or 1.0, "v_scale": self.value_scale or 1.0}
        # Its kernels want rows that are dense as a whole.
        found = planned.wrapper.run(query.contiguous(), (kv_cache[0], kv_cache[1]), **arguments)
        if not return_lse:
            return found, None
        result, lse = found
        # The library's lse has base 2, and its heads last.
        return result, lse.T * _LN2
