"""A `KernelLayer`'s forward as one opaque operator, for code under `torch.compile`; registered at the first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from hardpoint.attention import _handles

if TYPE_CHECKING:
    import torch


@cache
def operator() -> Callable[..., None]:
    """``hardpoint::kernel_layer``. Results are arguments; an empty list of cache tensors is no cache."""
    import torch

    from hardpoint.attention._kernel_layer import KernelLayer, KernelPlan

    def kernel_layer(
        layer: int,
        plan: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: Sequence[torch.Tensor],
        out: torch.Tensor,
        lse: torch.Tensor | None,
    ) -> None:
        found_layer, found_plan = _handles.find(layer), _handles.find(int(plan))
        if not isinstance(found_layer, KernelLayer) or not isinstance(found_plan, KernelPlan):
            raise TypeError(f"handles {layer} and {int(plan)} are no layer and plan")
        found_layer.run(query, key, value, kv_cache or None, found_plan, out, lse)

    # torch reads the annotations, and this module imports torch only here.
    kernel_layer.__annotations__ = {
        "layer": int,
        "plan": torch.Tensor,
        "query": torch.Tensor,
        "key": torch.Tensor | None,
        "value": torch.Tensor | None,
        "kv_cache": Sequence[torch.Tensor],
        "out": torch.Tensor,
        "lse": torch.Tensor | None,
        "return": None,
    }
    made: Any = torch.library.custom_op(  # Any: torch does not say what its decorators return
        "hardpoint::kernel_layer", kernel_layer, mutates_args=("kv_cache", "out", "lse")
    )
    made.register_fake(lambda *_: None)
    found: Callable[..., None] = made
    return found
