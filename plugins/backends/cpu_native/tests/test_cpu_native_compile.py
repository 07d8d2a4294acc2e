"""Under `torch.compile` a layer's forward is one opaque operator; outside it no operator is involved."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from hardpoint.attention import AttentionConfig, _handles

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

CONFIG = AttentionConfig(head_size=16, num_heads=4, num_kv_heads=2, dtype="float32", block_size=4)


class Graphs:
    """A compiler that runs what it is given and keeps its operators."""

    def __init__(self) -> None:
        self.operators: list[list[str]] = []

    def __call__(self, graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        self.operators.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward


@pytest.mark.parametrize("return_lse", [False, True])
def test_compiled_code_holds_one_operator_and_serves_every_step(
    random_step: Callable[..., Any], return_lse: bool
) -> None:
    """The next step's plan needs no new compilation, and the results are those of the eager call."""
    torch._dynamo.reset()
    graphs = Graphs()
    steps = [random_step(CONFIG, [1, 4, 2], [9, 4, 5 + number], seed=number) for number in range(3)]
    layer = steps[0].layer()

    def model(step: Any, plan: Any) -> Any:
        return layer.forward(step.query * 1.0, step.key, step.value, step.cache, plan, return_lse=return_lse)

    compiled = torch.compile(model, backend=graphs, fullgraph=True)
    for step in steps:
        found, wanted = compiled(step, step.plan()), model(step, step.plan())
        assert isinstance(found, tuple) == return_lse
        for ours, theirs in zip(found if return_lse else [found], wanted if return_lse else [wanted], strict=True):
            torch.testing.assert_close(ours, theirs)
    assert len(graphs.operators) == 1
    assert [name for name in graphs.operators[0] if "hardpoint" in name] == ["hardpoint.attention.default"]


def test_the_operator_declares_what_it_changes(random_step: Callable[..., Any]) -> None:
    """Functionalised, as the inductor would have it, the cache and the result still change in place."""
    torch._dynamo.reset()
    step = random_step(CONFIG, [1, 4], [9, 4])
    wanted, _ = step.reference()
    layer, plan = step.layer(), step.plan()
    before = step.cache[0].clone()
    compiled: Callable[..., Any] = torch.compile(layer.forward, backend="aot_eager", fullgraph=True)
    out = compiled(step.query, step.key, step.value, step.cache, plan)
    torch.testing.assert_close(out.double(), wanted, atol=2e-5, rtol=2e-5)
    assert not torch.equal(before.nan_to_num(), step.cache[0].nan_to_num())


def test_compiled_code_without_a_cache(random_step: Callable[..., Any]) -> None:
    """No cache tensor is an empty list to the operator."""
    torch._dynamo.reset()
    step = random_step(
        AttentionConfig(head_size=16, num_heads=4, dtype="float32", attention_type="encoder_only"), [3, 2], [3, 2]
    )
    wanted, _ = step.reference()
    compiled: Callable[..., Any] = torch.compile(step.layer().forward, backend="eager", fullgraph=True)
    out = compiled(step.query, step.key, step.value, None, step.plan())
    torch.testing.assert_close(out.double(), wanted, atol=2e-5, rtol=2e-5)


def test_a_handle_of_something_gone_says_so() -> None:
    """A compiled graph that outlives its layer gets an error, not another layer's numbers."""

    class Thing:
        pass

    thing = Thing()
    number = _handles.register(thing)
    assert _handles.find(number) is thing
    del thing
    gc.collect()
    with pytest.raises(LookupError, match=f"handle {number}: the layer or plan .* is gone"):
        _handles.find(number)


def test_an_eager_step_registers_no_operator() -> None:
    """A process that never compiles does not pay for it."""
    program = """
import sys, torch
from hardpoint.attention import AttentionConfig
from hardpoint_cpu_native.backend import CpuNativeBackend
CpuNativeBackend.prepare(AttentionConfig(head_size=16, num_heads=2, dtype="float32", block_size=4), "cpu")
assert "hardpoint.attention._kernel_operator" not in sys.modules
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
