"""The cases of imports, forks and threads, B15 to B18, beyond what the tests of concurrency hold."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import hardpoint
from hardpoint.errors import BackendUnavailableError, HardpointError, PlatformUnavailableError
from tests.plugins import Site, config, imported, usable
from tests.threads import at_once

if TYPE_CHECKING:
    from pathlib import Path

FIRST = "BackendPriority('first', 'fastest'), BackendPriority('second', 'works everywhere')"
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
NO_GPU = "raise RuntimeError('No CUDA GPUs are available')"


def fresh(site: Site, code: str, **variables: str) -> str:
    """What a fresh interpreter prints."""
    path = os.pathsep.join([str(site.folder), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=False, timeout=120, env={**os.environ, "PYTHONPATH": path, **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def test_b15_logging_of_the_application(site: Site) -> None:
    """B15: loggers, handlers, levels and root of an application that logs are as they were, after a whole selection."""
    site.platform("fake")
    site.backend("one")
    code = """
import logging, logging.config, os
logging.config.dictConfig({"version": 1, "handlers": {"h": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["h"], "level": "ERROR"}, "loggers": {"app": {"level": "INFO", "handlers": ["h"]}}})
app, root = logging.getLogger("app"), logging.getLogger()
def state():
    return (app.disabled, app.level, list(app.handlers), app.propagate, root.level, list(root.handlers),
            logging.raiseExceptions, logging.root.manager.disable, dict(os.environ), logging.getLoggerClass(),
            logging.getLogRecordFactory())
before = state()
import hardpoint
platform = hardpoint.current_platform()
platform.import_kernels()
config = hardpoint.AttentionConfig(head_size=64, num_heads=4, dtype='float32', block_size=16)
platform.select_backend(config, depth="ready")
hardpoint.report()
assert state() == before
assert [type(handler).__name__ for handler in logging.getLogger("hardpoint").handlers] == ["NullHandler"]
print("same")
"""
    assert fresh(site, code) == "same\n"


def test_b15_importing_starts_nothing(site: Site) -> None:
    """B15: no plugin, no torch, no variable, no output, no thread, no file written; even every module of the core."""
    code = """
import os, sys, threading
before = dict(os.environ), threading.active_count(), os.getcwd()
written = []
def hook(event, arguments):
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        written.append(arguments[0])
    if event in ("os.mkdir", "os.putenv", "subprocess.Popen", "os.fork", "ctypes.dlopen"):
        written.append((event, arguments))
sys.addaudithook(hook)
import hardpoint
for name in hardpoint.__all__:
    getattr(hardpoint, name)
written = [item for item in written if "__pycache__" not in str(item)]
assert (dict(os.environ), threading.active_count(), os.getcwd()) == before
assert not written, written
heavy = {"torch", "numpy", "pynvml", "hardpoint_cpu", "hardpoint_torch_sdpa"} & set(sys.modules)
assert not heavy, heavy
print("nothing")
"""
    # What Python itself writes, the compiled modules, is not ours.
    assert fresh(site, code, PYTHONDONTWRITEBYTECODE="1") == "nothing\n"


def test_b16_a_resolution_creates_no_process(site: Site) -> None:
    """B16: resolving, listing and selecting fork nothing, start nothing and load no library."""
    site.platform("fake")
    site.backend("one")
    code = """
import sys
seen = []
def hook(event, arguments):
    if event in ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec", "ctypes.dlopen", "os.system"):
        seen.append((event, arguments))
sys.addaudithook(hook)
import hardpoint
platform = hardpoint.current_platform()
config = hardpoint.AttentionConfig(head_size=64, num_heads=4, dtype='float32', block_size=16)
platform.get_valid_backends(None, config)
platform.select_backend(config)
print(seen)
"""
    assert fresh(site, code) == "[]\n"


@needs_fork
def test_b16_the_child_of_a_fork_selects_as_its_parent(site: Site) -> None:
    """B16: platform object, selection and registry survive; nothing is probed or imported again."""
    site.platform("fake", plugin_top="import os", detect=f"os.write(1, b'probe ')\n{usable()}")
    site.backend("one", top="import os\nos.write(1, b'import ')")
    code = """
import os, hardpoint
platform = hardpoint.current_platform()
config = hardpoint.AttentionConfig(head_size=64, num_heads=4, dtype='float32', block_size=16)
selection = platform.select_backend(config)
child = os.fork()
if child == 0:
    same = hardpoint.current_platform() is platform and platform.select_backend(config) is selection
    narrow = hardpoint.AttentionConfig(head_size=32, num_heads=4, dtype='float32', block_size=16)
    other = platform.select_backend(narrow)
    os.write(1, f"{same} {other.backend}".encode())
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    assert fresh(site, code) == "probe import True one"


# With logging imported, as in any application: where it is first imported by another thread in the middle of a fork,
# Python 3.11 prints that a lock cannot be released, and goes on.
COLD = """
import os, threading, time, warnings, faulthandler
warnings.simplefilter("ignore")
{imports}
def ask():
    platform = hardpoint.current_platform()
    config = hardpoint.AttentionConfig(head_size=64, num_heads=4, dtype='float32', block_size=16)
    return platform.select_backend(config).backend
thread = threading.Thread(target=ask)
thread.start()
time.sleep({delay})
child = os.fork()
if child == 0:
    faulthandler.dump_traceback_later(30, exit=True)
    os._exit(0 if ask() == "one" else 2)
status = os.waitpid(child, 0)[1]
thread.join()
print(status)
"""


@needs_fork
@pytest.mark.parametrize("delay", [0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08])
@pytest.mark.parametrize(
    "imports",
    ["import logging, hardpoint._flight", "import hardpoint._flight, logging", "import hardpoint._flight"],
    ids=["logging first", "logging last", "logging late"],
)
def test_b16_a_fork_at_any_moment_of_a_cold_start(site: Site, imports: str, delay: float) -> None:
    """B16: most of a first resolution is imports, whose locks a child could never take: the fork waits for them.

    Whichever of the two guards forks first, ours or logging's, neither keeps the other waiting.
    """
    detect = f"import wave, colorsys, time\ntime.sleep(0.01)\n{usable()}"
    site.platform("fake", detect=detect)
    # Says something while it is being imported.
    site.backend("one", top="import decimal, xml.dom.minidom, logging\nlogging.getLogger(__name__)")
    assert fresh(site, COLD.format(imports=imports, delay=delay)) == "0\n"


@needs_fork
def test_b16_a_fork_while_another_thread_selects(site: Site) -> None:
    """B16: the child of a fork in the middle of another thread's selection, load and log record makes its own."""
    site.platform("fake")
    site.backend("slow", validate="import time\ntime.sleep(0.2)\nreturn []")
    code = """
import os, threading, time, warnings, logging
warnings.simplefilter("ignore")
logging.basicConfig(filename=os.devnull, level=logging.INFO)
import hardpoint
platform = hardpoint.current_platform()
def ask(size):
    return platform.select_backend(
        hardpoint.AttentionConfig(head_size=size, num_heads=4, dtype='float32', block_size=16)).backend
threads = [threading.Thread(target=ask, args=(8 * size,)) for size in range(1, 9)]
for thread in threads: thread.start()
answers = []
for pause in range(5):
    time.sleep(0.05)
    child = os.fork()
    if child == 0:
        os._exit(0 if ask(512) == "slow" else 1)
    answers.append(os.waitpid(child, 0)[1])
for thread in threads: thread.join()
print(answers)
"""
    assert fresh(site, code) == "[0, 0, 0, 0, 0]\n"


@pytest.mark.parametrize("kind", ["backend", "platform", "light backend", "light platform"])
def test_b17_a_module_that_needs_a_device_to_be_imported(site: Site, kind: str) -> None:
    """B17: it propagates, with plugin, distribution and phase."""
    site.platform(
        "fake",
        priorities=FIRST,
        plugin_top=NO_GPU if kind == "light platform" else "",
        platform_top=NO_GPU if kind == "platform" else "",
    )
    site.backend("first", top=NO_GPU if kind == "backend" else "", plugin_top=NO_GPU if kind == "light backend" else "")
    site.backend("second")
    with pytest.raises(RuntimeError, match="No CUDA GPUs are available") as caught:
        hardpoint.current_platform().select_backend(config())
    (note,) = caught.value.__notes__
    name, phase = {
        "backend": ("backend/first (fake-first 1.0)", "import"),
        "platform": ("platform/fake (fake-fake 1.0)", "activate"),
        "light backend": ("backend/first (fake-first 1.0)", "load"),
        "light platform": ("platform/fake (fake-fake 1.0)", "load"),
    }[kind]
    assert name in note
    assert f"phase '{phase}'" in note
    assert "HARDPOINT_DISABLED_PLUGINS=" in note


def test_b17_a_plugin_that_knows_of_it(site: Site) -> None:
    """B17: converted to an environment failure it is a reason like any other."""
    site.platform("fake", priorities=FIRST)
    site.backend(
        "first",
        top=(
            "try:\n    raise RuntimeError('No CUDA GPUs are available')\n"
            "except RuntimeError as error:\n    raise EnvironmentFailure(str(error), code='no_device') from error"
        ),
    )
    site.backend("second")
    selection = hardpoint.current_platform().select_backend(config())
    assert selection.backend == "second"
    assert str(selection.candidates[0].reasons[0].code) == "no_device"
    with pytest.raises(BackendUnavailableError, match="No CUDA GPUs"):
        hardpoint.current_platform().select_backend(config(), "first")


@pytest.mark.parametrize(
    "limits",
    [
        {"more": "capability_floor=(9, 0)"},
        {"more": "architectures=('sm_90',)"},
        {"more": "features=('tma',)"},
        {"platforms": "('cuda',)"},
        {"spec": "requires=('no-such-distribution-anywhere>=1',)"},
        {"spec": "kernel_architectures=('sm_90',)"},
    ],
)
def test_b17_what_metadata_refuse_is_not_imported(site: Site, limits: dict[str, str]) -> None:
    """B17: with capability 7.5 none of these is in `sys.modules`, chosen, named or listed."""
    site.platform("fake", detect=usable("7.5", runtime="cuda"), priorities=FIRST)
    package = site.backend("first", **limits)
    site.backend("second")
    platform = hardpoint.current_platform()
    assert platform.select_backend(config(), depth="ready").backend == "second"
    with pytest.raises(ValueError, match="first"):
        platform.select_backend(config(), "first")
    assert [item.name for item in platform.get_valid_backends(platform.get_device_capability(), config())[0]] == [
        "second"
    ]
    hardpoint.report()
    assert not imported(package, "implementation")


@pytest.mark.parametrize("fields", [{"dtype": "float16"}, {"head_size": 96}, {"block_size": 8}, {"sliding_window": 4}])
def test_b17_what_the_declared_support_refuses_is_not_imported(site: Site, fields: dict[str, Any]) -> None:
    """B17: dtype, head size and the like are checked from data."""
    site.platform("fake", priorities=FIRST)
    variants = "AttentionVariant(head_size=OneOf(64,), dtype=OneOf('float32',), block_size=OneOf(16,))"
    package = site.backend("first", variants=variants.replace("OneOf(64,)", "Integers(multiple_of=64)"))
    site.backend("second")
    assert hardpoint.current_platform().select_backend(config(**fields)).backend == "second"
    assert not imported(package, "implementation")


@pytest.mark.parametrize(
    "error", ["OSError('not yet')", "ZeroDivisionError('bug')", "SystemExit(3)", "KeyboardInterrupt()"]
)
def test_b18_a_failure_reaches_every_waiter_and_a_later_call_tries_again(site: Site, error: str) -> None:
    """B18: 16 threads, one probe: no hang, no half-made answer; afterwards the same process gets its platform."""
    package = site.platform(
        "slow",
        plugin_top="import time\ncalls = []\n",
        detect=f"calls.append(1)\ntime.sleep(0.3)\nif len(calls) == 1:\n    raise {error}\n{usable()}",
    )
    caught: list[Any] = []

    def ask() -> Any:
        try:
            return hardpoint.current_platform()
        except (SystemExit, KeyboardInterrupt) as stopped:
            caught.append(stopped)
            return stopped

    answers = at_once(16, ask)
    calls = sys.modules[f"{package}.plugin"].calls
    failed = [item for item in answers if isinstance(item, BaseException)]
    assert None not in answers
    # Whoever comes after the failure is not a waiter: that thread probes again, and the platform is there.
    assert len(calls) <= 2
    assert failed
    assert all(isinstance(item, HardpointError) or type(item).__name__ == error.partition("(")[0] for item in failed)
    assert hardpoint.current_platform().name == "slow"
    assert hardpoint.current_platform() is hardpoint.current_platform()


def test_b18_every_plugin_is_probed_once(site: Site) -> None:
    """B18: 16 threads, three platforms: each is loaded and detected exactly once, and there is one object."""
    top = "import time\ncalls = ['load']\n"
    packages = [
        site.platform(name, rank=rank, plugin_top=top, detect=f"calls.append('detect')\ntime.sleep(0.05)\n{usable()}")
        for name, rank in (("a", "VENDOR"), ("b", "IN_TREE"), ("c", "CPU"))
    ]
    answers = at_once(16, hardpoint.current_platform)
    assert {id(answer) for answer in answers} == {id(hardpoint.current_platform())}
    assert [sys.modules[f"{package}.plugin"].calls for package in packages] == [["load", "detect"]] * 3


def test_b18_a_probe_that_loads_something_else(site: Site) -> None:
    """B18: a probe that registers a plugin, logs and reads another machine on the same thread does not deadlock."""
    site.platform(
        "busy",
        plugin_top="import hardpoint, logging",
        detect=(
            "hardpoint.log_once(logging.getLogger('x'), 30, 'busy')\n"
            "hardpoint.LiveMachine().distribution_version('pluggy')\n"
            "hardpoint.InMemoryMachine()\n"
            f"from hardpoint import agreement\n{usable()}"
        ),
    )
    done: list[str] = []
    thread = threading.Thread(target=lambda: done.append(hardpoint.current_platform().name), daemon=True)
    thread.start()
    thread.join(60)
    assert done == ["busy"]


def test_b18_explicit_and_automatic_at_once(site: Site) -> None:
    """B18: threads that ask for different things each get theirs."""
    site.platform("a", plugin_top="import time", detect=f"time.sleep(0.05)\n{usable()}")
    site.platform("b", rank="CPU")
    site.platform("c", rank="CPU", detect="raise OSError('no c')")
    asked = ["a", "b", "c", None] * 4
    gate = iter(asked)
    lock = threading.Lock()

    def ask() -> str:
        with lock:
            name = next(gate)
        try:
            return hardpoint.current_platform().name if name is None else hardpoint.platform(name).name
        except PlatformUnavailableError as error:
            return f"c: {'no c' in str(error)}"

    assert sorted(at_once(16, ask)) == sorted(["a", "b", "c: True", "a"] * 4)


def test_b21_torch_like_autoload(site: Site, tmp_path: Path) -> None:
    """B21: a framework that imports the vendor's package when it is itself imported gives every order one answer."""
    package = site.platform("vendor")
    (site.folder / package / "__init__.py").write_text("import fake_framework\nimport hardpoint\n")
    (site.folder / "fake_framework.py").write_text(f"import {package}\n")
    site.platform("host", rank="CPU")
    orders = [f"import fake_framework, {package}", f"import {package}", f"import hardpoint, {package}", ""]
    answers = {fresh(site, f"{order}\nimport hardpoint\nprint(hardpoint.current_platform().name)") for order in orders}
    assert answers == {"vendor\n"}
