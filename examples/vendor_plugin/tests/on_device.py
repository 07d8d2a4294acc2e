"""What the tests look at on the device, as one process: each function is a fact, and its name the fact's."""

from __future__ import annotations

import gc
import json
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import scaled_dot_product_attention as attend

import hardpoint

if TYPE_CHECKING:
    from collections.abc import Callable

MEBIBYTE = 1 << 20
platform = hardpoint.current_platform()
ZERO, ONE = platform.torch_device(0), platform.torch_device(1)
device_module: Any = torch.get_device_module("wherrow")


def identity() -> list[object]:
    tensor = torch.zeros(2, device=ONE)
    return [platform.device_type, str(tensor.device), tensor.is_cpu, tensor.is_wherrow, device_module.device_count()]  # type: ignore[attr-defined]


def memory_is_counted() -> list[int]:
    before = device_module.memory_allocated(0)
    kept = torch.empty(MEBIBYTE, dtype=torch.uint8, device=ZERO)
    view = kept[10:20].view(2, 5)
    del kept
    held = device_module.memory_allocated(0)
    free, total = device_module.mem_get_info(0)
    usage = platform.get_current_memory_usage(0)
    del view
    gc.collect()
    return [before, held, free + held - total, (usage or 0) - held, device_module.memory_allocated(0)]


def another_device_counts_for_itself() -> list[int | None]:
    before = platform.get_current_memory_usage(0)
    there = torch.ones(MEBIBYTE, dtype=torch.uint8, device=ONE)
    return [(platform.get_current_memory_usage(0) or 0) - (before or 0), len(there)]


def memory_ends() -> list[object]:
    parts = [torch.empty(15 * MEBIBYTE, dtype=torch.uint8, device=ZERO) for _ in range(4)]
    try:
        torch.empty(20 * MEBIBYTE, dtype=torch.uint8, device=ZERO)
    except torch.OutOfMemoryError as error:
        said = str(error)
    # Neighbours that are given back are one piece again.
    del parts[1:3]
    again = torch.empty(29 * MEBIBYTE, dtype=torch.uint8, device=ZERO)
    del parts
    return [said, len(again)]


def a_view_is_the_same_memory() -> list[list[float]]:
    base = torch.zeros(2, 3, device=ZERO)
    base.t()[1].fill_(5)
    base.view(-1)[0] = 1
    base[1:, 2:].add_(7)
    unfolded = base.view(-1).unfold(0, 2, 2)
    return [base.cpu().flatten().tolist(), unfolded.cpu().flatten().tolist()]


def the_host_goes_on() -> list[object]:
    """Work waits in the queue while the host goes on, and is done in the order in which it was given."""
    gate = threading.Event()
    stream = device_module.current_stream(ZERO)
    values = torch.ones(4, device=ZERO)
    stream.launch(gate.wait)
    values.add_(1)
    values.mul_(10)
    mark = stream.record_event()
    waiting = mark.query()
    gate.set()
    mark.synchronize()
    return [waiting, mark.query(), values.cpu().tolist()]


def an_event_orders_two_streams() -> list[object]:
    gate, order = threading.Event(), []
    first, second = device_module.Stream(ZERO), device_module.Stream(ZERO)
    source, target = torch.zeros(3, device=ZERO), torch.zeros(3, device=ZERO)
    device_module.synchronize(ZERO)
    with device_module.stream(first):
        first.launch(gate.wait)
        first.launch(lambda: order.append("first"))
        source.fill_(3)
    event = first.record_event()
    second.wait_event(event)
    with device_module.stream(second):
        second.launch(lambda: order.append("second"))
        target.copy_(source)
    end = second.record_event()
    before = [event.query(), end.query(), list(order)]
    gate.set()
    end.synchronize()
    return [*before, order, target.cpu().tolist(), event.elapsed_time(end) >= 0]


def streams_without_an_event_are_independent() -> list[object]:
    gate = threading.Event()
    held, free = device_module.Stream(ZERO), device_module.Stream(ZERO)
    held.launch(gate.wait)
    ran = free.run(lambda: "ran")
    gate.set()
    device_module.synchronize(ZERO)
    return [ran]


def queued_work_keeps_its_memory() -> list[object]:
    """A tensor that nobody has any more is not given away before the work on it is done."""
    gate = threading.Event()
    stream = device_module.current_stream(ZERO)
    source, target = torch.full((1024,), 2.0, device=ZERO), torch.zeros(1024, device=ZERO)
    stream.synchronize()
    stream.launch(gate.wait)
    target.copy_(source)
    del source
    with device_module.stream(device_module.Stream(ZERO)):
        for _ in range(8):
            torch.zeros(1024, device=ZERO)
        device_module.current_stream(ZERO).synchronize()
    gate.set()
    return [sorted(set(target.tolist()))]


def failed_work_is_told_to_whoever_waits() -> list[object]:
    stream = device_module.Stream(ZERO)
    ran = []
    stream.launch(lambda: 1 // 0)
    stream.launch(lambda: ran.append(1))
    try:
        stream.synchronize()
    except RuntimeError as error:
        said = str(error)
    stream.launch(lambda: ran.append(2))
    stream.synchronize()
    return [said, ran]


def a_hosts_tensor_is_not_there() -> list[object]:
    there = torch.ones(3, device=ZERO)
    said = []
    here = torch.ones(3)
    works: list[Callable[[], object]] = [
        lambda: there + here,
        lambda: there.add_(here),
        lambda: torch.cat([there, here]),
    ]
    for work in works:
        try:
            work()
        except RuntimeError as error:
            said.append(type(error).__name__)
    return [said, (there + torch.tensor(2.0)).tolist()]


def drawing_repeats() -> list[bool]:
    host = torch.random.get_rng_state()
    platform.manual_seed_all(3)
    one = torch.randn(8, device=ZERO)
    platform.manual_seed_all(3)
    two, three = torch.randn(8, device=ZERO), torch.randn(8, device=ZERO)
    return [torch.equal(one, two), torch.equal(two, three), torch.equal(host, torch.random.get_rng_state())]


def copies_go_everywhere() -> list[object]:
    here = torch.arange(6).view(2, 3)
    there = here.to(ZERO)
    other = there.to(ONE, torch.bfloat16)
    there.copy_(torch.tensor([7]))
    back = torch.empty(2, 3, device="cpu")
    back.copy_(other.t().contiguous().t())
    return [there.tolist(), str(other.device), back.tolist(), other.to(ONE) is other]


def a_resized_tensor_keeps_its_numbers() -> list[object]:
    tensor = torch.arange(4.0, device=ZERO)
    tensor.resize_(1000)
    part = tensor[:4].tolist()
    tensor.resize_(2, 2)
    return [part, tensor.tolist(), torch.nonzero(tensor > 1).tolist()]


OPERATORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "add": lambda x: x + 2,
    "matmul": lambda x: x @ x.mT,
    "bfloat16": lambda x: (x.bfloat16() @ x.bfloat16().mT).float(),
    "softmax": lambda x: x.softmax(-1),
    "norm": lambda x: torch.nn.functional.rms_norm(x, (x.shape[-1],)),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (x.shape[-1],)),
    "linear": lambda x: torch.nn.functional.linear(x, x, x[:, 0]),
    "silu": torch.nn.functional.silu,
    "attention": lambda x: attend(x[None, None], x[None, None], x[None, None]),
    "cat": lambda x: torch.cat((x, x[:, :1]), 1),
    "stack": lambda x: torch.stack((x, -x)),
    "arange": lambda x: torch.arange(len(x), device=x.device).float() + x[:, 0],
    "index": lambda x: x[torch.tensor([1, 0], device=x.device)],
    "masked": lambda x: x[x > 0],
    "where": lambda x: torch.where(x > 0, x, torch.zeros((), device=x.device)),
    "sort": lambda x: x.sort(-1).values,
    "topk": lambda x: x.topk(2).values,
    "max": lambda x: x.max(-1).values,
    "sum": lambda x: x.double().sum((0, 1)),
    "cumsum": lambda x: x.cumsum(0),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "put": lambda x: x.clone().index_put_((torch.tensor([0], device=x.device),), x[1:2]),
    "scatter": lambda x: torch.zeros_like(x).scatter_(1, x[:, :1].long().abs() % 2, 1.0),
    "remainder": lambda x: (x * 10).int() % 3,
    "embedding": lambda x: torch.nn.functional.embedding(torch.tensor([1, 1], device=x.device), x),
    "strided": lambda x: x.repeat(2, 2)[::2, 1::2].contiguous(),
    "logsumexp": lambda x: x.logsumexp(-1),
    "empty": lambda x: x[:0].sum() + x.new_zeros(0, 3).add_(1).numel(),
}


def operators_agree_with_the_host() -> dict[str, float]:
    here = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    found = {}
    for name, operator in OPERATORS.items():
        expected, got = operator(here), operator(here.to(ZERO))
        alike = got.device == ZERO and got.shape == expected.shape and got.dtype == expected.dtype
        difference = (got.cpu().double() - expected.double()).abs()
        found[name] = float(difference.max() if difference.numel() else 0) if alike else -1.0
    return found


FACTS: tuple[Callable[[], object], ...] = (
    identity,
    memory_is_counted,
    another_device_counts_for_itself,
    memory_ends,
    a_view_is_the_same_memory,
    the_host_goes_on,
    an_event_orders_two_streams,
    streams_without_an_event_are_independent,
    queued_work_keeps_its_memory,
    failed_work_is_told_to_whoever_waits,
    a_hosts_tensor_is_not_there,
    drawing_repeats,
    copies_go_everywhere,
    a_resized_tensor_keeps_its_numbers,
    operators_agree_with_the_host,
)

if __name__ == "__main__":
    torch.manual_seed(0)
    with platform.inference_mode():
        print(json.dumps({fact.__name__: fact() for fact in FACTS}))
