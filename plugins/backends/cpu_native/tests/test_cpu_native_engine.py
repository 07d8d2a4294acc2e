"""The example engine with its real weights: which backend attends changes no text."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.model, pytest.mark.plugins, pytest.mark.checkout, pytest.mark.long]

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):",
    "Once upon a time there was a small harbour town, and in it an old woman who repaired radios. One day",
)


def answers(backend: str) -> list[str]:
    """The greedy answers to prompts that run together, in float32."""
    from examples.tiny_engine.engine import Engine
    from examples.tiny_engine.interface import EngineSettings, Prompt
    from examples.tiny_engine.weights import default_path

    engine = Engine(EngineSettings(model=default_path(), dtype="float32", backend=(backend,)))
    assert {selection.backend for selection in engine.selections.values()} == {backend}
    found = [""] * len(PROMPTS)
    for event in engine.stream([Prompt(text=text, max_tokens=32, temperature=0.0) for text in PROMPTS]):
        assert event.error is None
        found[event.prompt] += event.text
    return found


def test_the_same_greedy_text_as_on_torch_sdpa() -> None:
    """Prefill and decode of three prompts at once."""
    assert answers("cpu_native") == answers("torch_sdpa")
