"""The backend classes behind the plugins' targets."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint._importing import import_library
from hardpoint._reasons import Reason, ReasonCode
from hardpoint.attention import AttentionBackend, CacheTensorSpec, GraphSupport, KVCacheSpec
from hardpoint.attention._kernel_checks import check_per_head, check_scales
from hardpoint.errors import ConfigError

# First: where it cannot start, that is the environment's failure, and all of the following import it.
import_library("triton")

from hardpoint_triton._kernel import interpreting  # noqa: E402
from hardpoint_triton._layer import TritonLayer  # noqa: E402
from hardpoint_triton._plan import TritonPlan  # noqa: E402

if TYPE_CHECKING:
    from hardpoint._capability import DeviceCapability
    from hardpoint.attention import AttentionBatch, AttentionConfig

# The first lets a head's tokens be read in one piece. Any other strides give the same result.
_DENSE_ORDERS = (
    ("block", "head", "token", "content"),
    ("block", "token", "head", "content"),
    ("head", "block", "token", "content"),
)
_LATENT_ORDERS = (("block", "token", "content"),)


class _TritonBackend(AttentionBackend):
    """What the two have in common: everything but the cache.

    Steps whose queries are all short are one launch that depends on the number of sequences alone, so a graph of them
    can be replayed; a step with longer queries launches what its lengths ask for.
    """

    graph_support = GraphSupport.DECODE
    kind: ClassVar[str]

    @classmethod
    def validate_configuration(
        cls, device_capability: DeviceCapability | None, config: AttentionConfig
    ) -> list[Reason]:
        """Refuses a storage dtype that this torch does not have, and a CPU unless Triton interprets."""
        reasons = []
        if not isinstance(getattr(torch, config.cache_dtype, None), torch.dtype):
            reasons.append(
                Reason(
                    code=ReasonCode.KV_CACHE_DTYPE,
                    message=f"kv_cache_dtype={config.cache_dtype}; torch {torch.__version__} does not have it",
                    requested=config.cache_dtype,
                    accepted="a dtype of the installed torch",
                )
            )
        if device_capability is not None and device_capability.runtime == "cpu" and not interpreting():
            reasons.append(
                Reason(
                    code=ReasonCode.CAPABILITY,
                    message="Triton has no driver for a CPU, and its interpreter is not switched on",
                    requested="cpu",
                    accepted="a GPU, or TRITON_INTERPRET=1",
                )
            )
        return reasons

    @classmethod
    def prepare(cls, config: AttentionConfig, device: torch.device | str) -> None:
        """Compile what a first forward of each kind needs, and run it. Errors: `EnvironmentFailure`, `OSError`."""
        from hardpoint_triton._prepare import prepare

        prepare(cls, config, device)

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
    ) -> TritonLayer:
        """Build one layer. Errors: `ConfigError` as the contract says."""
        if config.kind != cls.kind:
            raise ConfigError(f"{cls.__name__} is for kind={cls.kind!r}, not {config.kind!r}", field="kind")
        check_per_head(config, sinks=sinks, alibi_slopes=alibi_slopes)
        check_scales(config, key_scale=key_scale, value_scale=value_scale)
        return TritonLayer(
            config,
            scale=scale,
            device=torch.device(device),
            sinks=sinks,
            alibi_slopes=alibi_slopes,
            key_scale=key_scale,
            value_scale=value_scale,
        )

    @classmethod
    def plan(cls, config: AttentionConfig, batch: AttentionBatch) -> TritonPlan:
        """Divide the step into programs. Errors: `ConfigError` where the batch does not fit the config."""
        return TritonPlan(config, batch)


class TritonAttentionBackend(_TritonBackend):
    """Dense attention: reads the paged cache where it lies, once for all query heads of a group."""

    kind = "attention"

    @classmethod
    def kv_cache_spec(cls, config: AttentionConfig) -> KVCacheSpec:
        """Key and value tensors, separately, of one shape where the head sizes are equal."""
        return KVCacheSpec(
            tensors=tuple(
                CacheTensorSpec(
                    role=role,
                    axes=_DENSE_ORDERS[0],
                    sizes=(config.num_kv_heads, _block_size(config), size),
                    dtype=config.cache_dtype,
                    stride_orders=_DENSE_ORDERS,
                )
                for role, size in (("key", config.head_size), ("value", config.v_head_size))
            )
        )


class TritonMlaBackend(_TritonBackend):
    """The latent form: reads each latent once, as key and as value of a block of heads."""

    kind = "mla_attention"

    @classmethod
    def kv_cache_spec(cls, config: AttentionConfig) -> KVCacheSpec:
        """One tensor: the latent with its rotary part."""
        latent = CacheTensorSpec(
            role="latent",
            axes=_LATENT_ORDERS[0],
            sizes=(_block_size(config), config.head_size),
            dtype=config.cache_dtype,
            stride_orders=_LATENT_ORDERS,
        )
        return KVCacheSpec(tensors=(latent,))


def _block_size(config: AttentionConfig) -> int:
    if config.block_size is None:
        raise ConfigError("a cache needs block_size", field="block_size")
    return config.block_size
