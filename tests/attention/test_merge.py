from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from hardpoint.attention import merge_attention

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")

INFINITY = float("inf")
TOKENS, HEADS, SIZE = 6, 3, 4


class Part(NamedTuple):
    """The attention over one group of keys, and what it was computed from."""

    out: torch.Tensor
    lse: torch.Tensor
    logits: torch.Tensor
    values: torch.Tensor


def attend(logits: torch.Tensor, values: torch.Tensor) -> Part:
    """Attention over one group of keys."""
    return Part((logits.softmax(-1) @ values).transpose(0, 1), logits.logsumexp(-1), logits, values)


def parts(count: int, num_keys: int = 5) -> list[Part]:
    """So many groups of keys, of random numbers."""
    generator = torch.Generator().manual_seed(7)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return [attend(3 * random(HEADS, TOKENS, num_keys), random(HEADS, num_keys, SIZE)) for _ in range(count)]


def whole(found: list[Part]) -> Part:
    """Attention over all groups at once."""
    return attend(torch.cat([part.logits for part in found], dim=2), torch.cat([part.values for part in found], dim=1))


def test_two_parts_give_the_whole() -> None:
    """Merging the attention over two groups of keys gives the attention over both."""
    found = parts(2)
    out, lse = merge_attention(found[0].out, found[0].lse, found[1].out, found[1].lse)
    torch.testing.assert_close(out, whole(found).out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, whole(found).lse, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)])
def test_more_parts_are_merged_one_after_the_other(order: tuple[int, ...]) -> None:
    """Repeated merging gives the whole, in whatever order."""
    found = parts(4)
    out, lse = found[order[0]].out, found[order[0]].lse
    for number in order[1:]:
        out, lse = merge_attention(out, lse, found[number].out, found[number].lse)
    torch.testing.assert_close(out, whole(found).out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, whole(found).lse, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("garbage", [0.0, float("nan"), INFINITY])
def test_a_part_that_saw_nothing_adds_nothing(garbage: float) -> None:
    """An lse of minus infinity takes a part out, whatever its rows hold; without any part the result is zero."""
    ((out, lse, *_),) = parts(1)
    nothing, empty = torch.full_like(out, garbage), torch.full_like(lse, -INFINITY)
    for merged in (merge_attention(out, lse, nothing, empty), merge_attention(nothing, empty, out, lse)):
        torch.testing.assert_close(merged[0], out, rtol=0, atol=0)
        torch.testing.assert_close(merged[1], lse, rtol=0, atol=0)
    zero, still_empty = merge_attention(nothing, empty, nothing, empty)
    assert not zero.any()
    assert (still_empty == -INFINITY).all()


def test_rows_are_merged_each_for_itself() -> None:
    """A token that saw nothing in one part stands beside one that saw nothing in the other."""
    (out_a, lse_a, *_), (out_b, lse_b, *_) = parts(2)
    lse_a[:, 0] = lse_b[:, 1] = lse_a[:, 2] = lse_b[:, 2] = -INFINITY
    out, lse = merge_attention(out_a, lse_a, out_b, lse_b)
    torch.testing.assert_close(out[0], out_b[0])
    torch.testing.assert_close(out[1], out_a[1])
    assert not out[2].any()
    assert (lse[:, 2] == -INFINITY).all()
    assert torch.isfinite(lse[:, 3:]).all()


def test_large_logarithms_do_not_overflow() -> None:
    """Only differences of logarithms are exponentiated."""
    (out_a, lse_a, *_), (out_b, lse_b, *_) = parts(2)
    expected, lse = merge_attention(out_a, lse_a, out_b, lse_b)
    shifted, shifted_lse = merge_attention(out_a, lse_a + 1000, out_b, lse_b + 1000)
    torch.testing.assert_close(shifted, expected)
    torch.testing.assert_close(shifted_lse, lse + 1000)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_result_has_the_dtype_of_the_results(dtype: str) -> None:
    """Low precision is merged in the precision of the lse and rounded once."""
    kind = getattr(torch, dtype)
    (out_a, lse_a, *_), (out_b, lse_b, *_) = parts(2)
    out, lse = merge_attention(out_a.to(kind), lse_a.float(), out_b.to(kind), lse_b.float())
    assert out.dtype == kind
    assert lse.dtype == torch.float32
    exact, _ = merge_attention(out_a.to(kind).double(), lse_a, out_b.to(kind).double(), lse_b)
    # Half a unit in the last place for the one rounding, and float32's own error.
    tolerance = max(torch.finfo(kind).eps / 2, 1e-6)
    torch.testing.assert_close(out.double(), exact, rtol=tolerance, atol=1e-6)
