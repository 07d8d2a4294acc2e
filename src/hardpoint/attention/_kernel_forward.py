"""A layer's forward: run as it is in eager code, one opaque operator under `torch.compile`."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from hardpoint.attention import _handles
from hardpoint.attention._contract import AttentionLayer, AttentionPlan
from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from hardpoint.attention._config import AttentionConfig


class OpaquePlan(AttentionPlan):
    """A plan that an operator can be given, by its handle."""

    def __init__(self, config: AttentionConfig) -> None:
        import torch

        self.config = config
        # A tensor: a number would be a constant of compiled code, and every step would compile anew.
        self.handle = torch.tensor(_handles.register(self))


Plan = TypeVar("Plan", bound=OpaquePlan)


class OpaqueLayer(AttentionLayer, Generic[Plan]):
    """A layer that computes in `run`. `plan_type` is what its backend's `plan` makes."""

    plan_type: type[Plan]
    torch_computes: ClassVar[bool] = True
    """Whether `run` leaves arithmetic to torch's operators, which a caller's autocast would round."""

    def __init__(self, config: AttentionConfig) -> None:
        import torch

        self.config = config
        self.dtype: torch.dtype = getattr(torch, config.dtype)
        self._like_query = config.v_head_size == config.head_size
        self.handle = _handles.register(self)

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
        """As `AttentionLayer.forward` says. Errors: `ConfigError` for tensors that do not fit config or plan."""
        import torch

        if not isinstance(plan, self.plan_type):
            raise TypeError(
                f"the plan is a {type(plan).__name__}: expected a {self.plan_type.__name__}, "
                f"which the layer's own backend makes"
            )
        if out is None:
            # empty_like is the cheapest way to a tensor.
            if self._like_query and query.is_contiguous():
                out = torch.empty_like(query)
            else:
                out = query.new_empty(query.shape[0], self.config.num_heads, self.config.v_head_size)
        lse = None
        if return_lse:
            lse = torch.empty(self.config.num_heads, query.shape[0], dtype=torch.float32, device=query.device)
        if torch.compiler.is_compiling():
            # The import registers it: a process that never compiles does not pay for it.
            from hardpoint.attention._kernel_operator import attention

            attention(self.handle, plan.handle, query, key, value, [] if kv_cache is None else list(kv_cache), out, lse)
        else:
            self.run_as_asked(query, key, value, kv_cache, plan, out, lse)
        return out if lse is None else (out, lse)

    def run_as_asked(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: Sequence[torch.Tensor] | None,
        plan: Plan,
        out: torch.Tensor,
        lse: torch.Tensor | None,
    ) -> None:
        """`run` for a plan of the layer's config, in the dtype that it says. Errors: `ConfigError` for another plan."""
        if plan.config is not self.config and plan.config != self.config:
            raise ConfigError(f"the plan was made for another config: {plan.config.describe()}", field="plan")
        if self.torch_computes:
            import torch

            device_type = query.device.type
            if torch.is_autocast_enabled(device_type):
                with torch.autocast(device_type, enabled=False):
                    self.run(query, key, value, kv_cache, plan, out, lse)
                return
        self.run(query, key, value, kv_cache, plan, out, lse)

    @abstractmethod
    def run(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: Sequence[torch.Tensor] | None,
        plan: Plan,
        out: torch.Tensor,
        lse: torch.Tensor | None,
    ) -> None:
        """The forward, into `out` and `lse`. The plan's config is the layer's."""


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, its last axis dense, as kernels want it: itself, or a copy without history."""
    # The first question is the cheap one.
    return tensor if tensor.is_contiguous() or tensor.stride(-1) == 1 else tensor.detach().contiguous()
