"""The real system call, in processes of their own: a permission that was granted cannot be taken back."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

X86_LINUX = sys.platform == "linux" and platform.machine() == "x86_64"
CPUINFO = Path("/proc/cpuinfo")
HAS_TILES = X86_LINUX and CPUINFO.exists() and " amx_tile" in CPUINFO.read_text()

ASK = """
from hardpoint import EnvironmentFailure
from hardpoint_cpu import _amx
try:
    print({function}())
except EnvironmentFailure as error:
    print(error.code, error, error.remedy, sep="|")
"""


def run(code: str) -> str:
    """What the code prints in a fresh process."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(not HAS_TILES, reason="needs a CPU with AMX")
def test_kernel_offers_and_grants_tiles() -> None:
    """On a machine with AMX the question is answered with yes, and the permission is given, twice as well as once."""
    assert run(ASK.format(function="_amx.supported_tiles")) == "True"
    assert run("from hardpoint_cpu._amx import request_permission as ask; print(ask(), ask())") == "None None"


@pytest.mark.skipif(not X86_LINUX, reason="needs Linux on x86-64")
@pytest.mark.parametrize(
    ("function", "name"),
    [("_amx.supported_tiles", "ARCH_GET_XCOMP_SUPP"), ("_amx.request_permission", "ARCH_REQ_XCOMP_PERM")],
)
def test_refused_call(forbid_tiles: str, function: str, name: str) -> None:
    """A sandbox that forbids the call makes it an environment failure with the system's own words."""
    assert run(forbid_tiles + ASK.format(function=function)) == (
        f"permission|AMX not permitted: arch_prctl({name}): [Errno 1] Operation not permitted|"
        "run a kernel of 5.16 or later, in a sandbox that lets arch_prctl through"
    )


@pytest.mark.skipif(X86_LINUX, reason="needs another system or architecture")
def test_other_systems_are_not_called() -> None:
    """Elsewhere the system call's number means something else: it is not made."""
    assert run(ASK.format(function="_amx.supported_tiles")).startswith("permission|AMX not permitted: it exists on")


def test_module_imports_everywhere() -> None:
    """Importing the module makes no call and loads no ctypes."""
    assert run("import sys, hardpoint_cpu._amx; print('ctypes' in sys.modules)") == "False"
