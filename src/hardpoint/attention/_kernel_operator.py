"""An `OpaqueLayer`'s forward as one opaque operator, for code under `torch.compile`.

An operator takes tensors and numbers, so layers and plans travel as handles. Importing this where torch is loaded
(it is, under `torch.compile`) registers the operator, once.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from hardpoint.attention import _handles
from hardpoint.attention._kernel_forward import OpaqueLayer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

# An empty list of cache tensors is no cache: an optional list of mutated tensors cannot be declared.
_SCHEMA: Final = (
    "(int layer, Tensor plan, Tensor query, Tensor? key, Tensor? value, Tensor(a!)[] kv_cache, Tensor(b!) out, "
    "Tensor(c!)? lse) -> ()"
)


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
    if not isinstance(found_layer, OpaqueLayer) or not isinstance(found_plan, found_layer.plan_type):
        raise TypeError(f"handles {layer} and {int(plan)} are no layer and plan of it")
    found_layer.run_as_asked(query, key, value, kv_cache or None, found_plan, out, lse)


def _nothing(*_: object) -> None:
    """Results are arguments: there is nothing to make up."""


def _register() -> Any:  # noqa: ANN401  # torch's own type is not public
    import torch

    operator = torch.library.custom_op(
        "hardpoint::attention", _forward, mutates_args=("kv_cache", "out", "lse"), schema=_SCHEMA
    )
    operator.register_fake(_nothing)
    return operator


if "torch" in sys.modules:
    attention = _register()
