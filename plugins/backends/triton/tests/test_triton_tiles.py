"""The table of tiles, and how heads are cut into them."""

from __future__ import annotations

import pytest

from hardpoint.attention import AttentionConfig
from hardpoint_triton._hardware import Hardware
from hardpoint_triton._plan import shape_of
from hardpoint_triton._tiles import DECODE, PREFILL, Part, choose, padded, rows, split_head, split_latent

ARCHITECTURES = (
    "sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121",
    "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "interpreter", "xyz",
)  # fmt: skip


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("phase", [PREFILL, DECODE])
def test_every_width_that_is_accepted_has_a_tile(arch: str, phase: str) -> None:
    """On devices that the table names and on others, of both sizes of element."""
    for dtype_bytes in (2, 4):
        for width in (*(split_head(size).width for size in range(1, 257)), split_latent(512, 128).width):
            tile = choose(arch, phase, dtype_bytes, width)
            assert tile.block_m >= 16
            assert tile.block_n >= 16


def test_every_row_can_win_and_says_why_it_is_as_it_is() -> None:
    """A row behind one that takes all it would take is dead."""
    seen = set()
    for dtype_bytes in (2, 4):
        for width in (16, 256, 640):
            for arch in ARCHITECTURES:
                for phase in (PREFILL, DECODE):
                    chosen = choose(arch, phase, dtype_bytes, width)
                    seen.add((phase, chosen.block_m, chosen.block_n, chosen.num_warps, chosen.num_stages))
    for row in rows():
        assert (row["phase"], row["block_m"], row["block_n"], row["num_warps"], row["num_stages"]) in seen, row
        assert len(row["reason"]) > 20


def test_a_width_beyond_the_table_is_an_error() -> None:
    """Not a silent choice of something that does not fit."""
    with pytest.raises(LookupError, match=r"tiles\.json has no decode row for sm_90, 2 bytes and width 2048"):
        choose("sm_90", DECODE, 2, 2048)


@pytest.mark.parametrize(
    ("size", "part"),
    [
        (1, Part(1, 16)),
        (16, Part(16, 16)),
        (24, Part(24, 32)),
        (64, Part(64, 64)),
        (80, Part(64, 64, 16, 16)),
        (112, Part(112, 128)),
        (120, Part(120, 128)),
        (160, Part(128, 128, 32, 32)),
        (192, Part(128, 128, 64, 64)),
        (256, Part(256, 256)),
    ],
)
def test_heads_are_cut_where_that_saves_padding(size: int, part: Part) -> None:
    """Two pieces, the first a power of two; never more padding than one piece would have."""
    assert split_head(size) == part


def test_no_element_of_a_head_is_lost() -> None:
    """The pieces hold the head, and are no wider than the next power of two."""
    for size in range(1, 257):
        part = split_head(size)
        assert part.first + part.rest == size
        assert part.first <= part.first_padded
        assert part.rest <= part.rest_padded
        assert part.width <= padded(size)
        assert part.rest == 0 or part.first == part.first_padded


def test_a_latent_is_cut_between_its_value_and_its_rotary_part() -> None:
    """So that the value is the first piece of the key."""
    assert split_latent(512, 64) == Part(512, 512, 64, 64)
    assert split_latent(20, 0) == Part(20, 32)


@pytest.mark.parametrize(
    ("heads", "phase", "expected"),
    [
        ((32, 8), DECODE, (16, 4, 4, 1)),
        ((32, 32), DECODE, (16, 1, 16, 1)),
        ((7, 1), DECODE, (16, 7, 2, 1)),
        ((40, 1), DECODE, (64, 40, 1, 1)),
        ((128, 1), DECODE, (64, 64, 1, 2)),
        ((32, 8), PREFILL, (128, 4, 32, 1)),
        ((200, 1), PREFILL, (128, 128, 1, 2)),
    ],
)
def test_tiles_hold_whole_groups_of_heads(
    heads: tuple[int, int], phase: str, expected: tuple[int, int, int, int]
) -> None:
    """Rows, heads for each token, tokens, and tiles for each key head, on a device with large tiles."""
    config = AttentionConfig(head_size=128, num_heads=heads[0], num_kv_heads=heads[1], dtype="bf16")
    shape = shape_of(config, Hardware("sm_90", 132), phase)
    assert (shape.block_m, shape.row_heads, shape.tokens, shape.head_blocks) == expected
