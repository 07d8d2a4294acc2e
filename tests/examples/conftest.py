"""Fixtures of the examples' tests: a model that loads at once, and the engine's command line as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.examples import tiny_gguf

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]


class RunEngine(Protocol):
    """See `run_engine`."""

    def __call__(
        self, *arguments: str, python: Sequence[str] = (), path: str | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with random weights."""
    return tiny_gguf.write(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def run_engine(tmp_path: Path) -> RunEngine:
    """Run ``python examples/tiny_engine`` from another folder; `path` is its PYTHONPATH, `python` options of Python."""

    def run(
        *arguments: str, python: Sequence[str] = (), path: str | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HARDPOINT_")}
        if path is not None:
            environment["PYTHONPATH"] = path
        return subprocess.run(
            [sys.executable, *python, str(ROOT / "examples" / "tiny_engine"), *arguments],
            capture_output=True,
            encoding="utf-8",
            check=False,
            cwd=tmp_path,
            env={**environment, "OMP_NUM_THREADS": "1", **variables},
        )

    return run
