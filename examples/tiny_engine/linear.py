"""Weight matrices in the order in which they are multiplied fastest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

# Rows of a decode step, for which the order is chosen; it serves other numbers too.
_ROWS = 16


class Linear:
    """``inputs @ weight.T``. Holds the weight, ``(out, in)``, in the packed order alone where torch has one.

    Without that, torch's library for these products arranges the whole matrix anew in every call: on a processor that
    multiplies bfloat16 in tiles, a step of 16 rows then takes twice the time.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self.nbytes = weight.nbytes
        self._weight = weight
        self._multiply: Callable[..., torch.Tensor] | None = None
        operators = _operators(weight)
        if operators is not None:
            pack, self._multiply = operators
            self._weight = pack(weight, _ROWS)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """``(rows, in)`` to ``(rows, out)``, in the weight's dtype."""
        if self._multiply is None:
            return functional.linear(inputs, self._weight)
        return self._multiply(inputs, self._weight, None, "none", [], "")


def _operators(weight: torch.Tensor) -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]] | None:
    """What packs this weight and what multiplies with it, or None.

    torch.compile makes these of a linear layer whose weight does not change; they have no public names, and another
    torch may lack them.
    """
    if weight.dtype is not torch.bfloat16 or not weight.is_cpu:
        return None
    library = torch.ops.mkldnn
    try:
        if not library._is_mkldnn_bf16_supported():  # noqa: SLF001  # see above
            return None
        return library._reorder_linear_weight, library._linear_pointwise  # noqa: SLF001  # see above
    except (AttributeError, RuntimeError):  # RuntimeError: built without that library
        return None
