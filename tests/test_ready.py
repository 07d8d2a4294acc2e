"""Depth `ready`: what the first forward needs is really opened and really compiled, and its loss is an ordinary one."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.processes import open_to_all

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugins import Site

pytestmark = pytest.mark.skipif(not hasattr(os, "setuid"), reason="permissions as POSIX has them")

NOBODY = 12345

# A backend that compiles a C function into the cache directory and loads it, as kernel packages do.
PREPARE = """
import ctypes, os
from hardpoint import LiveMachine
from hardpoint._cache_directory import make_cache_directory
machine = LiveMachine()
folder = make_cache_directory(machine)
source, library = os.path.join(folder, "kernel.c"), os.path.join(folder, "kernel.so")
with open(source, "w") as file:
    file.write("int answer(void) { return 42; }")
compiler = machine.find_tool("cc")
if compiler is None:
    raise EnvironmentFailure("no C compiler on PATH", code="compiler", remedy="apt install gcc")
done = machine.run_tool([compiler, "-shared", "-fPIC", "-o", library, source], timeout_seconds=60)
if done.returncode:
    raise EnvironmentFailure(done.stderr, code="compiler")
if ctypes.CDLL(library).answer() != 42:
    raise RuntimeError("the kernel is wrong")
"""

PROGRAM = """
import logging, os, sys
import hardpoint
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
platform = hardpoint.current_platform()
config = hardpoint.AttentionConfig(head_size=64, num_heads=2, dtype="float32", block_size=16)
if len(sys.argv) > 1:
    # The folders of Python and of hardpoint may be closed to the other user: what is needed is imported first.
    import ctypes, importlib, pkgutil, stat, subprocess, traceback
    for module in pkgutil.walk_packages(hardpoint.__path__, "hardpoint."):
        importlib.import_module(module.name)
    platform.import_kernels()
    platform.select_backend(config)
    os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
selection = platform.select_backend(config, depth="ready")
print("selected", selection.backend)
print("code", selection.candidates[0].reasons[0].code if selection.candidates[0].reasons else "none")
"""


def run(site: Site, cache: Path, *arguments: str, **variables: str) -> str:
    """Select at depth ready in a process of its own, and return what it printed."""
    site.platform("fake", priorities="BackendPriority('jit', 'compiles'), BackendPriority('plain', 'needs nothing')")
    site.backend("jit", prepare=PREPARE)
    site.backend("plain")
    environment = {**os.environ, "HARDPOINT_CACHE_DIR": str(cache), **variables}
    environment["PYTHONPATH"] = os.pathsep.join([str(site.folder), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.compiler
def test_a_backend_that_compiles_wins_where_it_can(site: Site, tmp_path: Path) -> None:
    """The better candidate, prepared for real."""
    cache = tmp_path / "cache"
    assert run(site, cache) == "selected jit\ncode none\n"
    assert (cache / "kernel.so").exists()


@pytest.mark.compiler
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
def test_a_read_only_cache_ends_on_the_next_candidate(site: Site, tmp_path: Path) -> None:
    """The very fault that began it: the engine starts, and the WARNING names the directory."""
    open_to_all(tmp_path)
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o555)
    printed = run(site, cache, str(NOBODY))
    assert "selected plain\ncode permission" in printed
    assert printed.startswith("WARNING attention backend jit: failed at prepare:")
    assert str(cache) in printed
    assert "using plain instead" in printed


def test_a_missing_compiler_ends_on_the_next_candidate(site: Site, tmp_path: Path) -> None:
    """An empty PATH: the reason and its remedy are said, and the next one is taken."""
    printed = run(site, tmp_path / "cache", PATH=str(tmp_path))
    assert "selected plain\ncode compiler" in printed
    assert "no C compiler on PATH (apt install gcc)" in printed
