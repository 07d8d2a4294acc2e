"""Threads, forks, spawned children and import orders: one answer, no deadlock, nothing probed twice."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import hardpoint
from hardpoint.errors import HardpointError, ResolutionInProgressError, ResolutionTimeoutError
from tests.plugins import Site, config, usable
from tests.threads import at_once

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
# Python 3.12 warns at every fork of a process with threads; that is the very case here.
allows_fork = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

COUNTING = """
import threading, time
calls = []
entered = threading.Event()
leave = threading.Event()
"""


def module(name: str) -> Any:
    """A module that the plugin brought."""
    return sys.modules[name]


def test_64_threads_get_one_object_from_one_probe(site: Site) -> None:
    """B18: single flight, and nobody sees a half-made answer."""
    package = site.platform("slow", plugin_top=COUNTING, detect=f"calls.append(1)\ntime.sleep(0.05)\n{usable()}")
    answers = at_once(64, hardpoint.current_platform)
    assert {id(answer) for answer in answers} == {id(hardpoint.current_platform())}
    assert module(f"{package}.plugin").calls == [1]


def test_every_waiter_gets_the_failure_and_a_later_call_tries_again(site: Site) -> None:
    """Our own errors are fresh equal copies, each with its own traceback."""
    site.platform("slow", plugin_top=COUNTING, detect="time.sleep(0.2)\nraise OSError('libslow.so: not now')")
    answers = at_once(16, lambda: hardpoint.platform("slow"))
    assert all(isinstance(answer, HardpointError) for answer in answers)
    assert {str(answer) for answer in answers} == {str(answers[0])}
    assert len({id(answer) for answer in answers}) == 16
    site.platform("other")
    assert hardpoint.current_platform().name == "other"


def test_a_bug_reaches_every_waiter_as_itself(site: Site) -> None:
    """A ZeroDivisionError stays one, in every thread."""
    site.platform("slow", plugin_top=COUNTING, detect="time.sleep(0.2)\n1 / 0")
    answers = at_once(8, hardpoint.current_platform)
    assert {type(answer) for answer in answers} == {ZeroDivisionError}


def test_one_backend_is_imported_once_by_many_threads(site: Site) -> None:
    """Loads are single flight too."""
    site.platform("fake")
    package = site.backend("slow", top="import time\ntime.sleep(0.1)", validate="return []")
    platform = hardpoint.current_platform()
    answers = at_once(32, lambda: platform.select_backend(config(), "slow").load())
    assert set(answers) == {module(f"{package}.implementation").Backend}


def test_a_waiter_is_told_which_plugin_hangs(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the probe timeout, by name; the thread that probes is not disturbed."""
    monkeypatch.setenv("HARDPOINT_PROBE_TIMEOUT", "0.3")
    package = site.platform("wedged", plugin_top=COUNTING, detect=f"entered.set()\nleave.wait(30)\n{usable()}")
    found: list[hardpoint.Platform] = []
    first = threading.Thread(target=lambda: found.append(hardpoint.current_platform()))
    first.start()
    while f"{package}.plugin" not in sys.modules or not hasattr(module(f"{package}.plugin"), "plugin"):
        time.sleep(0.01)
    assert module(f"{package}.plugin").entered.wait(30)
    with pytest.raises(ResolutionTimeoutError, match=r"waited 0\.3 s.*platform/wedged"):
        hardpoint.current_platform()
    module(f"{package}.plugin").leave.set()
    first.join(30)
    assert found == [hardpoint.current_platform()]


def test_another_lazy_load_on_the_same_thread_is_no_deadlock(site: Site) -> None:
    """A probe may import a module that another thread is importing, and load what it likes."""
    (site.folder / "lazy_helper.py").write_text("import hardpoint\nVERSION = hardpoint.__version__\n")
    site.platform("fake", detect=f"import lazy_helper\n{usable()}")
    assert hardpoint.current_platform().name == "fake"


def test_importing_the_plugin_elsewhere_meanwhile_is_no_deadlock(site: Site) -> None:
    """Thread A imports the plugin's module while thread B resolves."""
    package = site.platform("fake", plugin_top="import time\ntime.sleep(0.3)")
    importer = threading.Thread(target=__import__, args=(f"{package}.plugin",))
    importer.start()
    time.sleep(0.05)
    assert at_once(4, hardpoint.current_platform)[0].name == "fake"
    importer.join(30)
    assert not importer.is_alive()


def test_a_thread_that_a_probe_starts_and_waits_for_is_not_for_ever(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The helper thread times out with the plugin's name, so that the probe goes on."""
    monkeypatch.setenv("HARDPOINT_PROBE_TIMEOUT", "0.3")
    package = site.platform(
        "knotty",
        plugin_top=COUNTING,
        detect=f"""
            import hardpoint
            def ask():
                try:
                    hardpoint.current_platform()
                except Exception as error:
                    calls.append(str(error))
            thread = threading.Thread(target=ask)
            thread.start()
            thread.join()
            {usable()}
        """,
    )
    assert hardpoint.current_platform().name == "knotty"
    (text,) = module(f"{package}.plugin").calls
    assert "platform/knotty" in text


def in_child(ask: Callable[[], str]) -> str:
    """The text that `ask` returns in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, ask().encode())
        except BaseException as error:  # noqa: BLE001  # told to the parent
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    deadline = time.monotonic() + 60
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the child of the fork hangs")
        time.sleep(0.01)
    with os.fdopen(reader) as stream:
        return stream.read()


@needs_fork
@allows_fork
def test_a_child_keeps_a_finished_answer(site: Site) -> None:
    """B16: no second probe after the fork, and the locks work."""
    package = site.platform("fake", plugin_top=COUNTING, detect=f"calls.append(1)\n{usable()}")
    before = hardpoint.current_platform()

    def ask() -> str:
        same = hardpoint.current_platform() is before
        hardpoint.resolve()
        return f"{same} {module(f'{package}.plugin').calls}"

    assert in_child(ask) == "True [1, 1]"


@needs_fork
@allows_fork
def test_a_fork_in_the_middle_of_another_threads_probe(site: Site) -> None:
    """The child starts afresh instead of waiting for a thread that it does not have."""
    package = site.platform(
        "slow",
        plugin_top=COUNTING,
        detect=f"calls.append(1)\nentered.set()\nif len(calls) == 1: leave.wait(30)\n{usable()}",
    )
    thread = threading.Thread(target=hardpoint.current_platform)
    thread.start()
    while f"{package}.plugin" not in sys.modules or not hasattr(module(f"{package}.plugin"), "plugin"):
        time.sleep(0.01)
    assert module(f"{package}.plugin").entered.wait(30)
    assert in_child(lambda: hardpoint.current_platform().name) == "slow"
    module(f"{package}.plugin").leave.set()
    thread.join(30)
    assert hardpoint.current_platform().name == "slow"


@needs_fork
@allows_fork
def test_a_fork_in_the_middle_of_another_threads_import(site: Site) -> None:
    """The fork waits for the import, whose lock the child could never take."""
    site.platform("slow", plugin_top="import time\nfor _ in range(50):\n    time.sleep(0.01)")
    thread = threading.Thread(target=hardpoint.current_platform)
    thread.start()
    time.sleep(0.1)
    assert in_child(lambda: hardpoint.current_platform().name) == "slow"
    thread.join(30)


@needs_fork
@allows_fork
def test_a_probe_may_fork(site: Site) -> None:
    """In the child of a probe the resolution is still in progress, and says so."""
    site.platform(
        "forking",
        plugin_top="import os, hardpoint",
        detect=f"""
            child = os.fork()
            if child == 0:
                try:
                    hardpoint.current_platform()
                except hardpoint.errors.ResolutionInProgressError:
                    os._exit(7)
                os._exit(1)
            status = os.waitpid(child, 0)[1]
            if os.waitstatus_to_exitcode(status) != 7:
                return Detection.absent("the child was not told")
            {usable()}
        """,
    )
    assert hardpoint.current_platform().name == "forking"


PROGRAM = """
import multiprocessing, os, sys
import hardpoint

def ask(_):
    return hardpoint.current_platform().name, str(hardpoint.fingerprint())

if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        answers = pool.map(ask, range(4))
    answers.append(ask(0))
    print(len(set(answers)), answers[0][0])
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_children_of_every_start_method_agree(site: Site, tmp_path: Path, method: str) -> None:
    """The same platform and the same fingerprint as the parent's."""
    if method != "spawn" and not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    site.platform("fake")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), method],
        capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site.folder), *filter(None, sys.path)])},
    )  # fmt: skip
    assert done.stdout.split() == ["1", "fake"], done.stderr


@pytest.mark.parametrize(
    "program",
    [
        "import vendor, hardpoint",
        "import hardpoint, vendor",
        "import hardpoint; hardpoint.current_platform(); import vendor",
        "import vendor.plugin, hardpoint",
    ],
)
def test_both_import_orders_give_the_same_platform(site: Site, program: str) -> None:
    """B21: vendor first, hardpoint first, in a fresh interpreter each."""
    package = site.platform("vendor")
    (site.folder / package / "__init__.py").write_text("import hardpoint\nimport hardpoint.hookspecs\n")
    site.platform("host", rank="CPU")
    code = program.replace("vendor", package) + "\nprint(hardpoint.current_platform().name)"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site.folder), *filter(None, sys.path)])},
    )  # fmt: skip
    assert done.stdout.strip() == "vendor", done.stderr


def test_reentrance_through_an_override_is_allowed(site: Site) -> None:
    """Inside an override the answer exists, so that nothing is resolved."""
    site.platform("fake")
    site.platform("asks", detect=f"import hardpoint\nhardpoint.current_platform()\n{usable()}")
    with hardpoint.override_platform("fake"):
        assert hardpoint.resolve("asks").platform.name == "asks"
    with pytest.raises(ResolutionInProgressError):
        hardpoint.resolve("asks")
