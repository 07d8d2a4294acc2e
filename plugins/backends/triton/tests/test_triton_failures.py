"""What Triton raises on machines that lack something, met for real: no driver, no compiler, a cache that is closed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
import torch

from hardpoint import DeviceCapability
from hardpoint.attention import AttentionConfig
from hardpoint.errors import EnvironmentFailure
from hardpoint_triton._failures import as_environment_failures
from hardpoint_triton.backend import TritonAttentionBackend, TritonMlaBackend
from tests.processes import open_to_all, others_may_read

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

CONFIG = AttentionConfig(head_size=16, num_heads=2, dtype="float16", block_size=4)

PROGRAM = """
import os, sys
from dataclasses import replace
import torch
from hardpoint.attention import AttentionBatch, AttentionConfig
from hardpoint.errors import EnvironmentFailure
from hardpoint_triton._ahead import compile_ahead
from hardpoint_triton._failures import as_environment_failures
from hardpoint_triton._hardware import Hardware
from hardpoint_triton._plan import TritonPlan
from hardpoint_triton.backend import TritonAttentionBackend
config = AttentionConfig(head_size=16, num_heads=2, dtype="float16", block_size=4)
layer = TritonAttentionBackend.create_layer(config, scale=1.0, device="cpu")
batch = AttentionBatch.build(query_lens=[1], seq_lens=[1], block_table=[[0]], slot_mapping=[0])
plan = TritonPlan(config, batch, Hardware("sm_90", 132))
rows, lse = torch.zeros(1, 2, 16).half(), torch.zeros(2, 1)
cache = TritonAttentionBackend.kv_cache_spec(config).allocate(1, device="cpu")
launch = next(layer.launches(rows, rows, rows, cache, plan, rows, lse))
{before}
try:
    with as_environment_failures("compile"):
        {action}
except EnvironmentFailure as error:
    print(error.code, "|", error, "|", error.remedy)
else:
    print("done")
"""


def _run(action: str, *, before: str = "", **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before, action=action)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


COMPILE = "compile_ahead(launch, 'sm_90')"


def test_a_cache_directory_that_is_none_is_the_machines_fault(tmp_path: Path) -> None:
    """The path and the variable are named."""
    (tmp_path / "file").write_text("")
    printed = _run(COMPILE, TRITON_CACHE_DIR=str(tmp_path / "file" / "cache"))
    assert printed.startswith("permission | Triton cannot compile: ")
    assert str(tmp_path / "file") in printed
    assert printed.endswith("| set TRITON_CACHE_DIR to a directory that can be written\n")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
def test_a_read_only_cache_directory_is_the_machines_fault(tmp_path: Path) -> None:
    """The very fault that ends engines: a container of an arbitrary user over an image of root's."""
    spec = find_spec("triton")
    if spec is None or not others_may_read(spec.origin):
        pytest.skip("another user cannot read this installation")
    open_to_all(tmp_path)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    # Folders of Python may be closed to the other user: what is needed is imported before.
    before = (
        "import triton.backends.nvidia.compiler, triton.compiler.code_generator; os.setgid(12345); os.setuid(12345)"
    )
    printed = _run(COMPILE, before=before, TRITON_CACHE_DIR=str(closed))
    assert printed.startswith("permission | Triton cannot compile: ")
    assert str(closed) in printed


def test_a_missing_c_compiler_is_the_machines_fault(tmp_path: Path) -> None:
    """Triton compiles its launcher at the first launch; nothing on the path can."""
    action = "from triton.runtime.build import compile_module_from_src; compile_module_from_src('int x;', 'launcher')"
    environment = {"PATH": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    printed = _run(action, before="os.environ.pop('CC', None)", **environment)
    assert printed.startswith("compiler | Triton cannot compile: Failed to find C compiler")
    assert printed.endswith("| install a C compiler with Python's headers, or set CC\n")
    with pytest.raises(EnvironmentFailure, match="nocc") as caught, as_environment_failures("compile"):
        subprocess.run([str(tmp_path / "nocc")], check=True)
    assert caught.value.code == "compiler"


@pytest.mark.compiler
def test_a_c_compiler_that_fails_is_the_machines_fault(tmp_path: Path) -> None:
    """Python's headers are not there, say: the command that failed is in the text."""
    action = "from triton.runtime.build import compile_module_from_src; compile_module_from_src('no C', 'launcher')"
    printed = _run(action, TRITON_CACHE_DIR=str(tmp_path))
    assert printed.startswith("compiler | Triton cannot compile: its launcher does not compile: ")


def test_a_kernel_that_does_not_compile_is_the_compilers_fault(tmp_path: Path) -> None:
    """A device without the storage format: what Triton's front end says is in the text."""
    before = (
        "cache = tuple(tensor.to(torch.float8_e4m3fn) for tensor in cache)\n"
        "launch = list(layer.launches(rows, rows, rows, cache, plan, rows, lse))[1]"
    )
    printed = _run("compile_ahead(launch, 'sm_80')", before=before, TRITON_CACHE_DIR=str(tmp_path))
    assert printed.startswith("compiler | Triton cannot compile: ")
    assert "fp8e4nv not supported" in printed


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver")
@pytest.mark.parametrize("backend", [TritonAttentionBackend, TritonMlaBackend])
def test_a_cpu_has_no_driver(backend: type[TritonAttentionBackend | TritonMlaBackend]) -> None:
    """Without the interpreter the class refuses a CPU, and preparing for it is an environment failure."""
    cpu = DeviceCapability(runtime="cpu", arch="x86-64-v3")
    (reason,) = backend.validate_configuration(cpu, CONFIG)
    assert str(reason) == "Triton has no driver for a CPU, and its interpreter is not switched on"
    assert reason.code == "capability"
    with pytest.raises(EnvironmentFailure, match="active driver") as caught:
        TritonAttentionBackend.prepare(CONFIG, "cpu")
    assert caught.value.code == "driver"
    assert "TRITON_INTERPRET=1" in (caught.value.remedy or "")


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("options", [{}, {"batch_invariant": True}, {"block_size": None, "sinks": True}])
def test_preparing_runs_every_kind_of_launch(options: dict[str, object]) -> None:
    """A decode, a split decode and a prefill, with and without a cache; twice is as good as once."""
    config = AttentionConfig(**{**CONFIG.as_dict(), **options})
    for _ in range(2):
        TritonAttentionBackend.prepare(config, "cpu")


def test_preparing_converts_what_torch_says_of_a_missing_device() -> None:
    """A device that this torch was not built for is an environment failure, whatever torch raises."""
    if torch.xpu.is_available():
        pytest.skip("there is such a device")
    with pytest.raises(OSError, match=r"has no float16 or float16 on xpu") as caught:
        TritonAttentionBackend.prepare(CONFIG, "xpu")
    assert caught.value.code == "no_device"  # type: ignore[attr-defined]  # EnvironmentFailure


def test_bugs_are_not_converted() -> None:
    """What is nobody's environment propagates as itself."""
    for error in (TypeError("a bug"), RecursionError("a bug"), KeyError("a bug")):
        with pytest.raises(type(error)), as_environment_failures("compile"):
            raise error


def test_what_has_no_type_of_its_own_is_the_compilers_word() -> None:
    """Triton raises a bare `Exception` where a linker is not found."""
    said = pytest.raises(EnvironmentFailure, match="Triton cannot compile: linker not found")
    with said as caught, as_environment_failures("compile"):
        raise Exception("linker not found")  # noqa: TRY002  # as Triton does
    assert caught.value.code == "compiler"
