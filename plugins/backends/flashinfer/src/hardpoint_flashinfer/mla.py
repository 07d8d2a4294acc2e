"""The class behind ``flashinfer_mla``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.attention import AttentionBackend, GraphSupport
from hardpoint.attention._kernel_cache import latent_cache
from hardpoint.attention._kernel_layer import KernelLayer, KernelPlan
from hardpoint.attention._kernel_smallest import run_smallest
from hardpoint.errors import ConfigError
from hardpoint_flashinfer._pages import Pages
from hardpoint_flashinfer._workspace import Wrappers, scratch_of
from hardpoint_flashinfer.backend import load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Unpack

    from hardpoint import DeviceCapability
    from hardpoint._reasons import Reason
    from hardpoint.attention import AttentionBatch, AttentionConfig, KVCacheSpec
    from hardpoint.attention._kernel_layer import LayerArguments

_CALLS: Final = {
    "MLAPlanMetadata.csr": ("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr"),
    "BatchMLAPagedAttentionWrapper": ("backend",),
    "BatchMLAPagedAttentionWrapper.plan": (
        *("metadata", "num_heads", "head_dim_ckv", "head_dim_kpe", "page_size", "causal", "sm_scale", "q_data_type"),
        *("kv_data_type", "scale_mode", "query_layout", "kv_cache_layout", "lse_mode"),
    ),
    "BatchMLAPagedAttentionWrapper.run": (
        *("query", "kv_cache", "return_lse", "return_lse_base_on_e", "ckv_scale", "kpe_scale"),
    ),
}


class FlashInferMlaPlan(KernelPlan):
    """A step's pages, and the wrappers planned for it so far: one per scale, and one more where an lse is wanted."""

    def __init__(self, config: AttentionConfig, batch: AttentionBatch) -> None:
        # They stay with the plan, whatever step it is for.
        self._wrappers = Wrappers(self)
        super().__init__(config, batch)

    def prepare(self) -> None:
        """The library plans at the first layer: only there the scale is known."""
        self.pages = Pages.of(self.config, self.batch)
        self._planned: dict[tuple[float, bool], Any] = {}

    def planned(self, library: ModuleType, scale: float, *, return_lse: bool) -> Any:  # noqa: ANN401  # FlashInfer is not typed for us
        """A wrapper that knows the step."""
        found = self._planned.get((scale, return_lse))
        if found is not None:
            return found
        config, pages, device = self.config, self.pages, self.batch.query_start_loc.device
        if pages is None:
            raise ConfigError("FlashInfer reads a cache: batch.block_table is missing", field="block_table")
        wrapper = self._wrappers.get(
            (library.__name__, "mla", device),
            (scale, return_lse),
            lambda: library.BatchMLAPagedAttentionWrapper(scratch_of(device), backend="auto"),
        )
        quantised = config.cache_dtype != config.dtype
        wrapper.plan(
            metadata=library.MLAPlanMetadata.csr(
                qo_indptr=pages.query_starts,
                kv_indptr=pages.page_starts,
                kv_indices=pages.pages,
                kv_len_arr=pages.lengths,
            ),
            num_heads=config.num_heads,
            head_dim_ckv=config.kv_lora_rank,
            head_dim_kpe=config.qk_rope_head_dim,
            page_size=config.block_size,
            causal=self.causal,
            sm_scale=scale,
            q_data_type=getattr(torch, config.dtype),
            kv_data_type=getattr(torch, config.cache_dtype),
            scale_mode="kv-per-tensor" if quantised else "default",
            query_layout="packed",
            kv_cache_layout="packed",
            lse_mode="basee" if return_lse else "none",
        )
        self._planned[scale, return_lse] = wrapper
        return wrapper


class FlashInferMlaLayer(KernelLayer):
    """One layer of the latent form: query and cache packed, latent and rotary part behind one another."""

    plan_type = FlashInferMlaPlan

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
            raise ConfigError("the latent form reads a cache; attention over new keys is plain attention", field="key")
        assert isinstance(plan, FlashInferMlaPlan)  # noqa: S101  # for the type checker: `forward` has looked
        wrapper = plan.planned(self.library, self.scale, return_lse=return_lse)
        packed: dict[str, Any] = {"query": query.contiguous(), "kv_cache": kv_cache[0]}
        if self.is_quantised:
            # One scale for the whole row: both parts are stored with it.
            packed |= {"ckv_scale": self.key_scale or 1.0, "kpe_scale": self.key_scale or 1.0}
        if not return_lse:
            return wrapper.run(**packed), None
        result, lse = wrapper.run(**packed, return_lse=True, return_lse_base_on_e=True)
        return result, lse.T


class FlashInferMlaBackend(AttentionBackend):
    """FlashInfer's wrapper of the latent form; the library picks the kernel by device and step."""

    graph_support = GraphSupport.NEVER

    @classmethod
    def validate_configuration(
        cls, device_capability: DeviceCapability | None, config: AttentionConfig
    ) -> list[Reason]:
        """Imports the library."""
        load(_CALLS, "flashinfer.mla")
        return []

    @classmethod
    def prepare(cls, config: AttentionConfig, device: torch.device | str) -> None:
        """Run the smallest step: the library compiles its kernels there."""
        run_smallest(cls, config, device)

    @classmethod
    def kv_cache_spec(cls, config: AttentionConfig) -> KVCacheSpec:
        """One tensor: latent and rotary part behind one another."""
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
    ) -> FlashInferMlaLayer:
        """Build one layer. Errors: `ConfigError`; those of importing the library."""
        return FlashInferMlaLayer(
            config,
            cls.kv_cache_spec(config),
            load(_CALLS, "flashinfer.mla"),
            scale=scale,
            device=device,
            sinks=sinks,
            alibi_slopes=alibi_slopes,
            key_scale=key_scale,
            value_scale=value_scale,
        )

    @classmethod
    def plan(cls, config: AttentionConfig, batch: AttentionBatch) -> FlashInferMlaPlan:
        """The step's pages."""
        return FlashInferMlaPlan(config, batch)
