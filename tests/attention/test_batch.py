from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hardpoint.attention import AttentionBatch
from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")


def test_starts_are_the_sums_of_lengths() -> None:
    """A batch holds starts and lengths on the device in the contract's dtypes, and the same numbers on the host."""
    batch = AttentionBatch.build(query_lens=[3, 0, 1], seq_lens=[3, 5, 9], block_table=[[0], [1], [2, 3]])
    assert batch.query_start_loc.tolist() == [0, 3, 3, 4]
    assert batch.query_start_loc_host == (0, 3, 3, 4)
    assert batch.seq_lens.tolist() == [3, 5, 9]
    assert batch.seq_lens_host == (3, 5, 9)
    assert (batch.query_start_loc.dtype, batch.seq_lens.dtype) == (torch.int32, torch.int32)
    assert (batch.num_seqs, batch.num_actual_tokens, batch.max_query_len, batch.max_seq_len) == (3, 4, 3, 9)
    assert batch.causal is True
    assert batch.kv_start_loc is None
    assert batch.kv_start_loc_host is None
    assert batch.new_key_starts == (0, 3, 3, 4)


def test_new_keys_may_be_others_than_the_queries_tokens() -> None:
    """Cross attention brings its own key lengths, which may exceed the queries or be zero."""
    batch = AttentionBatch.build(query_lens=[1, 2], seq_lens=[7, 4], kv_lens=[7, 0], causal=False)
    assert batch.kv_start_loc is not None
    assert batch.kv_start_loc.tolist() == [0, 7, 7]
    assert batch.kv_start_loc.dtype == torch.int32
    assert batch.kv_start_loc_host == (0, 7, 7)
    assert batch.new_key_starts == (0, 7, 7)
    assert batch.causal is False


def tensor(values: Any) -> Any:
    """The values as torch has them."""
    return torch.tensor(values)


def array(values: Any) -> Any:
    """The values as numpy has them."""
    return pytest.importorskip("numpy").array(values)


@pytest.mark.parametrize("kind", [list, tuple, array, tensor])
def test_lists_arrays_and_tensors_are_taken_alike(kind: Any) -> None:
    """Numbers may come from Python, numpy or torch, of any integer width."""
    batch = AttentionBatch.build(
        query_lens=kind([2, 1]),
        seq_lens=kind([4, 1]),
        kv_lens=kind([2, 1]),
        block_table=kind([[5, 6], [7, 0]]),
        slot_mapping=kind([12, 13, -1]),
    )
    assert batch.seq_lens_host == (4, 1)
    assert {type(number) for number in batch.seq_lens_host + batch.query_start_loc_host} == {int}
    assert batch.block_table is not None
    assert batch.block_table.tolist() == [[5, 6], [7, 0]]
    assert batch.block_table.dtype == torch.int32
    assert batch.slot_mapping is not None
    assert batch.slot_mapping.tolist() == [12, 13, -1]
    assert batch.slot_mapping.dtype == torch.int64


@pytest.mark.parametrize(
    ("table", "shape"),
    [
        ([[1, 2, 3], [4]], (2, 3)),
        ([[], [4]], (2, 1)),
        ([[], []], (2, 0)),
        ([array([1, 2]), []], (2, 2)),
    ],
)
def test_tables_may_be_ragged(table: Any, shape: tuple[int, int]) -> None:
    """Rows of different length, and empty ones, are filled up."""
    batch = AttentionBatch.build(query_lens=[0, 0], seq_lens=[0, 0], block_table=table)
    assert batch.block_table is not None
    assert tuple(batch.block_table.shape) == shape


def test_a_step_without_sequences_is_a_batch() -> None:
    """Nothing to do is no error."""
    batch = AttentionBatch.build(query_lens=[], seq_lens=[], block_table=[], slot_mapping=[])
    assert (batch.num_seqs, batch.num_actual_tokens, batch.max_query_len, batch.max_seq_len) == (0, 0, 0, 0)
    assert batch.query_start_loc.tolist() == [0]
    assert batch.block_table is not None
    assert tuple(batch.block_table.shape) == (0, 0)
    assert batch.slot_mapping is not None
    assert tuple(batch.slot_mapping.shape) == (0,)


def test_more_slots_than_new_keys_are_padding() -> None:
    """A padded step may bring a slot for every row."""
    batch = AttentionBatch.build(query_lens=[1], seq_lens=[1], slot_mapping=[3, -1, -1, -1])
    assert batch.num_actual_tokens == 1


@pytest.mark.parametrize(
    ("arguments", "field", "text"),
    [
        ({"query_lens": [1, 2]}, "seq_lens", "2 query lengths, 1 sequence lengths and 2 key lengths"),
        ({"kv_lens": []}, "seq_lens", "1 query lengths, 1 sequence lengths and 0 key lengths"),
        ({"query_lens": [5]}, "seq_lens", "sequence 0: 5 query tokens with 5 new keys do not fit 4 keys in all"),
        ({"kv_lens": [5]}, "seq_lens", "sequence 0: 1 query tokens with 5 new keys do not fit 4 keys in all"),
        ({"query_lens": [-1]}, "query_lens", "query_lens holds -1"),
        ({"seq_lens": [-1]}, "seq_lens", "seq_lens holds -1"),
        ({"kv_lens": [-1]}, "kv_lens", "kv_lens holds -1"),
        ({"query_lens": [1.0]}, "query_lens", "expected whole numbers"),
        ({"query_lens": ["1"]}, "query_lens", "expected whole numbers"),
        ({"query_lens": 1}, "query_lens", "expected whole numbers"),
        ({"block_table": [[1], [2]]}, "block_table", r"block_table of shape \(2, 1\) for 1 sequences"),
        ({"block_table": [[1.5]]}, "block_table", "expected whole numbers"),
        ({"block_table": tensor([1, 2])}, "block_table", r"block_table of shape \(2,\) for 1 sequences"),
        ({"block_table": tensor([[1.5]])}, "block_table", "block_table of torch.float32: expected whole numbers"),
        ({"slot_mapping": tensor([1.0])}, "slot_mapping", "slot_mapping of torch.float32: expected whole numbers"),
        ({"slot_mapping": []}, "slot_mapping", r"slot_mapping of shape \(0,\) for 1 new keys"),
        ({"slot_mapping": tensor([[1]])}, "slot_mapping", r"slot_mapping of shape \(1, 1\) for 1 new keys"),
    ],
)
def test_numbers_that_contradict_one_another_are_refused(arguments: dict[str, Any], field: str, text: str) -> None:
    """A batch that cannot be is refused where it is built, with the culprit's name."""
    with pytest.raises(ConfigError, match=text) as caught:
        AttentionBatch.build(**{"query_lens": [1], "seq_lens": [4], **arguments})
    assert caught.value.field == field


@pytest.mark.parametrize("number", [1 << 32, (1 << 32) + 1, -(1 << 32)])
def test_a_block_beyond_32_bits_does_not_become_another(number: int) -> None:
    """It stays a number that no cache has."""
    batch = AttentionBatch.build(query_lens=[1], seq_lens=[4], block_table=tensor([[number]]))
    assert batch.block_table is not None
    assert int(batch.block_table) in ((1 << 31) - 1, -(1 << 31))
