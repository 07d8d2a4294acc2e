"""`AttentionBatch`: the sequences of one step, packed."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionBatch:
    """One step's sequences. Build it with `AttentionBatch.build`, or hand in tensors that live on the device already.

    ====================  ==================  ======================================================================
    `query_start_loc`     (num_seqs+1,) i32   where each sequence's query tokens start in the packed query
    `seq_lens`            (num_seqs,) i32     keys of each sequence, including this step's
    `block_table`         (num_seqs, m) i32   cache blocks of each sequence, in order; None without a cache
    `slot_mapping`        (num_kv_tokens,)    int64: where each new key goes, ``block x block_size + offset``;
                                              -1: nowhere
    `kv_start_loc`        (num_seqs+1,) i32   where each sequence's new keys start, where they are not the queries'
                                              tokens (cross attention); None: they are
    `…_host`              tuples of int       the same starts and lengths on the host
    `num_actual_tokens`   int                 query rows beyond are padding
    `max_query_len`       int                 longest query of the step, in tokens
    `max_seq_len`         int                 most keys of any sequence
    `causal`              bool                False: this step is not causal, whatever the config says
    ====================  ==================  ======================================================================

    Queries align to the end of their sequence: the last query of a sequence of n keys stands at position n-1, causal or
    not, and positions count for the causal mask, the window and ALiBi.

    A step is causal where `AttentionConfig.causal` and `causal` both say so: an encoder's config needs nothing here,
    and a step of a causal layer may lift the mask. A backend that declared causal layers only may refuse such a step in
    `plan`.

    Entries of `block_table` beyond a sequence's last key, or wholly before the window of its first query, are never
    read.
    """

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor | None
    slot_mapping: torch.Tensor | None
    query_start_loc_host: tuple[int, ...]
    seq_lens_host: tuple[int, ...]
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    causal: bool = True
    kv_start_loc: torch.Tensor | None = None
    kv_start_loc_host: tuple[int, ...] | None = None

    @property
    def num_seqs(self) -> int:
        """Sequences in the step, empty ones included."""
        return len(self.seq_lens_host)

    @property
    def new_key_starts(self) -> tuple[int, ...]:
        """Where each sequence's new keys start, on the host, whichever member says so."""
        return self.query_start_loc_host if self.kv_start_loc_host is None else self.kv_start_loc_host

    @classmethod
    def build(
        cls,
        *,
        query_lens: Sequence[int],
        seq_lens: Sequence[int],
        device: torch.device | str = "cpu",
        block_table: Sequence[Sequence[int]] | torch.Tensor | None = None,
        slot_mapping: Sequence[int] | torch.Tensor | None = None,
        kv_lens: Sequence[int] | None = None,
        causal: bool = True,
    ) -> AttentionBatch:
        """Build a batch from host numbers; lists, numpy arrays and tensors are taken alike, tables may be ragged.

        `kv_lens` are the new keys of each sequence where they are not its queries: cross attention, with zeros after
        the first step. Errors: `ConfigError` where lengths contradict one another.
        """
        import torch

        queries_of, keys_of = _lengths("query_lens", query_lens), _lengths("seq_lens", seq_lens)
        new_of = queries_of if kv_lens is None else _lengths("kv_lens", kv_lens)
        if not len(queries_of) == len(keys_of) == len(new_of):
            raise ConfigError(
                f"{len(queries_of)} query lengths, {len(keys_of)} sequence lengths and {len(new_of)} key lengths",
                field="seq_lens",
            )
        for number, (queries, keys, new) in enumerate(zip(queries_of, keys_of, new_of, strict=True)):
            if new > keys:
                raise ConfigError(
                    f"sequence {number}: {queries} query tokens with {new} new keys do not fit {keys} keys in all",
                    field="seq_lens",
                )
        query_starts = tuple(accumulate(queries_of, initial=0))
        new_starts = tuple(accumulate(new_of, initial=0))
        table = None if block_table is None else _table(block_table, len(keys_of), device)
        slots = None if slot_mapping is None else _slots(slot_mapping, new_starts[-1], device)
        return cls(
            query_start_loc=torch.tensor(query_starts, dtype=torch.int32, device=device),
            seq_lens=torch.tensor(keys_of, dtype=torch.int32, device=device),
            block_table=table,
            slot_mapping=slots,
            query_start_loc_host=query_starts,
            seq_lens_host=tuple(keys_of),
            num_actual_tokens=query_starts[-1],
            max_query_len=max(queries_of, default=0),
            max_seq_len=max(keys_of, default=0),
            causal=bool(causal),
            kv_start_loc=None if kv_lens is None else torch.tensor(new_starts, dtype=torch.int32, device=device),
            kv_start_loc_host=None if kv_lens is None else new_starts,
        )


def _integers(name: str, values: Iterable[Any]) -> list[int]:  # Any: Python's, numpy's or torch's numbers
    try:
        return [operator.index(value) for value in values]
    except TypeError as error:
        raise ConfigError(f"{name}={values!r}: expected whole numbers ({error})", field=name) from error


def _lengths(name: str, values: Iterable[Any]) -> list[int]:  # Any: as above
    lengths = _integers(name, values)
    if negative := [length for length in lengths if length < 0]:
        raise ConfigError(f"{name} holds {negative[0]}: a length is at least 0", field=name)
    return lengths


def _whole(name: str, values: torch.Tensor) -> torch.Tensor:
    if values.is_floating_point() or values.is_complex():
        raise ConfigError(f"{name} of {values.dtype}: expected whole numbers", field=name)
    return values


def _table(
    values: torch.Tensor | Iterable[Iterable[Any]], num_seqs: int, device: torch.device | str
) -> torch.Tensor:  # Any: as above
    import torch

    if isinstance(values, torch.Tensor):
        table = _whole("block_table", values).to(device=device)
        if table.dtype == torch.int64:
            # A number that does not fit must not become one that does.
            limits = torch.iinfo(torch.int32)
            table = table.clamp(limits.min, limits.max)
        table = table.to(torch.int32)
    else:
        rows = [_integers("block_table", row) for row in values]
        width = max(map(len, rows), default=0)
        # Blocks beyond a sequence's own are never read, so any number does.
        padded = [row + [0] * (width - len(row)) for row in rows]
        table = torch.tensor(padded, dtype=torch.int32, device=device).reshape(len(rows), width)
    if table.ndim != 2 or table.shape[0] != num_seqs:
        raise ConfigError(f"block_table of shape {tuple(table.shape)} for {num_seqs} sequences", field="block_table")
    return table


def _slots(
    values: torch.Tensor | Iterable[Any], num_new_keys: int, device: torch.device | str
) -> torch.Tensor:  # Any: as above
    import torch

    if isinstance(values, torch.Tensor):
        slots = _whole("slot_mapping", values).to(device=device, dtype=torch.int64)
    else:
        slots = torch.tensor(_integers("slot_mapping", values), dtype=torch.int64, device=device)
    # Padded steps have more slots than keys; too few would leave keys unwritten without a word.
    if slots.ndim != 1 or slots.shape[0] < num_new_keys:
        raise ConfigError(
            f"slot_mapping of shape {tuple(slots.shape)} for {num_new_keys} new keys", field="slot_mapping"
        )
    return slots
