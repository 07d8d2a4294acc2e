"""Selecting among 33 backends that need no import, and asking again, beside what look-ups cost elsewhere.

    python benchmarks/selection.py [--rounds 15] [--installed]

The 33 are registered in this process and are ordered by name; 32 refuse the configuration by their declared support
and the last takes it, so that every candidate is evaluated. "new" is a configuration that was never asked for, "equal"
one that is built anew and equals a known one, "held" the very same object again. All sides run interleaved in one
process, in CPU time, which a busy machine disturbs less. Medians and minima; only the ratios travel.

--installed measures the plugins of this repository that are installed instead, on simulated devices with every kernel
library: a request that the first rank takes, and one that all but the last refuse.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import os
import statistics
import time
from typing import TYPE_CHECKING, Any

import pluggy

import hardpoint
from hardpoint.attention import ANYTHING, AttentionSupport, AttentionVariant, OneOf
from hardpoint.hookspecs import BackendSpec, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable

    from hardpoint.platforms import Platform

CANDIDATES = 33
BUDGET_NEW_MICROSECONDS = 300.0
BUDGET_HELD_MICROSECONDS = 2.0
HOOK_CALL_MICROSECONDS = 12.9

_lengths = itertools.count(100_000)


class Plugin:
    """A backend plugin that takes some head sizes only. Its target is never imported."""

    def __init__(self, head_sizes: tuple[int, ...], requires: tuple[str, ...]) -> None:
        self.head_sizes = head_sizes
        self.requires = requires

    @hookimpl
    def hardpoint_backend(self) -> BackendSpec:
        variant = AttentionVariant(
            head_size=OneOf(*self.head_sizes),
            dtype=ANYTHING,
            num_kv_heads=ANYTHING,
            block_size=ANYTHING,
            max_model_len=ANYTHING,
        )
        return BackendSpec(
            api=(1, 0),
            kind="attention",
            platforms=("torch-device",),
            target="nowhere:Backend",
            requires=self.requires,
            support=AttentionSupport((variant,)),
        )


def prepare(requires: tuple[str, ...] = ()) -> Platform:
    """A fresh CPU platform with the 33 backends and no other."""
    names = [f"candidate_{number:02}" for number in range(CANDIDATES)]
    os.environ["HARDPOINT_PLUGINS"] = ",".join(["platform/cpu", *(f"backend/{name}" for name in names)])
    hardpoint.reset()
    for name in names:
        taken = (64, 128) if name == names[-1] else (96, 192)
        hardpoint.register("backend", name, Plugin(taken, requires))
    platform = hardpoint.platform("cpu")
    chosen = platform.select_backend(new_config(), depth="static")
    assert chosen.backend == names[-1]
    refused = [item for item in chosen.candidates if item.outcome is hardpoint.Outcome.REJECTED]
    assert len(refused) == CANDIDATES - 1  # all were really evaluated
    return platform


def new_config() -> hardpoint.AttentionConfig:
    return config(next(_lengths))


def config(max_model_len: int = 4096) -> hardpoint.AttentionConfig:
    return hardpoint.AttentionConfig(
        head_size=128, num_heads=32, num_kv_heads=8, dtype="bfloat16", block_size=16, max_model_len=max_model_len
    )


def hook_call() -> Callable[[], object]:
    """A pluggy hook that 33 plugins implement."""
    spec, impl = pluggy.HookspecMarker("benchmark"), pluggy.HookimplMarker("benchmark")

    class Specification:
        @spec
        def validate(self, config: object) -> None: ...

    class Implementation:
        @impl
        def validate(self, config: object) -> str:
            return "no"

    manager = pluggy.PluginManager("benchmark")
    manager.add_hookspecs(Specification)
    for _ in range(CANDIDATES):
        manager.register(Implementation())
    held = config()
    return lambda: manager.hook.validate(config=held)


def cached_call() -> Callable[[], object]:
    """A memoised function of a frozen dataclass, as an engine would write it."""

    @functools.lru_cache
    def choose(config: hardpoint.AttentionConfig) -> str:
        return f"candidate for {config.kind}"

    held = config()
    return lambda: choose(held)


def microseconds(call: Callable[[], object], calls: int) -> float:
    started = time.thread_time_ns()
    for _ in range(calls):
        call()
    return (time.thread_time_ns() - started) / calls / 1000


def new_ones(requires: tuple[str, ...], calls: int) -> float:
    """Selections for configurations that are not known yet; the platform is fresh, and building it is not counted."""
    platform = prepare(requires)
    configs = [new_config() for _ in range(calls)]
    started = time.thread_time_ns()
    for item in configs:
        platform.select_backend(item, depth="static")
    return (time.thread_time_ns() - started) / calls / 1000


LIBRARIES = {
    "torch": "2.13.0",
    "triton": "3.5.0",
    "flash-attn": "2.8.3",
    "flash-attn-3": "3.0.0b1",
    "flash-attn-4": "4.0.0b36",
    "flashinfer-python": "0.7.4",
    "amd-aiter": "0.1.7",
}


def installed_ones(device: str, changes: dict[str, Any]) -> float:
    """New selections among the installed plugins, on a simulated device."""
    platform = hardpoint.resolve(machine=hardpoint.simulate(device, distributions=LIBRARIES)).platform
    configs = [dataclasses.replace(new_config(), **changes) for _ in range(51)]
    platform.select_backend(configs.pop(), depth="static")
    started = time.thread_time_ns()
    for item in configs:
        platform.select_backend(item, depth="static")
    return (time.thread_time_ns() - started) / len(configs) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--installed", action="store_true")
    options = parser.parse_args()
    if options.installed:
        asked: dict[str, dict[str, Any]] = {  # Any: fields of several types
            "taken": {},
            "refused": {"dtype": "float64", "head_size": 520, "v_head_size": 520},
        }
        sides: dict[str, Callable[[], float]] = {
            f"{device}, {name}": functools.partial(installed_ones, device, changes)
            for device in ("h100", "b200", "mi300x", "t4", "amx")
            for name, changes in asked.items()
        }
        sides["a hook call, 33 implementations"] = functools.partial(microseconds, hook_call(), 2000)
        show(sides, options.rounds, dict.fromkeys(list(sides)[:-1], BUDGET_NEW_MICROSECONDS))
        return
    platform = prepare()
    held = config()
    platform.select_backend(held, depth="static")
    table = {"config": "candidate"}
    sides = {
        "new": lambda: new_ones((), 50),
        "new, each requires a package": lambda: new_ones(("pluggy>=1.7",), 50),
        "held": lambda: microseconds(lambda: platform.select_backend(held, depth="static"), 5000),
        "equal, with building it": lambda: microseconds(
            lambda: platform.select_backend(config(), depth="static"), 1000
        ),
        "building a config": lambda: microseconds(config, 1000),
        "a hook call, 33 implementations": functools.partial(microseconds, hook_call(), 2000),
        "lru_cache hit, frozen dataclass": functools.partial(microseconds, cached_call(), 5000),
        "dict look-up, str": lambda: microseconds(lambda: table["config"], 5000),
    }
    show(sides, options.rounds, {"new": BUDGET_NEW_MICROSECONDS, "held": BUDGET_HELD_MICROSECONDS})


def show(sides: dict[str, Callable[[], float]], rounds: int, budgets: dict[str, float]) -> None:
    """Run all sides in every round, and print what each took."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            taken[name].append(side())
    hook = min(taken["a hook call, 33 implementations"])
    print(f"{'':34}{'median µs':>10}{'min µs':>9}{'/ hook call':>13}")
    for name, values in taken.items():
        print(f"{name:34}{statistics.median(values):10.2f}{min(values):9.2f}{min(values) / hook:13.3f}")
    # The budgets were set where such a hook call takes 12.9 µs; here everything is that much slower or faster.
    speed = hook / HOOK_CALL_MICROSECONDS
    for name, budget in budgets.items():
        least = min(taken[name])
        print(f"{name}: {least / speed:.2f} µs at the budget's speed, of {budget:g}: ", end="")
        print("held" if least / speed <= budget else "MISSED")


if __name__ == "__main__":
    main()
