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


FOREIGN = """
import dataclasses, os
from hardpoint.hookspecs import PlatformSpec, Rank, hookimpl

print("foreign: process", os.getpid())

class Platform:
    @hookimpl
    def hardpoint_platform(self):
        return PlatformSpec(api=(1, 0), target="foreign.platform:ForeignPlatform", rank=Rank.VENDOR)

    @hookimpl
    def hardpoint_detect(self, machine):
        from hardpoint_cpu.plugin import plugin as cpu
        return cpu.hardpoint_detect(machine)

class Backend:
    @hookimpl
    def hardpoint_backend(self):
        from hardpoint_torch_sdpa.plugin import plugin as ours
        return dataclasses.replace(ours.hardpoint_backend(), platforms=("foreign",), torch_features=())

platform = Platform()
backend = Backend()
"""
FOREIGN_PLATFORM = """
from hardpoint_cpu.platform import CpuPlatform

class ForeignPlatform(CpuPlatform):
    name = "foreign"
    torch_features = frozenset()
"""


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


def test_the_closing_line_comes_last(tmp_path: Path) -> None:
    """The engine's own, on standard error, stands behind the texts also where both go into one pipe."""
    engine = tmp_path / "engine.py"
    engine.write_text(
        "import sys, time\n"
        "print('WARNING: first', file=sys.stderr)\n"
        "print('cpu (A CPU), float32, attention by plain: fastest; 2 tokens', file=sys.stderr)\n"
        "time.sleep(0.2)\n"
        "print('[1] a text')\n"
    )
    code = (
        f"from pathlib import Path; from examples import demo; demo.ENGINE = Path({str(engine)!r}); demo.run_engine([])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True, text=True, cwd=ROOT
    )
    assert [line[:3] for line in result.stdout.splitlines()] == ["WAR", "[1]", "cpu"]


def test_a_demo_that_cannot_run_says_so(tmp_path: Path) -> None:
    """An engine that does not start is the demo's failure, in its last line and its exit code."""
    result = demo("--model", str(tmp_path / "nowhere.gguf"))
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1].startswith("demo: FAILED: the engine ended with exit code 1")


def test_a_demo_without_a_fallback_is_a_failure(model: Path) -> None:
    """Where the broken backend was never considered, the demo does not claim that it was."""
    result = demo("--model", str(model), "--max-tokens", "3", HARDPOINT_DISABLED_PLUGINS="backend/broken_attention")
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1] == (
        "demo: FAILED: no warning says why broken_attention was not used; "
        "HARDPOINT_DISABLED_PLUGINS may leave it out: unset it for the demo"
    )


def test_a_demo_beside_a_foreign_plugin(model: Path, tmp_path: Path) -> None:
    """On a vendor's platform without torch features, whose plugin prints something, all is shown as elsewhere."""
    package, info = tmp_path / "foreign", tmp_path / "foreign-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text(FOREIGN)
    (package / "platform.py").write_text(FOREIGN_PLATFORM)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[hardpoint.platforms]\nforeign = foreign:platform\n[hardpoint.backends]\nforeign = foreign:backend\n"
    )
    result = demo("--model", str(model), "--max-tokens", "4", PYTHONPATH=str(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "broken_attention: failed at import" in result.stderr
    assert result.stdout.splitlines()[-1].startswith("demo: ok: 2 prompts were answered on foreign; ")
