"""A platform's kernel import: once, for all threads and forks, what it says, and its operators."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import types
from typing import TYPE_CHECKING, Any

import pytest

import hardpoint
from hardpoint import InMemoryMachine
from hardpoint._kernels import KernelModule, KernelOutcome, KernelReport
from hardpoint._reasons import Reason, ReasonCode
from hardpoint.errors import (
    ContractError,
    EnvironmentFailure,
    KernelError,
    MissingOperatorError,
    ResolutionInProgressError,
    ResolutionTimeoutError,
)
from tests.native import KernelPlatform, Site, binary, outcomes

if TYPE_CHECKING:
    from pathlib import Path

IMPORTED, ABSENT, BROKEN, INCOMPLETE, NOT_RUN = KernelOutcome
BUILT_FOR_ANOTHER = "raise ImportError('built for another torch')"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A folder on the import path."""
    return Site(tmp_path, monkeypatch)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that kernel modules can import to reach into the test."""
    module = types.ModuleType("hardpoint_test_shared")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_a_second_call_returns_the_first_report(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Calling twice is harmless: the same report, no further attempt, no second warning."""
    name = site.module(BUILT_FOR_ANOTHER)
    platform = KernelPlatform(KernelModule(name=name))
    before = platform.kernel_report
    report = platform.import_kernels()
    assert before is None
    (site.folder / name.partition(".")[0] / "_ext.py").write_text("", encoding="utf-8")
    assert platform.import_kernels() is report
    assert platform.kernel_report is report
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


def test_a_platform_without_kernels_is_fine() -> None:
    """No module declared: an empty report, which is ok."""
    report = KernelPlatform().import_kernels()
    assert (report, report.ok) == (KernelReport(), True)


def test_two_platforms_with_one_fault_are_one_warning(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A second platform object that meets the same broken module does not repeat the warning."""
    module = KernelModule(name=site.module(BUILT_FOR_ANOTHER))
    assert outcomes(KernelPlatform(module)) == outcomes(KernelPlatform(module)) == [BROKEN]
    assert len(caplog.records) == 1


@pytest.mark.compiler
@pytest.mark.parametrize("length", [0, 4])
def test_a_mended_file_is_taken_after_reset(site: Site, length: int) -> None:
    """In one process: broken, mended on disk, `reset`, and the next platform imports it."""
    name, file = site.extension(binary("working")[:length])
    module = KernelModule(name=name, operators=("twice",))
    assert outcomes(KernelPlatform(module)) == [BROKEN]
    mended = file.with_suffix(".new")
    mended.write_bytes(binary("working"))
    mended.replace(file)
    hardpoint.reset()
    platform = KernelPlatform(module)
    assert outcomes(platform) == [IMPORTED]
    assert platform.get_operator(name, "twice")(4) == 8


def test_a_module_installed_later_is_found_after_reset(site: Site) -> None:
    """A package that appears in a folder which Python has already listed is found after `reset`."""
    package = site.package()
    module = KernelModule(name=f"{package.name}._ext")
    assert outcomes(KernelPlatform(module)) == [ABSENT]
    (package / "_ext.py").write_text("", encoding="utf-8")
    hardpoint.reset()
    assert outcomes(KernelPlatform(module)) == [IMPORTED]


def test_nothing_is_imported_on_a_machine_that_is_not_live(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A simulated machine imports nothing and warns of nothing: not run, with what its metadata say."""
    name = site.module("raise AssertionError('never imported')")
    no_amx = Reason(code=ReasonCode.CAPABILITY, message="no amx_tile")
    modules = (
        KernelModule(name=name, required=True),
        KernelModule(name="nowhere._gone", distribution="gone-kernels", required=True),
        KernelModule(name="nowhere._amx", unsupported=no_amx),
    )
    platform = KernelPlatform(*modules, machine=InMemoryMachine(), strict=True)
    report = platform.import_kernels()
    assert [record.outcome for record in report.modules] == [NOT_RUN] * 3
    assert [record.reason and record.reason.message for record in report.modules] == [
        None,
        "gone-kernels is not installed",
        "no amx_tile",
    ]
    assert not report.ok
    assert name not in sys.modules
    assert caplog.records == []
    with pytest.raises(MissingOperatorError, match="is not imported: the machine is not live"):
        platform.get_operator(name, "fast")


def test_many_threads_import_once(site: Site, shared: Any) -> None:
    """Thirty-two threads get one report; each module's start-up, failing or not, runs once, its setup too."""
    shared.counts = {"good": 0, "bad": 0, "setup": 0}
    count = "import time, hardpoint_test_shared as s\ns.counts[{!r}] += 1\ntime.sleep(0.05)\n"
    setup = site.module("import hardpoint_test_shared as s\ndef ask(): s.counts['setup'] += 1")
    good = site.module(count.format("good"))
    bad = site.module(count.format("bad") + BUILT_FOR_ANOTHER)
    platform = KernelPlatform(KernelModule(name=bad), KernelModule(name=good, setup=f"{setup}:ask"))
    reports: list[KernelReport] = []
    together = threading.Barrier(32)

    def ask() -> None:
        together.wait()
        reports.append(platform.import_kernels())

    threads = [threading.Thread(target=ask) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(reports) == 32
    assert len({id(report) for report in reports}) == 1
    assert shared.counts == {"good": 1, "bad": 1, "setup": 1}


def test_a_thread_does_not_wait_for_ever(site: Site, shared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that hangs in one thread ends the wait of another with an error that names it."""
    monkeypatch.setattr("hardpoint._kernels.IMPORT_TIMEOUT_SECONDS", 0.05)
    shared.started, shared.go_on = threading.Event(), threading.Event()
    name = site.module("import hardpoint_test_shared as s\ns.started.set()\ns.go_on.wait(60)")
    platform = KernelPlatform(KernelModule(name=name))
    thread = threading.Thread(target=platform.import_kernels)
    thread.start()
    try:
        assert shared.started.wait(60)
        with pytest.raises(ResolutionTimeoutError, match=f"for another thread to import kernel module {name}"):
            platform.import_kernels()
    finally:
        shared.go_on.set()
        thread.join(60)
    assert outcomes(platform) == [IMPORTED]


@pytest.mark.parametrize("inspecting", [False, True])
def test_a_module_that_asks_for_its_own_import_is_told(site: Site, shared: Any, inspecting: bool) -> None:
    """A module that imports the kernels in its own start-up gets an error at once that names it; nobody waits."""
    name = site.module("import hardpoint_test_shared as s\ns.platform.import_kernels()")
    shared.platform = KernelPlatform(KernelModule(name=name))
    if inspecting:
        (record,) = shared.platform.inspect().modules
        assert record.bug
        assert f"kernel module {name} asks for the platform's kernels" in record.reason.message
    else:
        with pytest.raises(ResolutionInProgressError, match=f"kernel module {name} asks for the platform's kernels"):
            shared.platform.import_kernels()


def test_a_bug_is_not_kept(site: Site, shared: Any) -> None:
    """After a programming error the next call tries that module again, and none of those before it."""
    shared.before = shared.at_fault = 0
    shared.wrong = True
    before = site.module(f"import hardpoint_test_shared as s\ns.before += 1\n{BUILT_FOR_ANOTHER}")
    at_fault = site.module("import hardpoint_test_shared as s\ns.at_fault += 1\nif s.wrong: None.missing")
    platform = KernelPlatform(KernelModule(name=before), KernelModule(name=at_fault))
    for _ in range(2):
        with pytest.raises(AttributeError):
            platform.import_kernels()
        assert platform.kernel_report is None
    shared.wrong = False
    assert outcomes(platform) == [BROKEN, IMPORTED]
    assert (shared.before, shared.at_fault) == (1, 3)


def test_a_bug_met_while_inspecting_is_not_kept(site: Site) -> None:
    """A report that shows a bug is no answer for the engine: its own call meets the bug itself."""
    platform = KernelPlatform(KernelModule(name=site.module("1 / 0")))
    report = platform.inspect()
    assert report.has_bug
    assert platform.kernel_report is None
    with pytest.raises(ZeroDivisionError):
        platform.import_kernels()


@pytest.mark.compiler
def test_a_native_bug_propagates_with_a_note(site: Site) -> None:
    """A programming error in a native start-up arrives as itself; its note has plugin, phase and the way round."""
    name, _ = site.extension(binary("zero_division"))
    with pytest.raises(ZeroDivisionError, match="tiles per core") as caught:
        KernelPlatform(KernelModule(name=name)).import_kernels()
    (note,) = caught.value.__notes__
    assert note == (
        "hardpoint: raised by platform/testing (hardpoint-testing 1.2) in phase 'import kernels'; "
        "to go on without this plugin set HARDPOINT_DISABLED_PLUGINS=platform/testing"
    )


@pytest.mark.compiler
def test_an_interrupt_in_a_native_start_up_is_untouched(site: Site) -> None:
    """Control-C while a module starts is Control-C, and the next call tries again."""
    name, _ = site.extension(binary("interrupted"))
    platform = KernelPlatform(KernelModule(name=name))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt) as caught:
            platform.import_kernels()
        assert not hasattr(caught.value, "__notes__")


def test_strict_mode_raises_from_the_original(site: Site) -> None:
    """A broken module is an error in strict mode, from the module's own exception; the second call says the same."""
    name = site.module(BUILT_FOR_ANOTHER)
    platform = KernelPlatform(KernelModule(name=name), strict=True)
    with pytest.raises(KernelError, match=f"kernel module {name} is broken: ImportError: built for another") as first:
        platform.import_kernels()
    assert type(first.value.__cause__) is ImportError
    assert first.value.reasons[0].code is ReasonCode.BROKEN_IMPORT
    assert platform.kernel_report is not None
    with pytest.raises(KernelError) as second:
        platform.import_kernels()
    assert str(second.value) == str(first.value)
    assert type(second.value.__cause__) is EnvironmentFailure


def test_strict_mode_tells_all_losses(site: Site) -> None:
    """Every loss is in the one error: broken, incomplete, required and absent; an absent optional one is none."""
    broken, incomplete = site.module(BUILT_FOR_ANOTHER), site.module("")
    platform = KernelPlatform(
        KernelModule(name="nowhere._optional"),
        KernelModule(name="nowhere._required", required=True, distribution="vendor-kernels"),
        KernelModule(name=broken),
        KernelModule(name=incomplete, operators=("fast",)),
        strict=True,
    )
    with pytest.raises(KernelError) as caught:
        platform.import_kernels()
    assert [reason.code for reason in caught.value.reasons] == [
        ReasonCode.NOT_INSTALLED,
        ReasonCode.BROKEN_IMPORT,
        ReasonCode.KERNEL_MISSING,
    ]
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    assert "nowhere._optional" not in str(caught.value)
    assert "(pip install vendor-kernels)" in str(caught.value)


def test_strict_mode_does_not_take_a_worse_alternative(site: Site) -> None:
    """Losing the better module of a group is an error in strict mode, though another one is there."""
    platform = KernelPlatform(
        KernelModule(name=site.module(BUILT_FOR_ANOTHER), group="cpu"),
        KernelModule(name=site.module(""), group="cpu"),
        strict=True,
    )
    with pytest.raises(KernelError, match=r"using kernels_\d+\._ext instead"):
        platform.import_kernels()


def test_strict_mode_without_loss_is_silent(site: Site) -> None:
    """Absent and optional is no loss."""
    platform = KernelPlatform(KernelModule(name="nowhere._ext"), KernelModule(name=site.module("")), strict=True)
    assert outcomes(platform) == [ABSENT, IMPORTED]


def test_strict_mode_ends_an_incomplete_module_without_a_cause(site: Site) -> None:
    """Where no exception was met, none is invented."""
    platform = KernelPlatform(KernelModule(name=site.module(""), operators=("fast",)), strict=True)
    with pytest.raises(KernelError, match="lacks fast") as caught:
        platform.import_kernels()
    assert caught.value.__cause__ is None


def test_a_setup_that_is_not_there_breaks_the_contract(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A setup target that the plugin does not have is its own fault: a WARNING, in strict mode a `ContractError`."""
    name, setup = site.module(""), site.module("")
    module = KernelModule(name=name, setup=f"{setup}:ask")
    (record,) = KernelPlatform(module).import_kernels().modules
    assert record.reason is not None
    assert (record.outcome, record.reason.code) == (BROKEN, ReasonCode.CONTRACT)
    assert f"{setup} has no attribute 'ask'" in caplog.text
    with pytest.raises(ContractError, match="has no attribute 'ask'") as caught:
        KernelPlatform(module, strict=True).import_kernels()
    assert caught.value.plugin == "platform/testing"


@pytest.mark.parametrize(("value", "strict"), [("1", True), ("0", False)])
def test_an_unattached_platform_reads_the_variable(
    site: Site, monkeypatch: pytest.MonkeyPatch, value: str, strict: bool
) -> None:
    """A platform that no resolution has made takes strict mode from the environment."""
    monkeypatch.setenv("HARDPOINT_STRICT", value)
    platform = KernelPlatform(KernelModule(name=site.module(BUILT_FOR_ANOTHER)))
    vars(platform).update(_settings=None, _provenance=None)
    if strict:
        with pytest.raises(KernelError, match=r"platform/testing \(unknown distribution\)"):
            platform.import_kernels()
    else:
        assert outcomes(platform) == [BROKEN]


def test_an_operator_of_a_lost_module_repeats_the_reason(site: Site) -> None:
    """The first use of what is not there says what was the matter at import, and what to type."""
    broken, incomplete = site.module(BUILT_FOR_ANOTHER), site.module("def slow(): pass")
    no_amx = Reason(code=ReasonCode.CAPABILITY, message="no amx_tile")
    platform = KernelPlatform(
        KernelModule(name=broken),
        KernelModule(name="nowhere_op._ext", distribution="vendor-kernels"),
        KernelModule(name=incomplete, operators=("fast", "slow")),
        KernelModule(name="nowhere._amx", unsupported=no_amx),
    )

    def message(module: str, operator: str) -> str:
        with pytest.raises(MissingOperatorError) as caught:
            platform.get_operator(module, operator)
        assert isinstance(caught.value, AttributeError)
        assert caught.value.reasons
        return str(caught.value)

    assert message(broken, "fast").startswith(
        f"operator 'fast' is not available: kernel module {broken} is broken: ImportError: built for another torch"
    )
    assert "No module named 'nowhere_op' (pip install vendor-kernels)" in message("nowhere_op._ext", "fast")
    assert "is incomplete: it was imported and lacks fast" in message(incomplete, "slow")
    assert "nowhere._amx is not imported: no amx_tile" in message("nowhere._amx", "fast")
    assert "no kernel module or group is called 'nowhere'" in message("nowhere", "fast")


def test_an_operator_that_a_module_does_not_have(site: Site) -> None:
    """A misspelt operator is told with the nearest one that is there."""
    name = site.module("def write_cache(): pass")
    platform = KernelPlatform(KernelModule(name=name))
    with pytest.raises(MissingOperatorError, match="has no operator 'write_cashe'; did you mean 'write_cache'"):
        platform.get_operator(name, "write_cashe")
    with pytest.raises(MissingOperatorError, match="cannot be used: ModuleNotFoundError: No module named 'nowhere'"):
        platform.get_operator(name, "nowhere.registry:fast")


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def run_in_process(script: str, site: Site) -> str:
    """Run a script that has the site's modules and this folder's on its path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site.folder), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_fork
def test_the_child_of_a_fork_keeps_a_finished_report(site: Site) -> None:
    """A child asks nothing again: the module's start-up ran once, in the parent."""
    name = site.module("import os\nprint('started', flush=True)")
    script = f"""
import os
from tests.native import KernelPlatform
from hardpoint import KernelModule
platform = KernelPlatform(KernelModule(name={name!r}))
report = platform.import_kernels()
child = os.fork()
if child == 0:
    os._exit(0 if platform.import_kernels() is report else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run_in_process(script, site).split() == ["started", "0"]


@needs_fork
def test_a_fork_in_the_middle_of_an_import_leaves_a_child_that_works(site: Site) -> None:
    """A child forked while another thread imports gets its own answer, and does not wait for a thread it lacks."""
    slow = site.module("import time\ntime.sleep(1)\ndef fast(): return 1")
    script = f"""
import os, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from tests.native import KernelPlatform
from hardpoint import KernelModule
platform = KernelPlatform(KernelModule(name={slow!r}, operators=("fast",)), KernelModule(name="nowhere._ext"))
thread = threading.Thread(target=platform.import_kernels)
thread.start()
while {slow!r} not in sys.modules:
    time.sleep(0.01)
child = os.fork()
if child == 0:
    outcomes = [str(record.outcome) for record in platform.import_kernels().modules]
    os._exit(0 if outcomes == ["imported", "absent"] else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
thread.join()
print(platform.import_kernels().ok)
"""
    assert run_in_process(script, site).split() == ["0", "True"]
