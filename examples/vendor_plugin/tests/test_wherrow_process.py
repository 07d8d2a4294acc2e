"""Whole processes: which platform wins, in which order things are imported, forks, and a plugin that is broken."""

from __future__ import annotations

import json
import subprocess
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

import hardpoint
from examples.vendor_plugin.tests.conftest import run

if TYPE_CHECKING:
    from pathlib import Path

    from examples.vendor_plugin.tests.conftest import MakeRoot

pytestmark = [pytest.mark.torch, pytest.mark.compiler]
beside_the_cpu = pytest.mark.skipif(find_spec("hardpoint_cpu") is None, reason="needs hardpoint-cpu to fall back to")

RESOLVE = """
import logging, sys
logging.basicConfig(format="%(levelname)s %(message)s")
import hardpoint
found = hardpoint.resolve()
print(found.platform.name, found.is_fallback, "torch" in sys.modules)
"""
COMPUTE = """
platform = hardpoint.current_platform()
platform.import_kernels()
import torch
print(platform.name, (torch.arange(4, device=platform.torch_device()) * 2).tolist())
"""


def printed(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines of a process that ended well."""
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_it_wins_and_imports_no_torch(installed: Path, make_root: MakeRoot) -> None:
    """Where its node is, a vendor's platform stands before every other, and resolving it is as light as any."""
    assert printed(run(installed, ["-c", RESOLVE], WHERROW_ROOT=make_root())) == ["wherrow False False"]


@pytest.mark.parametrize(
    "first",
    ["import wherrow, hardpoint", "import hardpoint, wherrow", "import wherrow.plugin, wherrow.platform, hardpoint"],
)
def test_every_order_of_imports_gives_the_same(first: str, installed: Path, make_root: MakeRoot) -> None:
    """Whoever comes first, vendor or layer: the platform is the vendor's."""
    done = run(installed, ["-c", f"{first}\n{RESOLVE}"], WHERROW_ROOT=make_root())
    assert (printed(done), done.stderr) == (["wherrow False False"], "")


@pytest.mark.parametrize("first", ["import torch, wherrow, hardpoint", "import wherrow.torch_device, hardpoint"])
def test_every_order_of_devices_gives_the_same(first: str, installed: Path, make_root: MakeRoot) -> None:
    """Whether torch comes first, the vendor's torch device, or the layer: the platform is the vendor's and computes."""
    assert printed(run(installed, ["-c", first + COMPUTE], WHERROW_ROOT=make_root())) == ["wherrow [0, 2, 4, 6]"]


def test_the_device_is_known_without_the_kernels(installed: Path, make_root: MakeRoot) -> None:
    """What the platform offers by itself works before any kernel import, and opens a device only to compute."""
    script = """
import hardpoint
platform = hardpoint.current_platform()
print(platform.torch_device(1), platform.get_current_memory_usage(1), platform.recommended_start_method().name)
platform.set_device(1)
platform.synchronize(1)
import torch
print(torch.get_device_module("wherrow").current_device(), platform.recommended_start_method().name)
"""
    assert printed(run(installed, ["-c", script], WHERROW_ROOT=make_root(2))) == ["wherrow:1 0 fork", "1 spawn"]


def test_the_plugin_leaves_nothing_to_remark(installed: Path, make_root: MakeRoot) -> None:
    """Its light module is light, its contract version declared, and every member of its platform the contract's."""
    script = """
import hardpoint
found = hardpoint.resolve().chosen
config = hardpoint.AttentionConfig(head_size=16, num_heads=2, dtype="float32", block_size=8)
selection = hardpoint.current_platform().select_backend(config)
print([str(reason) for reason in (*found.reasons, *selection.chosen.reasons)], selection.layout)
"""
    layout = "key:block-token-head-content:float32 value:block-token-head-content:float32"
    assert printed(run(installed, ["-c", script], WHERROW_ROOT=make_root())) == [f"[] {layout}"]


def test_the_mask_holds_under_torch_too(installed: Path, make_root: MakeRoot) -> None:
    """Torch's first device is the first of the mask, as the platform's is."""
    script = """
import hardpoint
platform = hardpoint.current_platform()
device = platform.torch_device(0)
import torch
there = torch.ones(1 << 20, dtype=torch.uint8, device=device)
print(platform.device_count(), platform.get_device_uuid(0), torch.get_device_module("wherrow").device_count())
from wherrow._device import device
print(device(0).number, platform.get_current_memory_usage(0) >= 1 << 20)
"""
    root = make_root(3)
    done = run(installed, ["-c", script], WHERROW_ROOT=root, WHERROW_VISIBLE_DEVICES="2,1")
    assert printed(done) == ["2 WHR-2 2", "2 True"]


@pytest.mark.skipif(not hasattr(hardpoint, "simulate"), reason="needs simulated machines")
def test_its_profile_is_a_machine(installed: Path) -> None:
    """A machine simulated from the vendor's own profile has its devices and its backend, and imports no torch."""
    script = """
import sys
import hardpoint
machine = hardpoint.simulate("w1", count=2, distributions={"torch": "2.13.0", "wherrow-hardpoint": "1.4.0"})
platform = hardpoint.resolve(machine=machine).platform
config = hardpoint.AttentionConfig(head_size=64, num_heads=4, dtype="bfloat16", block_size=16)
print(platform.name, platform.device_count(), platform.select_backend(config, depth="static").backend)
print("torch" in sys.modules)
"""
    assert printed(run(installed, ["-c", script])) == ["wherrow 2 wherrow_attention", "False"]


@beside_the_cpu
def test_a_driver_that_crashes_is_a_reason_where_it_is_isolated(installed: Path, make_root: MakeRoot) -> None:
    """A library that ends the process when it is loaded ends a child's, if probes are isolated."""
    root = make_root()
    target = root / "lib" / "libwherrow.so.1"
    source = b"#include <stdlib.h>\n__attribute__((constructor)) static void start(void) { abort(); }"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", str(target), "-"], input=source, check=True)
    done = run(installed, ["-c", RESOLVE], WHERROW_ROOT=root, HARDPOINT_PROBE="isolated")
    assert printed(done) == ["cpu True False"]
    assert "crashed with SIGABRT" in done.stderr
    whole = run(installed, ["-c", RESOLVE], WHERROW_ROOT=make_root(), HARDPOINT_PROBE="isolated")
    assert printed(whole) == ["wherrow False False"]


@beside_the_cpu
@pytest.mark.parametrize("kept", [0, 40, 9000])
def test_a_broken_library_is_a_fallback_with_a_warning(kept: int, installed: Path, make_root: MakeRoot) -> None:
    """A driver whose library was cut off costs the device, not the process; the warning says what is wrong."""
    root = make_root(kept=kept)
    done = run(installed, ["-c", RESOLVE], WHERROW_ROOT=root)
    assert printed(done) == ["cpu True False"]
    (warning,) = done.stderr.splitlines()
    assert warning.startswith(f"WARNING platform wherrow: unusable: {root}/dev/wherrow0 is there")
    assert f"{root}/lib/libwherrow.so.1: file too short" in warning
    assert "wherrow-hardpoint 1.4.0" in warning
    assert warning.endswith("using cpu instead")


@beside_the_cpu
def test_a_broken_library_is_an_error_where_it_was_asked_for(installed: Path, make_root: MakeRoot) -> None:
    """By name, and in strict mode, there is no other platform."""
    root = make_root(kept=40)
    for variables in ({"HARDPOINT_PLATFORM": "wherrow"}, {"HARDPOINT_STRICT": "1"}):
        done = run(installed, ["-c", RESOLVE], WHERROW_ROOT=root, **variables)
        assert done.returncode == 1
        assert "PlatformUnavailableError" in done.stderr
        assert "file too short" in done.stderr


@beside_the_cpu
def test_an_empty_mask_is_no_loss(installed: Path, make_root: MakeRoot) -> None:
    """Who hides every device gets the next platform without a warning."""
    done = run(installed, ["-c", RESOLVE], WHERROW_ROOT=make_root(), WHERROW_VISIBLE_DEVICES="")
    assert (printed(done), done.stderr) == (["cpu False False"], "")


@beside_the_cpu
def test_a_light_module_that_does_not_import_is_a_fallback(installed: Path, make_root: MakeRoot) -> None:
    """A plugin that lacks what it imports is told by its distribution, and the next platform is taken."""
    with (installed / "wherrow" / "plugin.py").open("a") as file:
        file.write("\nimport wherrow_sdk_that_nobody_has\n")
    done = run(installed, ["-c", RESOLVE], WHERROW_ROOT=make_root())
    assert printed(done) == ["cpu True False"]
    assert "WARNING platform wherrow: failed at load: ModuleNotFoundError: No module named" in done.stderr
    assert "platform/wherrow (wherrow-hardpoint 1.4.0)" in done.stderr


def test_a_bug_in_the_light_module_is_the_vendors(installed: Path, make_root: MakeRoot) -> None:
    """A programming error is not hidden behind another platform: it propagates with the plugin's name."""
    with (installed / "wherrow" / "plugin.py").open("a") as file:
        file.write("\n1 // 0\n")
    done = run(installed, ["-c", RESOLVE], WHERROW_ROOT=make_root())
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert "raised by platform/wherrow (wherrow-hardpoint 1.4.0)" in done.stderr
    assert "HARDPOINT_DISABLED_PLUGINS=platform/wherrow" in done.stderr


@pytest.mark.skipif(find_spec("hardpoint_torch_sdpa") is None, reason="needs hardpoint-torch-sdpa to go on with")
def test_without_its_kernels_the_generic_backend_is_taken(installed: Path, make_root: MakeRoot) -> None:
    """A kernel module that is broken costs its backend; another one runs on the same device."""
    (installed / "wherrow" / "kernels.py").write_text("import wherrow_sdk_that_nobody_has\n")
    script = """
import logging, hardpoint
logging.basicConfig(format="%(levelname)s %(message)s")
platform = hardpoint.current_platform()
config = hardpoint.AttentionConfig(head_size=16, num_heads=2, dtype="float32", block_size=8)
selection = platform.select_backend(config, depth="ready")
print(platform.name, platform.kernel_report.ok, selection.backend, selection.is_fallback)
"""
    done = run(installed, ["-c", script], WHERROW_ROOT=make_root())
    assert printed(done) == ["wherrow False torch_sdpa True"]
    assert "wherrow_sdk_that_nobody_has" in done.stderr
    assert "using torch_sdpa instead" in done.stderr


FORK = """
import json, os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import hardpoint
platform = hardpoint.current_platform()
device = platform.torch_device()
import torch
found = {"before": platform.recommended_start_method().name}
if OPENED:
    torch.ones(1, device=device)
    found["opened"] = platform.recommended_start_method().name
readable, writable = os.pipe()
if not os.fork():
    try:
        answer = [hardpoint.current_platform() is platform, torch.ones(2, device=device).sum().item()]
    except RuntimeError as error:
        answer = [hardpoint.current_platform() is platform, str(error)]
    answer.append(torch.get_device_module("wherrow")._is_in_bad_fork())
    os.write(writable, json.dumps(answer).encode())
    os._exit(0)
os.wait()
found["child"] = json.loads(os.read(readable, 10000))
found["after"] = torch.ones(3, device=device).sum().item()
print(json.dumps(found))
"""


def forked(installed: Path, root: Path, *, opened: bool) -> dict[str, Any]:
    """What a process and its forked child saw."""
    (line,) = printed(run(installed, ["-c", f"OPENED = {opened}\n{FORK}"], WHERROW_ROOT=root))
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_fork_before_a_device_is_open_can_use_it(installed: Path, make_root: MakeRoot) -> None:
    """Resolution touches no device, so a forked worker opens one of its own; it keeps the platform."""
    found = forked(installed, make_root(), opened=False)
    assert found == {"before": "fork", "child": [True, 2.0, False], "after": 3.0}


def test_a_fork_with_an_open_device_is_told(installed: Path, make_root: MakeRoot) -> None:
    """A child of a process that computes gets an error in words, no crash; the platform had recommended spawn."""
    found = forked(installed, make_root(), opened=True)
    said = "wherrow:0 was opened before this process was forked; start it with spawn"
    assert found == {"before": "fork", "opened": "spawn", "child": [True, said, True], "after": 3.0}


def test_a_spawned_worker_can_use_an_open_device(installed: Path, make_root: MakeRoot) -> None:
    """What the platform recommends works."""
    worker = installed / "worker_of_a_test.py"
    worker.write_text("""
import multiprocessing, sys
import hardpoint

def main():
    platform = hardpoint.current_platform()
    device = platform.torch_device()
    import torch
    return torch.ones(5, device=device).sum().item()

if __name__ == "__main__":
    here = main()
    method = hardpoint.current_platform().recommended_start_method()
    with multiprocessing.get_context(method.name).Pool(1) as pool:
        print(method.name, here, pool.apply(main))
""")
    assert printed(run(installed, [str(worker)], WHERROW_ROOT=make_root())) == ["spawn 5.0 5.0"]
