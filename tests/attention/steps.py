"""Random steps for the tests of the reference, laid out in every way that must not matter, and a textbook answer."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from hardpoint.attention import (
    AttentionBatch,
    AttentionConfig,
    CacheTensorSpec,
    KVCacheSpec,
    reference_attention,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
else:
    torch = pytest.importorskip("torch")

NAN = float("nan")
AXES = ("block", "head", "token", "content")


@dataclass(frozen=True)
class Layout:
    """How a cache lies in memory: tokens per block, order of axes and of memory, and a seed for the blocks' numbers."""

    block_size: int = 4
    axes: tuple[str, ...] = AXES
    stride_order: tuple[str, ...] = AXES
    seed: int = 0


@dataclass(frozen=True)
class Tokens:
    """One sequence: the queries of this step, and the keys and values of all its tokens so far."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor | None

    @property
    def num_queries(self) -> int:
        return len(self.query)

    @property
    def num_keys(self) -> int:
        return len(self.key)


@dataclass(frozen=True)
class Step:
    """The sequences of a step with the layer's parameters."""

    config: AttentionConfig
    sequences: tuple[Tokens, ...]
    sinks: torch.Tensor | None
    slopes: torch.Tensor | None
    scale: float = 0.4

    def options(self) -> dict[str, Any]:
        return {"scale": self.scale, "sinks": self.sinks, "alibi_slopes": self.slopes}

    def with_config(self, **changes: Any) -> Step:
        return replace(self, config=replace(self.config, **changes))

    def query(self) -> torch.Tensor:
        shape = (0, self.config.num_heads, self.config.head_size)
        return torch.cat([torch.zeros(shape, dtype=torch.float64), *(one.query for one in self.sequences)])

    def keys(self, newest: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The newest so many keys and values of each sequence, packed."""
        key = torch.cat([one.key[one.num_keys - n :] for one, n in zip(self.sequences, newest, strict=True)])
        if self.config.kind == "mla_attention":
            return key, None
        values = [one.value for one in self.sequences if one.value is not None]
        return key, torch.cat([value[len(value) - n :] for value, n in zip(values, newest, strict=True)])

    def unpaged(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Without a cache: all keys are handed over."""
        all_keys = [one.num_keys for one in self.sequences]
        batch = AttentionBatch.build(
            query_lens=[one.num_queries for one in self.sequences], seq_lens=all_keys, kv_lens=all_keys
        )
        return reference_attention(self.config, batch, self.query(), *self.keys(all_keys), **self.options())

    def paged(self, layout: Layout, *, poison: float = NAN) -> tuple[torch.Tensor, torch.Tensor]:
        """From a cache that holds the sequences' past and is else full of `poison`; the step's keys are handed over."""
        rng = random.Random(layout.seed)
        size = layout.block_size
        config = replace(self.config, block_size=size)
        counts = [-(-one.num_keys // size) for one in self.sequences]
        numbers = list(range(sum(counts) + 2))
        rng.shuffle(numbers)
        # The last two blocks belong to nobody: rows of the table end with them.
        spare = numbers[-2:]
        table, slots, taken = [], [], iter(numbers)
        spec = cache_spec(config, layout)
        cache = spec.allocate(len(numbers), device="cpu", stride_orders=[layout.stride_order] * len(spec.tensors))
        for tensor in cache:
            tensor.fill_(poison)
        for one, count in zip(self.sequences, counts, strict=True):
            blocks = [next(taken) for _ in range(count)]
            table.append(blocks + spare[: rng.randrange(3)])
            past = one.num_keys - min(one.num_queries, one.num_keys)
            for tensor, rows in zip(cache, (one.key, one.value), strict=False):
                assert rows is not None
                order = [
                    layout.axes.index(axis) for axis in ("block", "token", "head", "content") if axis in layout.axes
                ]
                by_token = tensor.permute(order)
                for token in range(past):
                    by_token[blocks[token // size], token % size] = rows[token]
            slots += [blocks[token // size] * size + token % size for token in range(past, one.num_keys)]
        new = [min(one.num_queries, one.num_keys) for one in self.sequences]
        batch = AttentionBatch.build(
            query_lens=[one.num_queries for one in self.sequences],
            seq_lens=[one.num_keys for one in self.sequences],
            block_table=table,
            slot_mapping=slots,
        )
        return reference_attention(config, batch, self.query(), *self.keys(new), cache, spec=spec, **self.options())

    def textbook(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The same answer from whole matrices of logits with a mask."""
        parts = [self._textbook_sequence(one) for one in self.sequences]
        outs = [torch.zeros(0, self.config.num_heads, self.config.v_head_size, dtype=torch.float64)]
        lses = [torch.zeros(self.config.num_heads, 0, dtype=torch.float64)]
        return torch.cat(outs + [out for out, _ in parts]), torch.cat(lses + [lse for _, lse in parts], dim=1)

    def _textbook_sequence(self, one: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        config = self.config
        key = one.key.unsqueeze(1) if config.kind == "mla_attention" else one.key
        value = key[..., : config.v_head_size] if one.value is None else one.value
        key, value = (rows.repeat_interleave(config.group_size, dim=1) for rows in (key, value))
        logits = torch.einsum("qhd,khd->hqk", one.query, key) * self.scale
        if config.soft_cap is not None:
            logits = torch.tanh(logits / config.soft_cap) * config.soft_cap
        query_at = torch.arange(one.num_keys - one.num_queries, one.num_keys)[:, None]
        distance = torch.arange(one.num_keys)[None, :] - query_at
        if self.slopes is not None:
            logits = logits + self.slopes[:, None, None] * distance
        hidden = torch.zeros_like(distance, dtype=torch.bool)
        if config.causal:
            hidden |= distance > 0
        if config.sliding_window is not None:
            hidden |= distance.abs() >= config.sliding_window
        logits = logits.masked_fill(hidden, -torch.inf)
        if self.sinks is not None:
            column = self.sinks[:, None, None].expand(-1, one.num_queries, 1)
            logits = torch.cat([logits, column], dim=2)
        weights = logits.softmax(dim=2).nan_to_num(0.0)[:, :, : one.num_keys]
        return torch.einsum("hqk,khd->qhd", weights, value), torch.logsumexp(logits, dim=2)


def cache_spec(config: AttentionConfig, layout: Layout) -> KVCacheSpec:
    """The cache of such a config in such a layout."""
    contents = {"key": config.head_size, "value": config.v_head_size}
    if config.kind == "mla_attention":
        contents = {"latent": config.head_size}
    tensors = []
    for role, content in contents.items():
        size_of = {"head": config.num_kv_heads, "token": layout.block_size, "content": content}
        tensors.append(
            CacheTensorSpec(
                role=role,
                axes=layout.axes,
                sizes=tuple(size_of[axis] for axis in layout.axes[1:]),
                dtype=config.cache_dtype,
                stride_orders=(layout.stride_order,),
            )
        )
    return KVCacheSpec(tensors=tuple(tensors))


def make_step(config: AttentionConfig, lens: Sequence[tuple[int, int]], *, seed: int = 0) -> Step:
    """A step of sequences with so many ``(keys, queries)``, of random numbers."""
    generator = torch.Generator().manual_seed(seed)

    def rows(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    latent = config.kind == "mla_attention"
    sequences = tuple(
        Tokens(
            query=rows(queries, config.num_heads, config.head_size),
            key=rows(keys, config.head_size) if latent else rows(keys, config.num_kv_heads, config.head_size),
            value=None if latent else rows(keys, config.num_kv_heads, config.v_head_size),
        )
        for keys, queries in lens
    )
    return Step(
        config=config,
        sequences=sequences,
        sinks=rows(config.num_heads) if config.sinks else None,
        slopes=rows(config.num_heads).abs() if config.alibi else None,
    )


def assert_same(found: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Both results and both lse are equal to float64 precision."""
    torch.testing.assert_close(found[0], expected[0], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-11, atol=1e-11)
