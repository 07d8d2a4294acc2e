"""What a forward allocates and what is kept."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hardpoint.attention import AttentionConfig
from hardpoint_torch_sdpa._workspace import Workspace, shared_workspace

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Records the bytes of every tensor that an operator returns in memory of its own."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.known: set[int] = set()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for argument in [*args, *(kwargs or {}).values()]:
            for tensor in argument if isinstance(argument, (list, tuple)) else [argument]:
                if isinstance(tensor, torch.Tensor):
                    self.known.add(tensor.untyped_storage().data_ptr())
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in self.known:
                self.largest = max(self.largest, tensor.untyped_storage().nbytes())
        return result


def _config(**options: Any) -> AttentionConfig:
    defaults: dict[str, Any] = {
        "head_size": 64,
        "num_heads": 8,
        "num_kv_heads": 2,
        "dtype": "float32",
        "block_size": 16,
    }
    return AttentionConfig(**defaults | options)


def test_a_decode_allocates_nothing_of_the_size_of_its_keys(random_step: Callable[..., Any]) -> None:
    """From the second step on: no repeated heads, no fresh buffer for what is gathered."""
    step = random_step(_config(), [1, 1, 1], [300, 290, 270])
    layer, plan = step.layer(), step.plan()
    layer.forward(step.query, step.key, step.value, step.cache, plan)
    with Allocations() as seen:
        layer.forward(step.query, step.key, step.value, step.cache, plan)
    keys_of_one_head = 300 * 64 * 4
    assert 0 < seen.largest < keys_of_one_head


def test_a_chunked_prefill_has_no_mask_of_all_queries_and_keys(random_step: Callable[..., Any]) -> None:
    """A mask covers some rows at a time, and with a window some keys."""
    step = random_step(_config(head_size=8, sliding_window=64), [2000], [4000])
    with Allocations() as seen:
        step.forward()
    assert seen.largest < 2000 * 4000 / 4


def test_layers_share_one_workspace_and_it_goes_with_the_last(random_step: Callable[..., Any]) -> None:
    """Nothing of an engine stays when its layers are gone."""
    step = random_step(_config(), [1, 1], [40, 30])
    first, second = step.layer(), step.layer()
    for layer in (first, second):
        layer.forward(step.query, step.key, step.value, step.cache, step.plan())
    alive = weakref.ref(shared_workspace())
    scratch = alive().take()  # type: ignore[union-attr]  # two layers hold it
    assert scratch.total_bytes > 0
    held = weakref.ref(scratch._buffers["key"])
    alive().give(scratch)  # type: ignore[union-attr]  # as above
    del scratch, layer, first
    gc.collect()
    assert alive() is not None
    del second
    gc.collect()
    assert alive() is None
    assert held() is None


def test_layers_and_plans_are_not_kept(random_step: Callable[..., Any]) -> None:
    """Not by the handles that compiled code refers to them by either, nor does a plan keep a layer."""
    step = random_step(_config(), [1, 4], [40, 30])
    layer, plan = step.layer(), step.plan()
    layer.forward(step.query, step.key, step.value, step.cache, plan)
    dead = weakref.ref(layer), weakref.ref(plan)
    del layer
    gc.collect()
    assert dead[0]() is None
    del plan
    gc.collect()
    assert dead[1]() is None


def test_calls_at_the_same_time_have_scratch_of_their_own(random_step: Callable[..., Any]) -> None:
    """Four threads with two layers get the answers that one thread gets."""
    steps = [random_step(_config(), [1, 1, 3], [200, 150, 100], seed=seed) for seed in (1, 2)]
    layers = [step.layer() for step in steps]
    wanted = [step.forward()[0] for step in steps]
    failures: list[int] = []

    def work(index: int) -> None:
        step = steps[index]
        for _ in range(20):
            out = layers[index].forward(step.query, None, None, step.cache, step.plan())
            if not torch.equal(out, wanted[index]):
                failures.append(index)

    threads = [threading.Thread(target=work, args=(number % 2,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_scratch_made_in_inference_mode_serves_outside_it(random_step: Callable[..., Any]) -> None:
    """A warm-up in inference mode must not spoil the calls that come after."""
    step = random_step(_config(), [1, 4], [40, 30])
    layer = step.layer()
    with torch.inference_mode():
        layer.forward(step.query, step.key, step.value, step.cache, step.plan())
    out = layer.forward(step.query, step.key, step.value, step.cache, step.plan())
    assert out.isfinite().all()


def test_inputs_that_want_gradients_are_taken(random_step: Callable[..., Any]) -> None:
    """The projections of a model that nobody told of inference; the result has no gradient."""
    step = random_step(_config(), [1, 4], [40, 30])
    step.query.requires_grad_()
    step.key.requires_grad_()
    out, _ = step.forward()
    assert not out.requires_grad


def test_a_scratch_grows_with_room_to_spare() -> None:
    """A context that grows by a token a step does not allocate in every step."""
    scratch = Workspace().take()
    device = torch.device("cpu")
    scratch.get("key", (100, 8), torch.float32, device)
    size = scratch.total_bytes
    scratch.get("key", (101, 8), torch.float32, device)
    assert scratch.total_bytes == size
    assert scratch.get("key", (1000, 8), torch.bfloat16, device).shape == (1000, 8)
    assert scratch.total_bytes > size
