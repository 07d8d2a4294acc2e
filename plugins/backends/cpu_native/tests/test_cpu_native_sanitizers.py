"""The kernels' own C++ test: under the address, undefined-behaviour and thread sanitizers, and on an emulated Arm."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parent.parent / "native"
AVX512 = "-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mavx512vbmi"
# AVX2 runs on every x86-64 machine that runs these tests. No sanitizer sees what tiles load: behind it the program has
# a page that nobody may touch.
FLAGS = {
    "avx2": "-mavx2 -mfma -mf16c",
    "amx": f"{AVX512} -mamx-tile -mamx-bf16 -mamx-int8",
    "neon": "-march=armv8.2-a+bf16+fp16",
}
NARROWEST = "avx2" if os.uname().machine == "x86_64" else "neon"
CASES = [(NARROWEST, "address,undefined"), (NARROWEST, "thread"), ("amx", "address,undefined")]
NOT_PERMITTED = 77


@pytest.mark.checkout
@pytest.mark.compiler
@pytest.mark.long
@pytest.mark.parametrize(("kernels", "sanitizer"), CASES, ids=[" ".join(case) for case in CASES])
def test_the_kernels_are_clean_under(tmp_path: Path, kernels: str, sanitizer: str) -> None:
    """No byte beyond a tensor, no undefined arithmetic, no race in the pool; and the results are right."""
    compiler = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
    if compiler is None:
        pytest.skip("no C++ compiler")
    if kernels == "amx" and "amx_int8" not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        pytest.skip("this CPU has no AMX")
    program = tmp_path / "test_kernels"
    sanitize = f"-fsanitize={sanitizer}"
    empty = subprocess.run(
        [compiler, "-x", "c++", "-", sanitize, "-o", str(program)], input="int main() {}", text=True, check=False
    )
    if empty.returncode:
        pytest.skip(f"this compiler has no {sanitize}")
    command = [compiler, "-std=c++17", "-O1", "-g", *FLAGS[kernels].split(), "-Wno-psabi", "-DHARDPOINT_ISA=tested"]
    command += [sanitize, "-fno-sanitize-recover=all", str(NATIVE / "test_kernels.cpp"), "-pthread", "-o", str(program)]
    subprocess.run(command, check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode == NOT_PERMITTED:
        pytest.skip("the system does not permit AMX")
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
