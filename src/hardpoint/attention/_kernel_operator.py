"""A `KernelLayer`'s forward as one opaque operator, for code under `torch.compile`. Importing this registers it, once.

An operator takes tensors and numbers, so layers and plans travel as handles.
"""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003  # torch reads the annotations

import torch  # noqa: TID253  # imported only under torch.compile

from hardpoint.attention import _handles
from hardpoint.attention._kernel_layer import KernelLayer, KernelPlan


def _forward(
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


# An empty list of cache tensors is no cache: an optional list of mutated tensors cannot be declared.
kernel_layer = torch.library.custom_op("hardpoint::kernel_layer", _forward, mutates_args=("kv_cache", "out", "lse"))


@kernel_layer.register_fake
def _(*_: object) -> None:
    """Results are arguments: there is nothing to make up."""
