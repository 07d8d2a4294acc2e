"""The example engine with a small random model: batches, chunks and blocks change no token, and draws repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

    from examples.tiny_engine.engine import Engine
    from hardpoint.attention import AttentionBatch, AttentionConfig, AttentionPlan

pytestmark = [pytest.mark.torch, pytest.mark.model, pytest.mark.plugins]

PROMPTS = ("the cat", "a much longer prompt, which takes several chunks", "x", "the the the the")


def make(model: Path, **settings: int | str | tuple[str, ...] | None) -> Engine:
    """An engine in float32."""
    from examples.tiny_engine.engine import Engine
    from examples.tiny_engine.interface import EngineSettings

    return Engine(EngineSettings(model=str(model), dtype="float32", **settings))  # type: ignore[arg-type]  # by name


def texts(engine: Engine, prompts: Sequence[str] = PROMPTS, temperature: float = 0.0) -> list[str]:
    """The answers to prompts that run together."""
    from examples.tiny_engine.interface import Prompt

    found = [""] * len(prompts)
    for event in engine.stream([Prompt(text=text, max_tokens=24, temperature=temperature) for text in prompts]):
        assert event.error is None
        found[event.prompt] += event.text
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {"block_size": 1},
        {"block_size": 7},
        {"block_size": 16, "max_step_tokens": 5},
        {"block_size": 4, "num_blocks": 20, "max_step_tokens": 9},
        {"block_size": 64, "max_running": 1},
    ],
    ids=str,
)
def test_how_the_work_is_cut_changes_no_text(settings: dict[str, int], model: Path) -> None:
    """Block size, budget, preemption and batch are the engine's own business."""
    assert texts(make(model, **settings)) == texts(make(model))


def test_each_layer_kind_is_selected_once_and_ready(model: Path) -> None:
    """All layers of the model ask the same, so there is one selection, and its backend was prepared to run."""
    engine = make(model)
    ((config, selection),) = engine.selections.items()
    assert (config.head_size, config.num_heads, config.num_kv_heads, config.block_size) == (8, 4, 2, 16)
    assert selection.depth == "ready"


def test_one_plan_is_made_per_step(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan serves every layer of the step."""
    engine = make(model)
    (selection,) = engine.selections.values()
    backend = selection.load()
    planned = []
    original = backend.plan

    def plan(config: AttentionConfig, batch: AttentionBatch) -> AttentionPlan:
        planned.append(batch)
        return original(config, batch)

    monkeypatch.setattr(backend, "plan", plan)
    request = engine.add([1, 2, 3], max_tokens=5, stop_tokens=())
    while engine.scheduler.unfinished:
        engine.step()
    assert (len(planned), len(request.output)) == (5, 5)


def test_draws_repeat_and_do_not_depend_on_the_batch(model: Path) -> None:
    """At a temperature, the same seed gives the same text, alone and among others; another one differs from greedy."""
    together = texts(make(model), temperature=1.0)
    assert [texts(make(model), [prompt], temperature=1.0)[0] for prompt in PROMPTS[:2]] == together[:2]
    assert together != texts(make(model))


def test_draws_follow_the_logits() -> None:
    """The frequency of a token is its probability."""
    import torch

    from examples.tiny_engine.sampling import sample
    from examples.tiny_engine.scheduler import Request

    probabilities = torch.tensor([0.7, 0.2, 0.1])
    requests = [
        Request(number=0, tokens=[0], prompt_len=1, max_tokens=1, temperature=2.0, seed=seed) for seed in range(2000)
    ]
    counts = torch.bincount(torch.tensor(sample((probabilities.log() * 2).repeat(2000, 1), requests)), minlength=3)
    assert torch.allclose(counts / 2000, probabilities, atol=0.04)


def test_a_finished_requests_logits_are_not_computed(model: Path) -> None:
    """The vocabulary is multiplied out for the rows that sample, not for every token of a prompt."""
    from examples.tiny_engine.engine import Engine
    from examples.tiny_engine.interface import EngineSettings
    from examples.tiny_engine.sampling import sample

    shapes = []

    def look(logits: torch.Tensor, requests: Sequence[object]) -> list[int]:
        shapes.append((logits.shape[0], len(requests)))
        return sample(logits, requests)  # type: ignore[arg-type]  # they are requests

    engine = Engine(EngineSettings(model=str(model), dtype="float32", max_step_tokens=8), sampler=look)
    engine.add([1] * 20, max_tokens=2, stop_tokens=())
    while engine.scheduler.unfinished:
        engine.step()
    assert shapes == [(0, 0), (0, 0), (1, 1), (1, 1)]


@pytest.mark.long
@pytest.mark.compiler
@pytest.mark.parametrize("settings", [{"block_size": 16}, {"block_size": 16, "max_step_tokens": 9}], ids=str)
def test_every_backend_that_runs_here_writes_the_same(settings: dict[str, int], model: Path) -> None:
    """Greedy text does not depend on who attends."""
    written = {
        backend: texts(make(model, backend=(backend,), **settings)) for backend in ("torch_sdpa", "flex_attention")
    }
    assert written["flex_attention"] == written["torch_sdpa"]
