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
from hardpoint.attention import AttentionBatch, AttentionConfig
from hardpoint.errors import EnvironmentFailure
from hardpoint_triton._ahead import compile_ahead
from hardpoint_triton._failures import as_environment_failures
from hardpoint_triton._hardware import Hardware
from hardpoint_triton._plan import TritonPlan
from hardpoint_triton.backend import TritonAttentionBackend, TritonMlaBackend
from tests.processes import open_to_all, others_may_read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hardpoint_triton._kernel import Launch

pytestmark = pytest.mark.torch

CONFIG = AttentionConfig(head_size=16, num_heads=2, dtype="float16", block_size=4)


def attend_launch(cache_dtype: torch.dtype = torch.float16) -> Launch:
    """A decode over a cache of that dtype."""
    layer = TritonAttentionBackend.create_layer(CONFIG, scale=1.0, device="cpu")
    batch = AttentionBatch.build(query_lens=[1], seq_lens=[1], block_table=[[0]], slot_mapping=[0])
    plan = TritonPlan(CONFIG, batch, Hardware("sm_90", 132))
    rows, lse = torch.zeros(1, 2, 16).half(), torch.zeros(2, 1)
    cache = [
        tensor.to(cache_dtype) for tensor in TritonAttentionBackend.kv_cache_spec(CONFIG).allocate(1, device="cpu")
    ]
    return list(layer.launches(rows, rows, rows, cache, plan, rows, lse))[1]


def _failure(action: Callable[[], object]) -> EnvironmentFailure:
    with pytest.raises(EnvironmentFailure) as caught, as_environment_failures("compile"):
        action()
    return caught.value


def _build(source: str) -> object:
    from triton.runtime.build import compile_module_from_src

    return compile_module_from_src(source, "launcher")


def test_a_cache_directory_that_is_none_is_the_machines_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path and the variable are named."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "cache"))
    failure = _failure(lambda: compile_ahead(attend_launch(), "sm_90"))
    assert failure.code == "permission"
    assert str(failure).startswith("Triton cannot compile: ")
    assert str(tmp_path / "file") in str(failure)
    assert failure.remedy == "set TRITON_CACHE_DIR to a directory that can be written"


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
    program = """
import os
import triton.backends.nvidia.compiler, triton.compiler.code_generator, triton.runtime.cache
from hardpoint.errors import EnvironmentFailure
from hardpoint_triton._failures import as_environment_failures
os.setgid(12345)
os.setuid(12345)
try:
    with as_environment_failures("compile"):
        triton.runtime.cache.get_cache_manager("a" * 64).put(b"", "kernel")
except EnvironmentFailure as error:
    print(error.code, "|", error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TRITON_CACHE_DIR": str(closed)},
    )
    assert done.stdout.startswith("permission | Triton cannot compile: ")
    assert str(closed) in done.stdout


def test_a_missing_c_compiler_is_the_machines_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton compiles its launcher at the first launch; nothing on the path can."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    failure = _failure(lambda: _build("int x;"))
    assert (failure.code, failure.remedy) == ("compiler", "install a C compiler with Python's headers, or set CC")
    assert str(failure).startswith("Triton cannot compile: Failed to find C compiler")
    failure = _failure(lambda: subprocess.run([str(tmp_path / "nocc")], check=True))
    assert failure.code == "compiler"
    assert "nocc" in str(failure)


@pytest.mark.compiler
def test_a_c_compiler_that_fails_is_the_machines_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's headers are not there, say: the command that failed is in the text."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    failure = _failure(lambda: _build("no C"))
    assert failure.code == "compiler"
    assert str(failure).startswith("Triton cannot compile: its launcher does not compile: ")


def test_a_kernel_that_does_not_compile_is_the_compilers_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device without the storage format: what Triton's front end says is in the text."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    failure = _failure(lambda: compile_ahead(attend_launch(torch.float8_e4m3fn), "sm_80"))
    assert failure.code == "compiler"
    assert "fp8e4nv not supported" in str(failure)


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
    with pytest.raises(OSError, match=r"has no float16 on xpu") as caught:
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
