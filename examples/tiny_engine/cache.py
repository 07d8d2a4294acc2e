"""The paged cache: which blocks are free, and which belong to whom."""

from __future__ import annotations


class BlockAllocator:
    """Hands out block numbers. A block has one owner at a time; the most recently freed one is handed out first."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._taken: set[int] = set()

    @property
    def num_free(self) -> int:
        """Blocks that nobody has."""
        return len(self._free)

    @property
    def capacity(self) -> int:
        """Tokens that the whole cache holds."""
        return self.num_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that so many tokens take."""
        return -(-num_tokens // self.block_size)

    def grow(self, blocks: list[int], num_tokens: int) -> bool:
        """Extend `blocks` until it holds `num_tokens`. False, and nothing has changed, if too few are free."""
        missing = self.blocks_for(num_tokens) - len(blocks)
        if missing <= 0:
            return True
        if missing > len(self._free):
            return False
        for _ in range(missing):
            block = self._free.pop()
            self._taken.add(block)
            blocks.append(block)
        return True

    def release(self, blocks: list[int]) -> None:
        """Take every block back and leave the list empty. Errors: `ValueError` for a block that was not taken."""
        while blocks:
            block = blocks.pop()
            if block not in self._taken:
                raise ValueError(f"block {block} is released and was not taken")
            self._taken.remove(block)
            self._free.append(block)
