"""The contract of an attention backend: what the engine allocates, plans, builds and calls.

A backend's module implements `AttentionBackend` and `AttentionLayer`; torch is a peer that it imports itself. The
engine asks once per layer kind (`kv_cache_spec`), once per layer (`create_layer`), once per step and group of layers
with equal config and block table (`plan`), and once per layer and step (`forward`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from hardpoint.attention._config import DTYPE_SIZE_BYTES
from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from hardpoint._capability import DeviceCapability
    from hardpoint._reasons import Reason
    from hardpoint.attention._batch import AttentionBatch
    from hardpoint.attention._config import AttentionConfig


class GraphSupport(StrEnum):
    """When a captured graph may be replayed with ``plan.update``."""

    NEVER = "never"
    DECODE = "decode"
    """Batches in which every query has one token."""
    UNIFORM = "uniform"
    """Batches in which every query has the same number of tokens."""
    ALWAYS = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTensorSpec:
    """One tensor of the cache.

    `role` is ``key``, ``value`` or ``latent``. `axes` are the logical axes in the order in which kernels index them,
    always ``block`` first, then ``token``, ``content`` and, where there are heads, ``head``; `sizes` are the sizes of
    all axes but ``block``. `stride_orders` are the memory orders (slowest axis first) that the kernels accept, best
    first. `alignment_bytes` is that of the first element.
    """

    role: str
    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    dtype: str
    stride_orders: tuple[tuple[str, ...], ...]
    alignment_bytes: int = 64

    def __post_init__(self) -> None:
        inner = self.axes[1:]
        if self.axes[:1] != ("block",) or not {"token", "content"} <= set(inner) <= {"head", "token", "content"}:
            raise ConfigError(f"cache tensor {self.role!r}: axes {self.axes}: block first, then token, content, head")
        if len(set(inner)) != len(inner) or len(self.sizes) != len(inner) or min(self.sizes) < 1:
            raise ConfigError(f"cache tensor {self.role!r}: axes {self.axes} with sizes {self.sizes} do not fit")
        if self.dtype not in DTYPE_SIZE_BYTES:
            known = ", ".join(DTYPE_SIZE_BYTES)
            raise ConfigError(f"cache tensor {self.role!r}: dtype {self.dtype!r} is none of {known}")
        if not self.stride_orders:
            raise ConfigError(f"cache tensor {self.role!r}: no stride order that the kernels accept")
        for order in self.stride_orders:
            if sorted(order) != sorted(self.axes):
                raise ConfigError(f"cache tensor {self.role!r}: stride order {order} is no permutation of {self.axes}")

    @property
    def bytes_per_block(self) -> int:
        """Bytes that one block takes."""
        total = DTYPE_SIZE_BYTES[self.dtype]
        for size in self.sizes:
            total *= size
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSpec:
    """What a layer's cache is made of. A block is copied by indexing axis 0 of every tensor."""

    tensors: tuple[CacheTensorSpec, ...]

    @property
    def bytes_per_block(self) -> int:
        """Bytes that one block takes over all tensors."""
        return sum(tensor.bytes_per_block for tensor in self.tensors)

    @property
    def layout(self) -> str:
        """The preferred layout as text, for the fingerprint: ``key:block-head-token-content:bfloat16 …``."""
        return " ".join(f"{t.role}:{'-'.join(t.stride_orders[0])}:{t.dtype}" for t in self.tensors)

    def allocate(
        self,
        num_blocks: int,
        *,
        device: torch.device | str,
        stride_orders: Sequence[Sequence[str]] | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Allocate `num_blocks` zeroed blocks on `device`, one tensor per spec, indexed in the order of ``axes``.

        `stride_orders` picks the memory order per tensor; by default each gets its best. Errors: `ConfigError` for an
        order that the kernels do not accept.
        """
        import torch

        if stride_orders is not None and len(stride_orders) != len(self.tensors):
            raise ConfigError(f"{len(stride_orders)} stride orders for {len(self.tensors)} cache tensors")
        tensors = []
        for number, spec in enumerate(self.tensors):
            order = spec.stride_orders[0] if stride_orders is None else tuple(stride_orders[number])
            if order not in spec.stride_orders:
                raise ConfigError(f"cache tensor {spec.role!r}: stride order {order} is none of {spec.stride_orders}")
            size_of = dict(zip(spec.axes, (num_blocks, *spec.sizes), strict=True))
            num_bytes = num_blocks * spec.bytes_per_block
            # Allocators promise 64 bytes at most: what a kernel asks beyond that is cut out of a larger piece.
            raw = torch.zeros(num_bytes + spec.alignment_bytes, dtype=torch.uint8, device=device)
            start = -raw.data_ptr() % spec.alignment_bytes
            memory = raw[start : start + num_bytes].view(getattr(torch, spec.dtype))
            memory = memory.view([size_of[axis] for axis in order])
            tensors.append(memory.permute([order.index(axis) for axis in spec.axes]))
        return tuple(tensors)


class AttentionPlan(ABC):
    """What a backend prepares once per step for a group of layers; layers share it and do not change it."""

    @abstractmethod
    def update(self, batch: AttentionBatch) -> None:
        """Take the next step's batch in place, keeping addresses, for the replay of a captured graph."""


class AttentionLayer(ABC):
    """One layer of the model, built by `AttentionBackend.create_layer`."""

    @abstractmethod
    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: Sequence[torch.Tensor] | None,
        plan: AttentionPlan,
        *,
        out: torch.Tensor | None = None,
        return_lse: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Write the step's keys and values into the cache, then attend. Runs on the current stream.

        - `query`: ``(num_tokens, num_heads, head_size)``.
        - `key`, `value`: ``(num_kv_tokens, num_kv_heads, head_size | v_head_size)``, the step's new tokens, written to
          ``batch.slot_mapping``; None where nothing is new (KV sharing, cross attention after its first step). In the
          latent form `key` is the new latent ``(num_kv_tokens, latent + rope)`` and `value` None. Rows beyond the
          step's new keys are padding.
        - `kv_cache`: the tensors of `kv_cache_spec`; keys are then read from there only, as it stored them (a new key
          with slot -1 is not attended to unless it lies there already). None: attend over `key` and `value` alone
          (encoder, ViT).
        - `out`: ``(num_tokens, num_heads, v_head_size)``, filled and returned if given. Rows from
          ``batch.num_actual_tokens`` on are padding: their content is unspecified but finite where `out` was, and no
          other row depends on them.
        - with `return_lse` also the natural logarithm of the softmax's denominator, sinks included: float32,
          ``(num_heads, num_tokens)``; minus infinity where a token sees nothing and there is no sink. The result of a
          token that sees nothing is zero.

        `hardpoint.attention.reference_attention` defines the right answer.
        """


class AttentionBackend(ABC):
    """The class behind a `BackendSpec`'s target. Never instantiated: everything is a class method."""

    graph_support: ClassVar[GraphSupport] = GraphSupport.NEVER

    @classmethod
    def validate_configuration(
        cls, device_capability: DeviceCapability | None, config: AttentionConfig
    ) -> list[Reason]:
        """Reasons against `config` on a device of this capability, all of them; may only narrow the declared support.

        Runs at depth ``loaded``; does not initialise the device. An environment failure may be raised; any other
        exception is a bug.
        """
        return []

    @classmethod
    def prepare(cls, config: AttentionConfig, device: torch.device | str) -> None:
        """Open caches and compile whatever the first forward needs, at depth ``ready``. May initialise the device.

        Idempotent. What cannot work on this machine raises `ImportError`, `OSError` or `EnvironmentFailure`.
        """

    @classmethod
    @abstractmethod
    def kv_cache_spec(cls, config: AttentionConfig) -> KVCacheSpec:
        """The cache that a layer of this config wants. Only called where ``config.block_size`` is set."""

    @classmethod
    @abstractmethod
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
    ) -> AttentionLayer:
        """Build one layer.

        `scale` multiplies query · key. `sinks` and `alibi_slopes` are ``(num_heads,)``, floating point, and are given
        exactly where the config says so. `key_scale` and `value_scale` belong to a quantised cache: stored element x
        scale = value (default 1); the latent is stored with `key_scale`. Errors: `ConfigError` for an argument that the
        config does not ask for, or lacks.
        """

    @classmethod
    @abstractmethod
    def plan(cls, config: AttentionConfig, batch: AttentionBatch) -> AttentionPlan:
        """Prepare a step, for every layer of equal config and block table."""
