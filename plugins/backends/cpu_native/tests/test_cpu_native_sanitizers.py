"""The kernels' own C++ test: under the address, undefined-behaviour and thread sanitizers, and on an emulated Arm."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parent.parent / "native"
# AVX2 runs on every x86-64 machine that runs these tests.
FLAGS = ["-mavx2", "-mfma", "-mf16c"] if os.uname().machine == "x86_64" else ["-march=armv8.2-a+bf16+fp16"]
SANITIZERS = {"address and undefined behaviour": "address,undefined", "thread": "thread"}


@pytest.mark.checkout
@pytest.mark.compiler
@pytest.mark.long
@pytest.mark.parametrize("name", SANITIZERS)
def test_the_kernels_are_clean_under(tmp_path: Path, name: str) -> None:
    """No byte beyond a tensor, no undefined arithmetic, no race in the pool; and the results are right."""
    compiler = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
    if compiler is None:
        pytest.skip("no C++ compiler")
    program = tmp_path / "test_kernels"
    sanitize = f"-fsanitize={SANITIZERS[name]}"
    empty = subprocess.run(
        [compiler, "-x", "c++", "-", sanitize, "-o", str(program)], input="int main() {}", text=True, check=False
    )
    if empty.returncode:
        pytest.skip(f"this compiler has no {sanitize}")
    command = [compiler, "-std=c++17", "-O1", "-g", *FLAGS, "-Wno-psabi", "-DHARDPOINT_ISA=tested", sanitize]
    command += ["-fno-sanitize-recover=all", str(NATIVE / "test_kernels.cpp"), "-pthread", "-o", str(program)]
    subprocess.run(command, check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.checkout
@pytest.mark.long
def test_the_arm_kernels_under_emulation(tmp_path: Path) -> None:
    """Compiled with Debian's cross compiler, run by qemu: the results are right."""
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if compiler is None or emulator is None:
        pytest.skip("no cross compiler and emulator (on Debian: apt install g++-aarch64-linux-gnu qemu-user)")
    program = tmp_path / "test_kernels"
    command = [compiler, "-std=c++17", "-O2", "-march=armv8.2-a+bf16+fp16", "-Wno-psabi", "-DHARDPOINT_ISA=neon"]
    command += [str(NATIVE / "test_kernels.cpp"), "-pthread", "-static", "-o", str(program)]
    subprocess.run(command, check=True)
    done = subprocess.run(
        [emulator, "-cpu", "max", str(program)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
