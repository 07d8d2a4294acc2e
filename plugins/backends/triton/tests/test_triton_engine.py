"""Selection and the example engine on a CPU, with Triton's interpreter switched on and off."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples import tiny_gguf

pytestmark = [pytest.mark.torch, pytest.mark.plugins, pytest.mark.checkout]

ROOT = Path(__file__).parents[4]
SELECT = """
import hardpoint
platform = hardpoint.platform("cpu")
config = hardpoint.AttentionConfig(head_size=16, num_heads=2, dtype="float32", block_size=4)
try:
    selection = platform.select_backend(config, "triton_attn", depth="ready")
except ValueError as error:
    import sys
    print(error, "triton" in sys.modules)
else:
    print(selection.explain())
"""


def _run(*arguments: str, **variables: str) -> str:
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("HARDPOINT_", "TRITON_"))}
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        encoding="utf-8",
        check=False,
        cwd=ROOT,
        env={**environment, "OMP_NUM_THREADS": "1", **variables},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_cpu_without_the_interpreter_refuses_triton_and_does_not_import_it() -> None:
    """The platform does not offer what the backend needs."""
    printed = _run("-c", SELECT)
    assert "attention backend triton_attn: rejected: platform cpu does not declare triton" in printed
    assert printed.endswith(" False\n")


def test_a_cpu_with_the_interpreter_is_ready() -> None:
    """Asked for by name it is prepared, and nobody else is."""
    printed = _run("-c", SELECT, TRITON_INTERPRET="1")
    assert printed.startswith("attention on cpu: triton_attn, asked for by argument (depth ready)")


@pytest.mark.model
@pytest.mark.long
def test_the_engine_writes_the_same_text(tmp_path: Path) -> None:
    """Greedy text of a small model, several prompts at once, through the interpreter and through torch."""
    model = tiny_gguf.write(tmp_path / "tiny.gguf")
    arguments = ["examples/tiny_engine", "--model", str(model), "--max-tokens", "3", "--raw"]
    arguments += ["--prompt", "One", "--prompt", "Two of them", "--dtype", "float32"]
    texts = []
    for backend in ("torch_sdpa", "triton_attn"):
        printed = _run(*arguments, "--backend", backend, TRITON_INTERPRET="1")
        texts.append(printed)
    assert texts[0] == texts[1]
    assert texts[0].strip()
