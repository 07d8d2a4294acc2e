"""The forward as one opaque operator, for code under `torch.compile`. Importing this module registers it, once.

An operator takes tensors and numbers, so layers and plans travel as handles. A plan's handle is a tensor: a number
would be a constant of the compiled code, and every step would compile anew.
"""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003  # torch reads the annotations

import torch  # noqa: TID253  # imported only under torch.compile

from hardpoint.attention import _handles
from hardpoint_torch_sdpa._layer import TorchSdpaLayer
from hardpoint_torch_sdpa._plan import SdpaPlan


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
    if not isinstance(found_layer, TorchSdpaLayer) or not isinstance(found_plan, SdpaPlan):
        raise TypeError(f"handles {layer} and {int(plan)} are no layer and plan")
    found_layer.run(query, key, value, kv_cache or None, found_plan, out, lse)


# An empty list of cache tensors is no cache: an optional list of mutated tensors cannot be declared.
attention = torch.library.custom_op(
    "hardpoint_torch_sdpa::attention", _forward, mutates_args=("kv_cache", "out", "lse")
)


@attention.register_fake
def _(*_: object) -> None:
    """Results are arguments: there is nothing to make up."""
