"""The demo: what `make demo` shows is true, and it says so when it is not."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.examples.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.torch, pytest.mark.model, pytest.mark.plugins]


def demo(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the demo with further arguments for the engine."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HARDPOINT_")}
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py"), *arguments],
        capture_output=True,
        encoding="utf-8",
        check=False,
        env={**inherited, "OMP_NUM_THREADS": "1", **variables},
    )


@pytest.mark.parametrize("variables", [{}, {"HARDPOINT_STRICT": "1", "HARDPOINT_ATTENTION_BACKEND": "torch_sdpa"}])
def test_the_demo_falls_back_and_says_why(variables: dict[str, str], model: Path) -> None:
    """The broken backend is named with the loader's own words, and the closing line says what happened."""
    result = demo("--model", str(model), "--max-tokens", "8", **variables)
    assert result.returncode == 0, result.stdout + result.stderr
    warning = next(line for line in result.stderr.splitlines() if line.startswith("WARNING"))
    assert "broken_attention: failed at import: ImportError: " in warning
    assert "file too short" in warning
    assert "using torch_sdpa instead" in warning
    last = result.stdout.splitlines()[-1]
    assert last.startswith("demo: ok: 2 prompts were answered on torch_sdpa; with broken_attention preferred")


def test_a_demo_that_cannot_run_says_so(tmp_path: Path) -> None:
    """An engine that does not start is the demo's failure, in its last line and its exit code."""
    result = demo("--model", str(tmp_path / "nowhere.gguf"))
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1].startswith("demo: FAILED: the engine ended with exit code 1")


def test_a_demo_without_a_fallback_is_a_failure(model: Path) -> None:
    """Where the broken backend was never considered, the demo does not claim that it was."""
    result = demo("--model", str(model), "--max-tokens", "3", HARDPOINT_DISABLED_PLUGINS="backend/broken_attention")
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1] == "demo: FAILED: no warning says why broken_attention was not used"
