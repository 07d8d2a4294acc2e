"""The failure rule's table, cell by cell, for kernel import: what fails, where, and who is asking."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest

from hardpoint._kernels import KernelModule, KernelOutcome
from hardpoint._log import forget_logged
from hardpoint.errors import ContractError, HardpointError, KernelError
from tests.native import KernelPlatform, Site

if TYPE_CHECKING:
    from pathlib import Path

IMPORTED, ABSENT, BROKEN, INCOMPLETE, NOT_RUN = KernelOutcome

# What is raised, as source; what the record says of it.
ENVIRONMENT: Final = {
    "ImportError('x.so: undefined symbol: _Z')": "ImportError: x.so: undefined symbol: _Z",
    "ImportError()": "ImportError: (no message)",
    "ImportError('a\\nb')": "ImportError: a\nb",
    "ModuleNotFoundError('no dependency', name='dependency')": "ModuleNotFoundError: no dependency",
    "OSError('libcuda.so.1: cannot open shared object file')": "OSError: libcuda.so.1: cannot open shared object file",
    "PermissionError(13, 'Permission denied', '/ro/cache')": (
        "PermissionError: [Errno 13] Permission denied: '/ro/cache'"
    ),
    "hardpoint.EnvironmentFailure('no GPU', code='no_device')": "EnvironmentFailure: no GPU",
}
CONTRACT: Final = {
    "hardpoint.errors.ContractError('wrong hook')": "wrong hook",
    "ImportError('cannot import name gone', name='hardpoint.gone')": "ImportError: cannot import name gone",
}
BUGS: Final = {
    "AttributeError('no such thing')": AttributeError,
    "TypeError('unhashable')": TypeError,
    "AssertionError()": AssertionError,
    "KeyError('uid')": KeyError,
    "RuntimeError('no GPU')": RuntimeError,
}
EXITS: Final = {"KeyboardInterrupt()": KeyboardInterrupt, "SystemExit(3)": SystemExit, "GeneratorExit()": GeneratorExit}

PLACES: Final = ("start-up", "setup", "operator", "list")
RAISE: Final = "import hardpoint, hardpoint.errors\ndef fail(): raise {}\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A folder on the import path; nothing was logged before."""
    forget_logged()
    return Site(tmp_path, monkeypatch)


class Failing:
    """A platform whose first module, or the list of its modules, fails in one place; the second module works."""

    def __init__(self, site: Site, place: str, error: str, *, strict: bool = False) -> None:
        source = RAISE.format(error)
        self.next = site.module("")
        failing = site.module(source + "fail()" if place == "start-up" else "")
        module = KernelModule(name=failing)
        if place == "setup":
            module = KernelModule(name=failing, setup=f"{site.module(source)}:fail")
        elif place == "operator":
            module = KernelModule(name=failing, operators=(f"{site.module(source + 'fail()')}:fast",))
        self.platform = KernelPlatform(module, KernelModule(name=self.next), strict=strict)
        if place == "list":
            scope: dict[str, Any] = {}
            exec(source, scope)  # the same error, from the platform's own method
            self.platform.kernel_modules = scope["fail"]  # type: ignore[method-assign]

    @property
    def went_on(self) -> bool:
        """Whether the second module was imported."""
        return self.next in sys.modules


def texts(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("error", "text"), [*ENVIRONMENT.items(), *CONTRACT.items()])
@pytest.mark.parametrize("inspecting", [False, True], ids=["scan", "inspecting"])
def test_a_failure_is_recorded_and_the_next_module_tried(
    site: Site, place: str, error: str, text: str, inspecting: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Environment and contract: recorded as text with its type, one WARNING, and the scan goes on."""
    failing = Failing(site, place, error)
    report = failing.platform.inspect() if inspecting else failing.platform.import_kernels()
    record = report.modules[0]
    assert record.outcome is (INCOMPLETE if place == "operator" else BROKEN)
    assert record.reason is not None
    assert text in record.reason.message
    assert not report.has_bug
    assert failing.went_on is (place != "list")
    (warning,) = texts(caplog)
    assert text in warning
    assert failing.platform.kernel_report is report


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("error", "text"), ENVIRONMENT.items())
def test_strict_mode_makes_an_environment_failure_the_error(site: Site, place: str, error: str, text: str) -> None:
    """Our own error, whose text holds the original's, raised from the original."""
    failing = Failing(site, place, error, strict=True)
    with pytest.raises(KernelError) as caught:
        failing.platform.import_kernels()
    assert text in str(caught.value)
    assert type(caught.value.__cause__).__name__ == text.partition(":")[0]


@pytest.mark.parametrize("place", ["start-up", "setup", "list"])
@pytest.mark.parametrize(("error", "text"), CONTRACT.items())
def test_strict_mode_raises_a_contract_error(site: Site, place: str, error: str, text: str) -> None:
    """A broken contract stays one."""
    failing = Failing(site, place, error, strict=True)
    with pytest.raises(ContractError) as caught:
        failing.platform.import_kernels()
    assert text in str(caught.value)
    assert caught.value.plugin == "platform/testing"
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("error", "kind"), BUGS.items())
@pytest.mark.parametrize("strict", [False, True], ids=["scan", "strict"])
def test_a_programming_error_propagates_as_itself(
    site: Site, place: str, error: str, kind: type[Exception], strict: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug is not wrapped, carries a note, stops the scan, and leaves no report."""
    failing = Failing(site, place, error, strict=strict)
    with pytest.raises(kind) as caught:
        failing.platform.import_kernels()
    assert type(caught.value) is kind
    (note,) = caught.value.__notes__
    for part in ("platform/testing", "hardpoint-testing 1.2", "'import kernels'", "HARDPOINT_DISABLED_PLUGINS"):
        assert part in note
    assert not failing.went_on
    assert failing.platform.kernel_report is None
    assert texts(caplog) == []


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("error", "kind"), BUGS.items())
def test_a_programming_error_is_recorded_while_inspecting(
    site: Site, place: str, error: str, kind: type[Exception]
) -> None:
    """An inspection records the bug, shows it first, and goes on; strict mode does not stop it."""
    failing = Failing(site, place, error, strict=True)
    report = failing.platform.inspect()
    assert report.has_bug
    record = report.modules[0]
    assert record.bug
    assert record.outcome is BROKEN
    assert record.reason is not None
    assert f"{kind.__name__}: " in record.reason.message
    assert report.describe().splitlines()[0].startswith(f"{record.name}: BUG: broken: ")
    assert failing.went_on is (place != "list")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("error", "kind"), EXITS.items())
@pytest.mark.parametrize("how", ["scan", "strict", "inspecting"])
def test_an_exit_propagates_untouched(
    site: Site, place: str, error: str, kind: type[BaseException], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever asks: neither recorded nor annotated."""
    failing = Failing(site, place, error, strict=how == "strict")
    with pytest.raises(kind) as caught:
        failing.platform.inspect() if how == "inspecting" else failing.platform.import_kernels()
    assert type(caught.value) is kind
    assert not hasattr(caught.value, "__notes__")
    assert not failing.went_on
    assert failing.platform.kernel_report is None
    assert texts(caplog) == []


@pytest.mark.parametrize("error", [*ENVIRONMENT, *CONTRACT, *BUGS])
def test_a_waiting_thread_gets_an_error_of_its_own(site: Site, error: str) -> None:
    """What fails in one thread fails in the one that waits for it too: our errors as equal copies, a bug as itself."""
    from concurrent.futures import ThreadPoolExecutor

    failing = Failing(site, "start-up", f"(__import__('time').sleep(0.1), {error})[1]", strict=True)
    with ThreadPoolExecutor(2) as pool:
        errors = [future.exception() for future in [pool.submit(failing.platform.import_kernels) for _ in range(2)]]
    assert type(errors[0]) is type(errors[1])
    assert str(errors[0]) == str(errors[1])
    if isinstance(errors[0], HardpointError):
        assert errors[0] is not errors[1]
