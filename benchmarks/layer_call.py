"""A call through the chosen layer, beside calling its function, a pluggy hook and a torch operator.

    python benchmarks/layer_call.py [--rounds 15]

The layer is a registered backend's whose `forward` hands its arguments to a function, as a real one hands them to a
kernel: a function that does nothing, and torch's scaled_dot_product_attention for one tiny query. What a call costs
beyond that function is one Python method, the backend's own; Hardpoint adds nothing, for the engine holds the layer.
All sides run interleaved in one process, in CPU time, on one thread. Medians and minima; only the ratios travel.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import TYPE_CHECKING, Any

import pluggy
import torch
from torch.nn.functional import scaled_dot_product_attention

import hardpoint
from hardpoint.attention import (
    ANYTHING,
    AttentionBackend,
    AttentionLayer,
    AttentionPlan,
    AttentionSupport,
    AttentionVariant,
    KVCacheSpec,
)
from hardpoint.hookspecs import BackendSpec, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable


def nothing(query: torch.Tensor, _key: torch.Tensor, _value: torch.Tensor) -> torch.Tensor:
    return query


class Plan(AttentionPlan):
    def update(self, batch: object) -> None:
        pass


class Layer(AttentionLayer):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        self.function = function

    def forward(
        self, query: object, key: object, value: object, kv_cache: object, plan: object, **options: object
    ) -> torch.Tensor:
        return self.function(query, key, value)


class Backend(AttentionBackend):
    function: Callable[..., torch.Tensor] = staticmethod(nothing)

    @classmethod
    def kv_cache_spec(cls, config: hardpoint.AttentionConfig) -> KVCacheSpec:
        raise NotImplementedError

    @classmethod
    def create_layer(cls, config: hardpoint.AttentionConfig, **arguments: object) -> Layer:
        return Layer(cls.function)

    @classmethod
    def plan(cls, config: hardpoint.AttentionConfig, batch: object) -> Plan:
        return Plan()


class Plugin:
    @hookimpl
    def hardpoint_backend(self) -> BackendSpec:
        variant = AttentionVariant(head_size=ANYTHING, dtype=ANYTHING)
        return BackendSpec(
            api=(1, 0),
            kind="attention",
            platforms=("torch-device",),
            target=f"{__name__}:Backend",
            support=AttentionSupport((variant,)),
        )


def chosen_layer(function: Callable[..., torch.Tensor]) -> AttentionLayer:
    """The whole way of an engine: resolve, select, load, create."""
    Backend.function = staticmethod(function)
    config = hardpoint.AttentionConfig(head_size=8, num_heads=1, dtype="float32")
    selection = hardpoint.current_platform().select_backend(config)
    assert selection.backend == "measured"
    return selection.load().create_layer(config, scale=1.0, device="cpu")


def hook() -> Callable[..., Any]:
    spec, impl = pluggy.HookspecMarker("benchmark"), pluggy.HookimplMarker("benchmark")

    class Specification:
        @spec(firstresult=True)
        def forward(self, query: object, key: object, value: object) -> object: ...

    class Implementation:
        @impl
        def forward(self, query: object, key: object, value: object) -> object:
            return query

    manager = pluggy.PluginManager("benchmark")
    manager.add_hookspecs(Specification)
    manager.register(Implementation())
    called: Callable[..., Any] = manager.hook.forward
    return called


@torch.library.custom_op("hardpoint_benchmark::attend", mutates_args=())
def operator(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return scaled_dot_product_attention(query, key, value)


def nanoseconds(call: Callable[[], object], calls: int) -> float:
    started = time.thread_time_ns()
    for _ in range(calls):
        call()
    return (time.thread_time_ns() - started) / calls


def show(title: str, sides: dict[str, Callable[[], object]], rounds: int, calls: int) -> None:
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            taken[name].append(nanoseconds(side, calls))
    direct = min(taken["direct"])
    print(f"{title:34}{'median ns':>10}{'min ns':>9}{'/ direct':>10}")
    for name, values in taken.items():
        print(f"  {name:32}{statistics.median(values):10.0f}{min(values):9.0f}{min(values) / direct:10.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["HARDPOINT_PLUGINS"] = "platform/cpu,backend/measured"
    hardpoint.register("backend", "measured", Plugin())
    query = torch.randn(1, 1, 8)
    plan = Plan()

    idle, busy = chosen_layer(nothing), chosen_layer(scaled_dot_product_attention)
    by_hand = Layer(nothing)
    called = hook()
    show(
        "a function that does nothing",
        {
            "direct": lambda: nothing(query, query, query),
            "the same class, made by hand": lambda: by_hand.forward(query, query, query, None, plan),
            "the chosen layer": lambda: idle.forward(query, query, query, None, plan),
            "a pluggy hook": lambda: called(query=query, key=query, value=query),
        },
        options.rounds,
        20_000,
    )
    with torch.inference_mode():
        show(
            "torch's attention, one tiny query",
            {
                "direct": lambda: scaled_dot_product_attention(query, query, query),
                "the chosen layer": lambda: busy.forward(query, query, query, None, plan),
                "a torch custom operator": lambda: operator(query, query, query),
            },
            options.rounds,
            2_000,
        )


if __name__ == "__main__":
    main()
