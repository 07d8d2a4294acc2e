"""Merging partial attention results through the logarithm of their softmax denominators."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def merge_attention(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The attention over the keys of both parts, which share no key, from the result over each. More parts: repeat.

    `out_…` are ``(num_tokens, num_heads, v_head_size)``, `lse_…` ``(num_heads, num_tokens)``, natural logarithm. A part
    whose lse is minus infinity adds nothing, whatever its rows hold; where both are, the result is zero. Sinks must
    have been counted in one part only. The weights are computed in the wider of the dtypes of results and lse, the
    result has the results' dtype.
    """
    import torch

    lse = torch.logaddexp(lse_a, lse_b)
    dtype = torch.promote_types(torch.promote_types(out_a.dtype, out_b.dtype), lse.dtype)

    def share(out: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        # Minus infinity minus itself is NaN, and a weight of zero does not stop a NaN in rows that mean nothing.
        empty = (part == -torch.inf).T.unsqueeze(-1)
        weight = torch.exp(part - lse).T.unsqueeze(-1)
        return torch.where(empty, 0.0, out.to(dtype) * weight.to(dtype))

    merged = share(out_a, lse_a) + share(out_b, lse_b)
    return merged.to(torch.promote_types(out_a.dtype, out_b.dtype)), lse
