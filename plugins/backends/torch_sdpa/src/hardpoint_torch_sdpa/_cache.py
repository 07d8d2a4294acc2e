"""The paged cache: gathering the blocks of some sequences into dense memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch  # noqa: TID253  # imported only with a chosen backend

if TYPE_CHECKING:
    from hardpoint_torch_sdpa._workspace import Scratch


class Blocks:
    """The blocks of n sequences, m of each, and which of their tokens count.

    `table` is ``(n, m)`` int64; of the m blocks of sequence i the tokens ``offsets[i] … offsets[i]+lengths[i]-1`` are
    seen. What kernels index with is worked out once per memory layout, not once per layer.
    """

    def __init__(self, table: torch.Tensor, offsets: tuple[int, ...], lengths: tuple[int, ...]) -> None:
        self.table = table
        self.offsets = offsets
        self.lengths = lengths
        self.uniform = len(set(offsets)) == 1 and len(set(lengths)) == 1
        self._indices: dict[tuple[int, ...], torch.Tensor] = {}

    def rows(self, block_rows: int, heads: int = 1, head_rows: int = 0) -> torch.Tensor:
        """Row numbers ``(n x heads x m,)`` where a block is `block_rows` rows on and a head `head_rows`."""
        found = self._indices.get((block_rows, heads, head_rows))
        if found is None:
            head = torch.arange(heads, device=self.table.device) * head_rows
            found = (self.table[:, None] * block_rows + head[:, None]).flatten()
            self._indices[block_rows, heads, head_rows] = found
        return found

    def unseen(self, block_size: int, heads: int = 1) -> torch.Tensor:
        """Numbers among ``(n x heads x m x block_size)`` rows of those that hold no seen token."""
        found = self._indices.get((-block_size, heads))
        if found is None:
            seen = self.seen(block_size)[:, None].expand(-1, heads, -1)
            found = self._indices[-block_size, heads] = (~seen).flatten().nonzero().flatten()
        return found

    def seen(self, block_size: int) -> torch.Tensor:
        """Which tokens count: bool ``(n, m x block_size)``."""
        device = self.table.device
        first = torch.tensor(self.offsets, device=device)[:, None]
        token = torch.arange(self.table.shape[1] * block_size, device=device)
        return (token >= first) & (token < first + torch.tensor(self.lengths, device=device)[:, None])


def gather(cache: torch.Tensor, blocks: Blocks, scratch: Scratch, name: str, dtype: torch.dtype) -> torch.Tensor:
    """The seen keys (or values) of the sequences in `blocks`, ``(n, heads, length, content)``, content dense.

    `cache` is indexed block, head, token, content, with any strides. Where the sequences differ in length or offset,
    all tokens of all m blocks are there, those that do not count as zeros: a slot that nobody wrote may hold NaN.
    """
    dense = _gather_raw(cache, blocks, scratch, name)
    if dense.dtype != dtype:
        # Conversion keeps the memory order, so that both sides are read and written in one direction.
        by_token = not dense.is_contiguous()
        shape = tuple(dense.transpose(1, 2).shape if by_token else dense.shape)
        converted = scratch.get(f"{name} converted", shape, dtype, cache.device)
        dense = (converted.transpose(1, 2) if by_token else converted).copy_(dense)
    if blocks.uniform:
        first = blocks.offsets[0]
        return dense[:, :, first : first + blocks.lengths[0]]
    _, heads, block_size, content = cache.shape
    if dense.is_contiguous():
        dense.view(-1, content).index_fill_(0, blocks.unseen(block_size, heads), 0)
    else:
        dense.transpose(1, 2).view(-1, heads * content).index_fill_(0, blocks.unseen(block_size), 0)
    return dense


def _gather_raw(cache: torch.Tensor, blocks: Blocks, scratch: Scratch, name: str) -> torch.Tensor:
    _, heads, size, content = cache.shape
    count, width = blocks.table.shape
    by_head, by_token, block = size * content, size * heads * content, cache.stride(0)
    head_stride, token_stride, content_stride = cache.stride()[1:]
    bytes_ = _as_bytes(cache)
    if content_stride == 1 or content == 1:
        if (
            (token_stride == content or size == 1)
            and (head_stride % by_head == 0 or heads == 1)
            and block % by_head == 0
        ):
            # A head of a block is one row of memory: each head's tokens end up behind one another.
            index = blocks.rows(block // by_head, heads, head_stride // by_head)
            out = scratch.get(name, (count * heads * width, by_head), bytes_.dtype, cache.device)
            torch.index_select(_memory_rows(bytes_, by_head), 0, index, out=out)
            return out.view(cache.dtype).view(count, heads, width * size, content)
        if (
            (head_stride == content or heads == 1)
            and (token_stride == heads * content or size == 1)
            and block % by_token == 0
        ):
            out = scratch.get(name, (count * width, by_token), bytes_.dtype, cache.device)
            torch.index_select(_memory_rows(bytes_, by_token), 0, blocks.rows(block // by_token), out=out)
            return out.view(cache.dtype).view(count, width * size, heads, content).transpose(1, 2)
    taken = bytes_.index_select(0, blocks.table.flatten()).view(count, width, heads, size, content)
    return taken.transpose(1, 2).reshape(count, heads, width * size, content).view(cache.dtype)


def _memory_rows(cache: torch.Tensor, row: int) -> torch.Tensor:
    blocks, heads, size, content = cache.shape
    by_block, by_head, by_token, by_content = cache.stride()
    last = (blocks - 1) * by_block + (heads - 1) * by_head + (size - 1) * by_token + (content - 1) * by_content
    return cache.as_strided((last // row + 1, row), (row, 1))


def _as_bytes(cache: torch.Tensor) -> torch.Tensor:
    # Few operators know the 8-bit floats.
    return cache.view(torch.uint8) if cache.dtype.itemsize == 1 else cache
