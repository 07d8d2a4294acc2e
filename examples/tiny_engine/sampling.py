"""From logits to tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.tiny_engine.scheduler import Request


def sample(logits: torch.Tensor, requests: Sequence[Request]) -> list[int]:
    """One token per row; temperature 0 is greedy. Draws depend on a request's seed and position, not on its batch."""
    warm = [row for row, request in enumerate(requests) if request.temperature > 0]
    if warm:
        temperatures = torch.tensor([requests[row].temperature for row in warm], device=logits.device)
        noise = torch.stack([_gumbel(requests[row], logits.shape[-1]) for row in warm])
        # The largest of logits with Gumbel noise is a draw from their softmax.
        logits[warm] = logits[warm] / temperatures[:, None] + noise.to(logits.device)
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    return tokens


def _gumbel(request: Request, size: int) -> torch.Tensor:
    # torch's generator looks at 32 bits of a seed; the factor is longer than any sequence.
    generator = torch.Generator().manual_seed((request.seed * 1_000_003 + len(request.tokens)) & 0xFFFFFFFF)
    return -torch.empty(size).exponential_(generator=generator).log_()
