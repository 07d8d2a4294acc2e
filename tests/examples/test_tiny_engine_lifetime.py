"""The example engine's end: it is freed, whatever failed, and its worker process never outlives it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.examples.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.long, pytest.mark.torch, pytest.mark.model, pytest.mark.plugins]

SECONDS = 2.0

ENGINE = """
import gc, sys, weakref
from examples.tiny_engine.engine import Engine
from examples.tiny_engine.interface import EngineSettings, Prompt
from hardpoint.errors import KernelError

class Watched(Engine):
    def __init__(self, settings):
        watchers.append(weakref.ref(self))
        super().__init__(settings)

watchers = []
settings = EngineSettings(model=sys.argv[1], dtype="float32")
"""
WORKER = """
import gc, sys, weakref
from examples.tiny_engine.interface import EngineSettings, Prompt
from examples.tiny_engine.worker import EngineProcess

settings = EngineSettings(model=sys.argv[1], dtype="float32")
prompts = [Prompt(text="hello", max_tokens=200)]

if __name__ == "__main__":
"""


@pytest.fixture
def broken_kernels(tmp_path: Path) -> Path:
    """A folder with the CPU's native modules, each cut off after its first bytes."""
    package = tmp_path / "site" / "hardpoint_cpu_native"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    for name in ("_amx", "_avx512_bf16", "_avx512", "_avx2", "_neon"):
        (package / f"{name}{EXTENSION_SUFFIXES[0]}").write_bytes(b"\x7fELF")
    return package.parent


@pytest.fixture
def run_script(tmp_path: Path, model: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start a script in a process of its own, with the model's path as its argument."""

    def start(script: str, *path: Path, **variables: str) -> subprocess.Popen[str]:
        file = tmp_path / "script.py"
        file.write_text(script)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HARDPOINT_")}
        variables |= {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, *path))), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [sys.executable, str(file), str(model)], stdout=subprocess.PIPE, encoding="utf-8", env=inherited | variables
        )

    return start


def output(process: subprocess.Popen[str]) -> list[str]:
    """What a script printed, once it has ended well."""
    with process:
        text, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return text.split()


def is_gone(pid: int) -> bool:
    """Whether the process has ended, be it that its new parent has not taken note of it yet."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return not Path("/proc").exists()


def assert_gone_in_time(pid: int) -> None:
    """The process ends within two seconds."""
    deadline = time.monotonic() + SECONDS
    while not is_gone(pid):
        assert time.monotonic() < deadline, "the worker is still there"
        time.sleep(0.02)


def test_an_engine_without_its_kernels_is_freed(
    run_script: Callable[..., subprocess.Popen[str]], broken_kernels: Path
) -> None:
    """An engine that lost its kernels, ran on another backend and is let go of is collected."""
    script = """
engine = Watched(settings)
assert [item.outcome for item in engine.kernels.modules if item.outcome == "broken"], engine.kernels
assert "".join(event.text for event in engine.stream([Prompt(text="hello", max_tokens=5)]))
assert watchers[0]() is engine
del engine
gc.collect()
print(watchers[0]())
"""
    assert output(run_script(ENGINE + script, broken_kernels)) == ["None"]


def test_an_engine_that_failed_to_start_is_freed(
    run_script: Callable[..., subprocess.Popen[str]], broken_kernels: Path
) -> None:
    """In strict mode the lost kernels are the error, and the half-built engine is collected once it is handled."""
    script = """
try:
    Watched(settings)
except KernelError as error:
    print("file too short" in str(error))
gc.collect()
print(watchers[0]())
"""
    assert output(run_script(ENGINE + script, broken_kernels, HARDPOINT_STRICT="1")) == ["True", "None"]


def test_a_worker_is_gone_once_its_engine_is_let_go_of(
    run_script: Callable[..., subprocess.Popen[str]], broken_kernels: Path
) -> None:
    """Dropping an engine process frees it and ends the worker, here one that lost its kernels."""
    script = """
    import os, time
    from tests.examples.test_tiny_engine_lifetime import SECONDS, is_gone

    engine = EngineProcess(settings)
    watcher, pid = weakref.ref(engine), engine.pid
    assert not is_gone(pid)
    assert "".join(event.text for event in engine.stream(prompts))
    started = time.monotonic()
    del engine
    gc.collect()
    while not is_gone(pid) and time.monotonic() < started + SECONDS:
        time.sleep(0.02)
    print(watcher(), is_gone(pid))
"""
    assert output(run_script(WORKER + script, broken_kernels)) == ["None", "True"]


@pytest.mark.skipif(os.name == "nt", reason="looks for a process as POSIX has them")
@pytest.mark.parametrize("when", ["idle", "generating", "starting"])
def test_a_worker_is_gone_once_its_parent_was_killed(
    when: str, run_script: Callable[..., subprocess.Popen[str]]
) -> None:
    """A parent that is killed takes its worker along, whatever either was doing."""
    doing = {
        "idle": "print(engine.pid, flush=True)",
        "generating": "events = engine.stream(prompts * 64); next(events); print(engine.pid, flush=True)",
        "starting": "",
    }[when]
    early = "print(multiprocessing.active_children()[0].pid, flush=True); time.sleep(600)" if when == "starting" else ""
    script = f"""
    import multiprocessing, time

    def heard(what, done):
        {early or "pass"}

    engine = EngineProcess(settings, progress=heard)
    {doing}
    time.sleep(600)
"""
    with run_script(WORKER + script) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not is_gone(pid)
        parent.kill()
        parent.wait()
        assert_gone_in_time(pid)


def test_a_worker_that_dies_is_an_error_in_its_parent(run_script: Callable[..., subprocess.Popen[str]]) -> None:
    """A worker that is killed in the middle of an answer does not leave its parent waiting."""
    script = """
    import os, signal
    from examples.tiny_engine.errors import WorkerError

    engine = EngineProcess(settings)
    try:
        for event in engine.stream(prompts):
            engine._process.kill()
    except WorkerError as error:
        print("ended" in str(error))
"""
    assert output(run_script(WORKER + script)) == ["True"]
