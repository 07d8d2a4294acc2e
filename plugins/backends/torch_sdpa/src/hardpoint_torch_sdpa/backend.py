"""The backend class behind the plugin's target."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint._reasons import Reason, ReasonCode
from hardpoint.attention import AttentionBackend, AttentionBatch, CacheTensorSpec, GraphSupport, KVCacheSpec
from hardpoint.errors import ConfigError, EnvironmentFailure
from hardpoint_torch_sdpa._layer import TorchSdpaLayer
from hardpoint_torch_sdpa._plan import SdpaPlan

if TYPE_CHECKING:
    from hardpoint._capability import DeviceCapability
    from hardpoint.attention import AttentionConfig

# The first is gathered into the order that SDPA reads fastest. Any other strides give the same result, slower.
_STRIDE_ORDERS = (
    ("block", "head", "token", "content"),
    ("block", "token", "head", "content"),
    ("head", "block", "token", "content"),
)


class TorchSdpaBackend(AttentionBackend):
    """Gathers the blocks that a step reads into reused memory, and calls scaled_dot_product_attention on them.

    A plan's calls depend on the step's lengths, so no graph of them can be replayed.
    """

    graph_support = GraphSupport.NEVER

    @classmethod
    def validate_configuration(
        cls, device_capability: DeviceCapability | None, config: AttentionConfig
    ) -> list[Reason]:
        """Refuses a storage dtype that this torch does not have."""
        if isinstance(getattr(torch, config.cache_dtype, None), torch.dtype):
            return []
        return [
            Reason(
                code=ReasonCode.KV_CACHE_DTYPE,
                message=f"kv_cache_dtype={config.cache_dtype}; torch {torch.__version__} does not have it",
                requested=config.cache_dtype,
                accepted="a dtype of the installed torch",
            )
        ]

    @classmethod
    def prepare(cls, config: AttentionConfig, device: torch.device | str) -> None:
        """Run the smallest step, so that what the device cannot do is met here."""
        try:
            probe = torch.zeros(1, dtype=getattr(torch, config.dtype), device=device)
            torch.zeros(1, dtype=getattr(torch, config.cache_dtype), device=device)
        except (RuntimeError, AssertionError, TypeError) as error:
            # torch says it in several ways: no such device, built without it, no such dtype there.
            raise EnvironmentFailure(
                f"torch {torch.__version__} has no {config.dtype} or {config.cache_dtype} on {device}: {error}",
                code="no_device",
            ) from error
        try:
            _run_smallest(cls, config, probe.device)
        except RuntimeError as error:
            if isinstance(error, (ConfigError, RecursionError)):
                raise
            raise EnvironmentFailure(
                f"scaled_dot_product_attention does not run on {device} for {config.describe()}: {error}",
                code="kernel_missing",
            ) from error

    @classmethod
    def kv_cache_spec(cls, config: AttentionConfig) -> KVCacheSpec:
        """Key and value tensors, separately, of one shape where the head sizes are equal."""
        if config.block_size is None:
            raise ConfigError("a cache needs block_size", field="block_size")
        return KVCacheSpec(
            tensors=tuple(
                CacheTensorSpec(
                    role=role,
                    axes=("block", "head", "token", "content"),
                    sizes=(config.num_kv_heads, config.block_size, size),
                    dtype=config.cache_dtype,
                    stride_orders=_STRIDE_ORDERS,
                )
                for role, size in (("key", config.head_size), ("value", config.v_head_size))
            )
        )

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
    ) -> TorchSdpaLayer:
        """Build one layer. Errors: `ConfigError` as the contract says."""
        if config.kind != "attention" or config.soft_cap is not None:
            raise ConfigError(f"scaled_dot_product_attention cannot do {config.describe()}", field="soft_cap")
        for name, tensor, asked in (("sinks", sinks, config.sinks), ("alibi_slopes", alibi_slopes, config.alibi)):
            _check_per_head(name, tensor, asked=asked, num_heads=config.num_heads)
        quantised = getattr(torch, config.cache_dtype).itemsize == 1
        for name, factor in (("key_scale", key_scale), ("value_scale", value_scale)):
            if factor is not None and not quantised:
                raise ConfigError(f"{name}={factor}: a cache of {config.cache_dtype} has no scale", field=name)
            if factor is not None and not factor > 0:
                raise ConfigError(f"{name}={factor}: must be positive", field=name)
        return TorchSdpaLayer(
            config,
            scale=scale,
            device=torch.device(device),
            sinks=sinks,
            alibi_slopes=alibi_slopes,
            key_scale=key_scale,
            value_scale=value_scale,
        )

    @classmethod
    def plan(cls, config: AttentionConfig, batch: AttentionBatch) -> SdpaPlan:
        """Group the step's sequences into calls. Errors: `ConfigError` where the batch does not fit the config."""
        return SdpaPlan(config, batch)


def _check_per_head(name: str, tensor: torch.Tensor | None, *, asked: bool, num_heads: int) -> None:
    if asked != (tensor is not None):
        raise ConfigError(
            f"{name} {'missing' if asked else 'given'}: the config says {name.split('_', 1)[0]}={asked}", field=name
        )
    if tensor is not None and (tuple(tensor.shape) != (num_heads,) or not tensor.is_floating_point()):
        raise ConfigError(
            f"{name} of shape {tuple(tensor.shape)} and {tensor.dtype}: expected ({num_heads},), floating point",
            field=name,
        )


def _run_smallest(backend: type[TorchSdpaBackend], config: AttentionConfig, device: torch.device) -> None:
    """Two sequences: one new token behind another, and two new ones."""
    dtype = getattr(torch, config.dtype)
    per_head = torch.zeros(config.num_heads, device=device)
    layer = backend.create_layer(
        config,
        scale=1.0,
        device=device,
        sinks=per_head if config.sinks else None,
        alibi_slopes=per_head if config.alibi else None,
    )
    cache = table = slots = None
    query_lens, seq_lens = [2, 2], [2, 2]
    if config.block_size is not None:
        cache = backend.kv_cache_spec(config).allocate(4, device=device)
        query_lens, seq_lens = [1, 2], [2, 2]
        table = [[0, 1], [2, 3]]
        slots = [1, 2 * config.block_size, 2 * config.block_size + 1]
    batch = AttentionBatch.build(
        query_lens=query_lens, seq_lens=seq_lens, device=device, block_table=table, slot_mapping=slots
    )
    tokens = batch.num_actual_tokens
    query = torch.zeros(tokens, config.num_heads, config.head_size, dtype=dtype, device=device)
    key = torch.zeros(tokens, config.num_kv_heads, config.head_size, dtype=dtype, device=device)
    value = torch.zeros(tokens, config.num_kv_heads, config.v_head_size, dtype=dtype, device=device)
    layer.forward(query, key, value, cache, backend.plan(config, batch), return_lse=True)
