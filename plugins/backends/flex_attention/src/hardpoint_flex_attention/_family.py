"""Shape families: what a compiled flex_attention was compiled for. One compilation serves every step of a family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint.attention import AttentionConfig

_TILE_ROWS = 128
_DENSE_BLOCK = 64


class Inputs(NamedTuple):
    """The tensors of one call. Tiles are the batch: so many tokens of one sequence each, with keys of their own.

    `query` is ``(tiles, kv heads, rows, head_size)``, a row being a token's query head of the group; `key` and `value`
    are ``(1, kv heads, keys, content)``. The block lists are those of a `BlockMask`, by tile. `tiles` says per tile
    where its part of `base` begins, the position of its first token, how far it sees ahead and behind, and the keys of
    its sequence. `base` holds the position of each key block's first token. `parameters` are scale and cap, float32.

    What a mask function reads must have one size for good: torch 2.13 replaces the names of symbolic sizes in the
    generated C++ as text (`CppFlexAttentionTemplate.modification`), ``ks1`` in ``ks14`` too. So `tiles` and `base` have
    room for more than there ever is, memory that nobody touches.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    partial_num: torch.Tensor
    partial_blocks: torch.Tensor
    full_num: torch.Tensor
    full_blocks: torch.Tensor
    tiles: torch.Tensor
    base: torch.Tensor
    slopes: torch.Tensor
    parameters: torch.Tensor


MAX_TILES = 1 << 20
MAX_BLOCKS = 1 << 22


def roomy_tiles(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """`Inputs.tiles` of these numbers."""
    tiles = torch.empty(len(rows), MAX_TILES, dtype=torch.int32, device=rows[0].device)
    for target, row in zip(tiles, rows, strict=True):
        target[: len(row)] = row
    return tiles


def roomy_base(size: int, device: torch.device) -> torch.Tensor:
    """`Inputs.base` with that many zeros. Errors: `ConfigError` for more blocks than there is room for."""
    if size > MAX_BLOCKS:
        raise ConfigError(f"{size} key blocks: flex_attention is compiled for {MAX_BLOCKS} at most", field="block_size")
    base = torch.empty(MAX_BLOCKS, dtype=torch.int32, device=device)
    base[:size] = 0
    return base


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """All that is compiled in. What differs between steps, and window, scale and cap of a layer, is data."""

    device_type: str
    dtype: torch.dtype
    num_kv_heads: int
    group_size: int
    head_size: int
    v_head_size: int
    tokens: int
    """Tokens of a tile."""
    block: int
    """Tokens of a key block."""
    capped: bool
    alibi: bool
    num_threads: int
    """torch compiles the number in."""

    @property
    def rows(self) -> int:
        """Rows of a tile: on a GPU filled up to what its matrix units take."""
        rows = self.tokens * self.group_size
        return rows if self.device_type == "cpu" else -(-rows // 16) * 16

    @property
    def with_lse(self) -> bool:
        """Whether the kernel returns its denominators; torch's for the CPU does not."""
        return self.device_type != "cpu"

    @classmethod
    def of(cls, config: AttentionConfig, device: torch.device, *, tokens: int, block: int) -> Family:
        """The family of a config's calls with such tiles."""
        return cls(
            device_type=device.type,
            dtype=getattr(torch, config.dtype),
            num_kv_heads=config.num_kv_heads,
            group_size=config.group_size,
            head_size=config.head_size,
            v_head_size=config.v_head_size,
            tokens=tokens,
            block=block,
            capped=config.soft_cap is not None,
            alibi=config.alibi,
            num_threads=torch.get_num_threads(),
        )

    @classmethod
    def prefill(cls, config: AttentionConfig, device: torch.device) -> Family:
        """Several tokens, over keys that were gathered."""
        return cls.of(config, device, tokens=max(1, _TILE_ROWS // config.group_size), block=_DENSE_BLOCK)

    @classmethod
    def decode(cls, config: AttentionConfig, device: torch.device, block_size: int) -> Family:
        """One token, over the cache's own blocks where they are worth a call of the kernel's multiplication each."""
        return cls.of(config, device, tokens=1, block=block_size if block_size % 16 == 0 else _DENSE_BLOCK)

    def smallest(self, device: torch.device) -> Inputs:
        """Inputs whose sizes differ from one another, so that the compiler takes none for the same, or for constant."""
        tiles, blocks = 3, 7

        def numbers(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        def rows(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=self.dtype, device=device)

        def lists(width: int) -> torch.Tensor:
            return block_lists(numbers(tiles, width), blocks)

        heads, keys = self.num_kv_heads, blocks * self.block
        query = rows(tiles, heads, self.rows, self.head_size)
        key = plain(rows(keys, heads, self.head_size).transpose(0, 1)[None])
        value = plain(rows(keys, heads, self.v_head_size).transpose(0, 1)[None])
        slopes, parameters = torch.zeros(heads * self.group_size, device=device), torch.ones(2, device=device)
        tile_numbers, base = roomy_tiles([numbers(tiles)] * 5), roomy_base(blocks, device)
        static = {query: (1, 2, 3), key: (0, 1, 3), value: (0, 1, 3), tile_numbers: (0, 1)}
        static |= dict.fromkeys((base, slopes, parameters), (0,))
        for tensor, dims in static.items():
            torch._dynamo.mark_static(tensor, list(dims))  # noqa: SLF001  # documented under this name
        return Inputs(
            query,
            key,
            value,
            numbers(tiles, 1, 1) + 1,
            lists(5),
            numbers(tiles, 1, 1),
            lists(6),
            tile_numbers,
            base,
            slopes,
            parameters,
        )


def block_lists(numbers: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """Block numbers ``(tiles, n)`` as ``(tiles, 1, 1, m)``, of which only the first n of a tile mean anything.

    torch wants lists as long as there are blocks (`lower_cpu` asserts it), and reads what counts of them: rows that
    overlap in memory spare a table of tiles times blocks. m is more than n, because equal ones would be compiled in.
    """
    tiles, count = numbers.shape
    width = num_blocks + 2
    memory = numbers.new_zeros(tiles * count + width)
    memory[: tiles * count] = numbers.flatten()
    return plain(memory.as_strided((tiles, 1, 1, width), (count, width, width, 1)))


@torch.inference_mode(mode=False)
def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a tensor that is no view, and was not made in inference mode.

    To torch's compiler those are others: it looks at what they are views of, and would compile anew.
    """
    alias = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    shape, strides = tensor.shape, tensor.stride()
    return alias.set_(tensor.untyped_storage(), tensor.storage_offset(), shape, strides)
