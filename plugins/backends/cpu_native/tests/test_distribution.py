"""Whether the distribution is there to be tested."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


def test_it_is_installed_with_kernels_for_this_machine() -> None:
    """Where it was compiled, the modules of this machine's family lie beside its Python files."""
    if find_spec("hardpoint_cpu_native") is None:
        pytest.skip("hardpoint-cpu-native is not installed: no C++ compiler was found to build it with")
    names = [f"hardpoint_cpu_native.{name}" for name in ("_avx2", "_avx512", "_avx512_bf16", "_amx", "_neon")]
    assert any(find_spec(name) is not None for name in names)


@pytest.mark.checkout
def test_without_a_compiler_the_build_says_what_it_needs(tmp_path: Path) -> None:
    """And that one can do without it."""
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("no cmake")
    environment = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX", "CUDAHOSTCXX")}
    command = [cmake, "-S", str(Path(__file__).parent.parent), "-B", str(tmp_path)]
    # Nothing is on the path, compilers included; make, which comes after them, is never called.
    command += ["-G", "Unix Makefiles", f"-DCMAKE_MAKE_PROGRAM={sys.executable}"]
    done = subprocess.run(
        command, env={**environment, "PATH": str(tmp_path)}, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert "hardpoint-cpu-native needs a C++17 compiler and found none." in said
    assert "or do without this distribution" in said
