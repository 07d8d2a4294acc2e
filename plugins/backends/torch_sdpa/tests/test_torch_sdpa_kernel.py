"""One call: what is not torch's public function must agree with it, or with the definition."""

from __future__ import annotations

import pytest
import torch

from hardpoint_torch_sdpa._kernel import attend, logsumexp
from hardpoint_torch_sdpa._masks import MaskTemplate

pytestmark = pytest.mark.torch


def _tensors(dtype: torch.dtype, q: int, k: int, *, groups: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 2 * groups, q, 16), (2, 2, k, 16), (2, 2, k, 16)
    query, key, value = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    return query, key, value


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_the_second_way_to_the_lse_agrees_with_the_cpu_kernel(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, causal: bool, masked: bool
) -> None:
    """It serves devices and torch versions whose kernel keeps the denominators to itself, some rows at a time."""
    monkeypatch.setattr("hardpoint_torch_sdpa._kernel._LSE_CHUNK_ELEMENTS", 500)
    query, key, value = _tensors(dtype, 20, 20)
    mask = None
    if masked and not causal:
        mask = torch.randn(2, 1, 20, 20, dtype=torch.promote_types(dtype, torch.float32))
    out, lse = attend(query, key, value, mask=mask, causal=causal, scale=0.3, with_lse=True)
    again = logsumexp(query, key, mask=mask, causal=causal, scale=0.3)
    assert lse is not None
    assert again.shape == lse.shape
    torch.testing.assert_close(lse.double(), again.double(), atol=1e-2 if dtype.itemsize == 2 else 1e-5, rtol=1e-3)
    plain, nothing = attend(query, key, value, mask=mask, causal=causal, scale=0.3)
    assert nothing is None
    torch.testing.assert_close(plain, out)


@pytest.mark.parametrize("v_head_size", [5, 16, 40])
def test_another_value_head_size_is_filled_up_with_zeros(v_head_size: int) -> None:
    """The result is that of the definition, whichever side is narrower."""
    query, key, value = _tensors(torch.float32, 6, 9, groups=1)
    value = torch.randn(2, 2, 9, v_head_size)
    out, _ = attend(query, key, value, scale=0.3, with_lse=True)
    wanted = torch.softmax(query @ key.mT * 0.3, -1) @ value
    torch.testing.assert_close(out, wanted)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 7, 300, 5000])
def test_the_mask_template_says_who_sees_whom(causal: bool, window: int | None) -> None:
    """Every chunk of every sequence cuts its mask from one template; it is compared with the definition."""
    masks = MaskTemplate(causal=causal, window=window, reach=1400, device=torch.device("cpu"))
    for position, num_rows, num_keys in ((0, 700, 700), (300, 400, 700), (-3, 5, 2), (699, 1, 700)):
        first_row = 0
        for chunk in masks.chunks(position, num_rows, num_keys, 1):
            assert chunk.first == first_row
            first_row = chunk.end
            rows = torch.arange(position + chunk.first, position + chunk.end)[:, None]
            keys = torch.arange(num_keys)
            seen = torch.ones(len(rows), num_keys, dtype=torch.bool)
            if causal:
                seen &= keys <= rows
            if window is not None:
                seen &= (keys > rows - window) & (keys < rows + window)
            outside = torch.cat([seen[:, : max(0, chunk.low)], seen[:, max(0, chunk.high) :]], dim=1)
            assert not outside.any()
            mask = masks.mask(position, chunk)
            if mask is None:
                assert seen.all()
            elif chunk.high > chunk.low:
                assert torch.equal(mask == 0, seen[:, chunk.low : chunk.high])
                assert torch.equal(masks.distance(position, chunk), keys[chunk.low : chunk.high] - rows)
        assert first_row == num_rows
