"""Whatever does not fit is a Python error, and nothing has been written then."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from hardpoint.attention import AttentionBatch, AttentionConfig, AttentionPlan
from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.attention.conformance import Step

pytestmark = pytest.mark.torch


def _config(**options: Any) -> AttentionConfig:
    defaults: dict[str, Any] = {"head_size": 32, "num_heads": 4, "num_kv_heads": 2, "dtype": "float32", "block_size": 4}
    return AttentionConfig(**defaults | options)


def _with(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], None]:
    return lambda step: setattr(step, name, change(getattr(step, name)))


def _cache(key: Callable[[torch.Tensor], Any], value: Callable[[torch.Tensor], Any]) -> Callable[[Any], None]:
    return lambda step: setattr(step, "cache", (key(step.cache[0]), value(step.cache[1])))


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _emptied(tensor: torch.Tensor) -> torch.Tensor:
    empty = tensor.clone()
    empty.untyped_storage().resize_(0)
    return empty


WRONG: dict[str, tuple[Callable[[Any], None], type[Exception], str]] = {
    "query without heads": (_with("query", lambda t: t[:, 0]), ConfigError, "expected 3 dimensions"),
    "query of other heads": (_with("query", lambda t: t[:, :3]), ConfigError, r"query of shape \(5, 3, 32\)"),
    "query of another size": (_with("query", lambda t: t[..., :16]), ConfigError, r"query of shape \(5, 4, 16\)"),
    "query of another dtype": (_with("query", torch.Tensor.double), ConfigError, "torch.float64"),
    "too few rows": (_with("query", lambda t: t[:4]), ConfigError, "at least 5"),
    "query elsewhere": (_with("query", lambda t: t.to("meta")), ConfigError, "not on the CPU"),
    "too few keys": (_with("key", lambda t: t[:4]), ConfigError, "at least 5"),
    "keys of another dtype": (_with("key", torch.Tensor.half), ConfigError, "torch.float16"),
    "values of other heads": (_with("value", lambda t: t[:, :1]), ConfigError, "value of shape"),
    "a key without a value": (lambda step: setattr(step, "value", None), ConfigError, "a key without a value"),
    "no keys at all": (lambda step: step.__dict__.update(key=None, value=None, cache=None), ConfigError, "neither new"),
    "one cache tensor": (lambda step: setattr(step, "cache", step.cache[:1]), ConfigError, "a cache of 1 tensors"),
    "caches of other axes": (_cache(lambda t: t[0], _same), ConfigError, "expected 4 dimensions"),
    "a cache of another dtype": (_cache(_same, torch.Tensor.double), ConfigError, "value cache of shape"),
    "a cache of other heads": (_cache(lambda t: t[:, :1], _same), ConfigError, "key cache of shape"),
    "other blocks": (_cache(lambda t: t[:, :, :2], lambda t: t[:, :, :2]), ConfigError, "blocks of 4 tokens"),
    "two block sizes": (_cache(_same, lambda t: t[:, :, :2]), ConfigError, "differ in blocks or block size"),
    "two numbers of blocks": (_cache(_same, lambda t: t[:-1]), ConfigError, "differ in blocks or block size"),
    "content with gaps": (
        _cache(lambda t: torch.zeros(*t.shape[:3], 2 * t.shape[3])[..., ::2], _same),
        ConfigError,
        "the content has to be dense",
    ),
    "a cache whose memory was taken": (_cache(_emptied, _same), ConfigError, "kv_cache of shape .* has no memory"),
    "no tensor": (lambda step: setattr(step, "query", step.query.tolist()), AttributeError, "has no attribute"),
}


def _contents(step: Any) -> list[bytes]:
    return [bytes(t.contiguous().view(torch.uint8).flatten().tolist()) for t in step.whole]


@pytest.fixture
def step(random_step: Callable[..., Any]) -> Any:
    """One decode and one prefill, with what they must not change."""
    step = random_step(_config(), [1, 4], [6, 4])
    step.whole = step.cache
    return step


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused_before_anything_is_written(step: Any, name: str) -> None:
    """Shape, dtype, strides and device of each tensor."""
    change, error, match = WRONG[name]
    before = _contents(step)
    change(step)
    with pytest.raises(error, match=match):
        step.forward()
    assert _contents(step) == before


@pytest.mark.parametrize("entry", [-1, 9, 1 << 30, -(1 << 31)])
def test_a_block_outside_the_cache_is_an_error(step: Any, entry: int) -> None:
    """Also where it is the last one that is read; nothing has been written then."""
    before = _contents(step)
    step.batch.block_table[0, 1] = entry
    with pytest.raises(IndexError, match="out of bounds"):
        step.forward()
    assert _contents(step) == before


@pytest.mark.parametrize("slot", [-2, 6 * 4, 1 << 40, -(1 << 62)])
def test_a_slot_outside_the_cache_is_an_error(step: Any, slot: int) -> None:
    """Not even the slots before it are written."""
    before = _contents(step)
    assert len(step.cache[0]) == 6
    step.batch.slot_mapping[4] = slot
    with pytest.raises(IndexError, match="out of bounds"):
        step.forward()
    assert _contents(step) == before


@pytest.mark.parametrize("number", [1 << 32, -(1 << 32), 9 << 40])
def test_a_table_of_64_bits_does_not_wrap(step: Any, number: int) -> None:
    """What is no block in 64 bits is none in 32, in a batch that somebody put together by hand too."""
    wide = step.batch.block_table.long()
    wide[0, 1] = number
    step.batch = replace(step.batch, block_table=wide)
    with pytest.raises(IndexError, match="out of bounds"):
        step.forward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool, torch.int16])
@pytest.mark.parametrize("name", ["block_table", "slot_mapping"])
def test_tables_and_slots_are_whole_numbers(step: Any, name: str, dtype: torch.dtype) -> None:
    """Those of another dtype are not rounded."""
    step.batch = replace(step.batch, **{name: getattr(step.batch, name).to(dtype)})
    with pytest.raises(ConfigError, match=f"{name} of .*: expected "):
        step.forward()


def test_entries_that_are_never_read_may_be_anything(random_step: Callable[..., Step]) -> None:
    """Behind the last key, and before the window."""
    step = random_step(_config(sliding_window=5), [1, 2], [30, 3])
    assert step.batch.block_table is not None
    wanted, _ = step.reference()
    step.batch.block_table[0, :6] = 1 << 30
    step.batch.block_table[1, 1:] = -7
    torch.testing.assert_close(step.forward()[0].double(), wanted, atol=2e-5, rtol=2e-5)


def test_out_and_lse_have_the_rows_of_the_query(step: Any) -> None:
    """Neither fewer nor more, nor another dtype."""
    with pytest.raises(ConfigError, match="out has 6 rows, query 5"):
        step.forward(out=torch.zeros(6, 4, 32))
    with pytest.raises(ConfigError, match=r"out of shape \(5, 4, 32\) and torch.float64"):
        step.forward(out=torch.zeros(5, 4, 32).double())


def test_a_plan_of_another_config_module_or_backend_is_refused(step: Any, random_step: Callable[..., Any]) -> None:
    """Layers share a plan only where their configs and their modules are equal."""
    other = random_step(_config(sliding_window=2), [1, 4], [6, 4])
    with pytest.raises(ConfigError, match=r"the plan was made for another config: .*sliding_window=2"):
        step.layer().forward(step.query, step.key, step.value, step.cache, other.plan())

    class Foreign(AttentionPlan):
        def update(self, batch: AttentionBatch) -> None:
            """Do nothing."""

    with pytest.raises(TypeError, match="the plan is a Foreign: expected a CpuNativePlan"):
        step.layer().forward(step.query, step.key, step.value, step.cache, Foreign())


def test_a_batch_that_lacks_something_is_refused(backend: Any) -> None:
    """Too few blocks, no slots for new keys, no cache for old keys, no blocks at all."""
    with pytest.raises(ConfigError, match="sequence 1: 9 keys need 3 blocks of 4, its block_table has 2"):
        backend.plan(_config(), AttentionBatch.build(query_lens=[1, 1], seq_lens=[3, 9], block_table=[[0, 1], [2, 3]]))
    layer = backend.create_layer(_config(), scale=1.0, device="cpu")
    query, key, cache = torch.zeros(2, 4, 32), torch.zeros(2, 2, 32), (torch.zeros(4, 2, 4, 32),) * 2
    plan = backend.plan(_config(), AttentionBatch.build(query_lens=[2], seq_lens=[3]))
    with pytest.raises(ConfigError, match="sequence 0: 2 new keys of 3, and no cache for the rest"):
        layer.forward(query, key, key, None, plan)
    plan = backend.plan(_config(), AttentionBatch.build(query_lens=[2], seq_lens=[2], block_table=[[0]]))
    with pytest.raises(ConfigError, match="2 new keys, slot_mapping has none"):
        layer.forward(query, key, key, cache, plan)
    plan = backend.plan(_config(), AttentionBatch.build(query_lens=[2], seq_lens=[2]))
    with pytest.raises(ConfigError, match=r"a cache needs batch\.block_table"):
        layer.forward(query, None, None, cache, plan)


@pytest.mark.parametrize(
    ("options", "arguments", "match"),
    [
        ({}, {"key_scale": 0.5}, "a cache of float32 has no scale"),
        ({"kv_cache_dtype": "int8"}, {"value_scale": 0.0}, "must be positive"),
        ({"kv_cache_dtype": "int8"}, {"key_scale": torch.inf}, "must be positive and finite"),
        ({}, {"scale": torch.nan}, "scale=nan: must be finite"),
        ({}, {"scale": -torch.inf}, "scale=-inf: must be finite"),
        ({"sinks": True}, {}, "sinks missing"),
        ({}, {"sinks": torch.zeros(4)}, "sinks given"),
        ({"alibi": True}, {"alibi_slopes": torch.zeros(3)}, r"expected \(4,\), floating point"),
        ({}, {"device": "meta"}, "these kernels run on the CPU"),
        ({"head_size": 24}, {}, "a multiple of 16"),
        ({"head_size": 272}, {}, "at most 256"),
        ({"dtype": "float64"}, {}, "torch.float64"),
        ({"kv_cache_dtype": "float8_e5m2"}, {}, "torch.float8_e5m2"),
    ],
)
def test_arguments_that_the_config_does_not_ask_for(
    backend: Any, options: dict[str, Any], arguments: dict[str, Any], match: str
) -> None:
    """A layer is not built from what would be wrong later."""
    with pytest.raises(ConfigError, match=match):
        backend.create_layer(_config(**options), **{"scale": 1.0, "device": "cpu", **arguments})


def test_a_cache_may_come_without_a_block_size_in_the_config(backend: Any) -> None:
    """The backend takes it from the tensors then."""
    config = _config(block_size=None)
    layer = backend.create_layer(config, scale=1.0, device="cpu")
    batch = AttentionBatch.build(query_lens=[2], seq_lens=[2], block_table=[[1]], slot_mapping=[8, 9])
    value = torch.randn(2, 2, 32)
    caches = (torch.zeros(4, 2, 8, 32), torch.zeros(4, 2, 8, 32))
    out = layer.forward(torch.zeros(2, 4, 32), value, value, caches, backend.plan(config, batch))
    # A query of zeros takes the mean of what it sees.
    torch.testing.assert_close(out[1], value.mean(0).repeat_interleave(2, dim=0))
