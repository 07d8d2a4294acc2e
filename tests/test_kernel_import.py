"""What becomes of a kernel module: real extension modules, whole, broken, cut off, and without what they promise."""

from __future__ import annotations

import logging
import subprocess
import sys
import types
from typing import TYPE_CHECKING

import pytest

from hardpoint._kernels import KernelModule, KernelOutcome, KernelRecord
from hardpoint._reasons import Reason, ReasonCode
from hardpoint.errors import MissingOperatorError
from tests.native import MISSING_DEPENDENCY, NO_INIT, REGISTRY, KernelPlatform, Site, binary, outcomes

if TYPE_CHECKING:
    from pathlib import Path

IMPORTED, ABSENT, BROKEN, INCOMPLETE, NOT_RUN = KernelOutcome


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A folder on the import path."""
    return Site(tmp_path, monkeypatch)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The module that the registering library enters its operator in."""
    module = types.ModuleType(REGISTRY)
    monkeypatch.setitem(sys.modules, REGISTRY, module)
    return module


def record_of(module: KernelModule) -> KernelRecord:
    """The record of one module, imported alone."""
    (record,) = KernelPlatform(module).import_kernels().modules
    return record


def reason_of(module: KernelModule) -> Reason:
    """The reason in its record."""
    reason = record_of(module).reason
    assert reason is not None
    return reason


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The texts at WARNING and above."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.compiler
def test_a_working_module_is_imported(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A module with all that it promises is imported, without a word, and its record names the file."""
    name, file = site.extension(binary("working"))
    record = record_of(KernelModule(name=name, operators=("twice",), required=True))
    assert (record.outcome, record.reason, record.file) == (IMPORTED, None, str(file))
    assert record.seconds is not None
    assert warnings_of(caplog) == []


@pytest.mark.compiler
def test_a_missing_symbol_is_broken(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A symbol that no library has makes the module broken; symbol and file are in the one warning."""
    name, file = site.extension(binary("missing_symbol"))
    record = record_of(KernelModule(name=name))
    assert record.outcome is BROKEN
    assert record.file == str(file)
    (warning,) = warnings_of(caplog)
    assert warning.startswith(f"kernel module {name} is broken: ImportError: {file}: undefined symbol")
    assert "hardpoint_test_no_such_symbol" in warning
    assert "platform/testing (hardpoint-testing 1.2)" in warning


@pytest.mark.compiler
@pytest.mark.parametrize("length", [0, 4])
def test_a_file_of_a_few_bytes_is_broken(site: Site, length: int, caplog: pytest.LogCaptureFixture) -> None:
    """What an interrupted copy or a lost link leaves is "file too short", with the full path."""
    name, file = site.extension(binary("working")[:length])
    reason = reason_of(KernelModule(name=name))
    assert reason.code is ReasonCode.BROKEN_IMPORT
    assert reason.message == f"ImportError: {file}: file too short"
    assert len(warnings_of(caplog)) == 1


@pytest.mark.compiler
@pytest.mark.skipif(sys.platform != "linux", reason="about ELF files")
@pytest.mark.parametrize("part", [0.25, 0.5, 0.75])
def test_a_file_cut_off_in_the_middle_does_not_end_the_process(site: Site, tmp_path: Path, part: float) -> None:
    """A file that ends before its segments do, which the loader dies of (SIGBUS), is broken like any other."""
    whole = binary("working")
    name, file = site.extension(whole[: int(len(whole) * part)])
    # In a process of its own: without the check that is tested here it would take the tests with it.
    script = (
        "from tests.native import KernelPlatform; from hardpoint import KernelModule;"
        f"print(KernelPlatform(KernelModule(name={name!r})).import_kernels().describe())"
    )
    environment = {"PYTHONPATH": ":".join([str(tmp_path), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert f"broken: EnvironmentFailure: {file}: file too short" in done.stdout


@pytest.mark.compiler
@pytest.mark.skipif(sys.platform != "linux", reason="about ELF files")
@pytest.mark.parametrize(
    ("position", "value", "expected"),
    [(4, 1, "wrong ELF class"), (0, 0, "invalid ELF header"), (18, 0xF7, "ImportError")],
)
def test_a_file_for_another_machine_is_broken(site: Site, position: int, value: int, expected: str) -> None:
    """Another word size, no ELF file at all, another processor: broken, in the loader's words, with the full path."""
    content = bytearray(binary("working"))
    content[position] = value
    name, file = site.extension(bytes(content))
    record = record_of(KernelModule(name=name))
    assert record.outcome is BROKEN
    assert record.reason is not None
    assert expected in record.reason.message
    assert str(file) in record.reason.message


@pytest.mark.compiler
def test_a_library_that_only_registers_is_imported(site: Site, registry: types.ModuleType) -> None:
    """The message that it has no init function is its success, if declared so; its operators are where it put them."""
    name, file = site.extension(binary("registering"))
    module = KernelModule(name=name, benign_messages=(NO_INIT,), operators=(f"{REGISTRY}:twice",))
    platform = KernelPlatform(module)
    (record,) = platform.import_kernels().modules
    assert (record.outcome, record.file) == (IMPORTED, str(file))
    assert platform.get_operator(name, f"{REGISTRY}:twice") is registry.twice
    assert registry.twice(21) == 42
    with pytest.raises(MissingOperatorError, match="it only registers them; ask for 'namespace::operator'"):
        platform.get_operator(name, "twice")


@pytest.mark.compiler
def test_a_benign_message_has_to_be_declared(site: Site, registry: types.ModuleType) -> None:
    """The same library without the declaration is broken, and the path that Python's message lacks is added."""
    name, file = site.extension(binary("registering"))
    reason = reason_of(KernelModule(name=name, benign_messages=("some other message",)))
    assert NO_INIT in reason.message
    assert reason.message.endswith(f"[{file}]")


@pytest.mark.compiler
def test_a_benign_message_is_no_proof(site: Site, registry: types.ModuleType) -> None:
    """After a benign message the promised operators are checked as for every module."""
    name, _ = site.extension(binary("registering"))
    promised = (f"{REGISTRY}:twice", f"{REGISTRY}:thrice")
    record = record_of(KernelModule(name=name, benign_messages=(NO_INIT,), operators=promised))
    assert (record.outcome, record.missing_operators) == (INCOMPLETE, (f"{REGISTRY}:thrice",))


def test_a_benign_message_does_not_excuse_absence() -> None:
    """A part of a message that also fits "No module named" does not make a missing module an imported one."""
    assert record_of(KernelModule(name="nowhere._ext", benign_messages=("nowhere",))).outcome is ABSENT


@pytest.mark.compiler
def test_a_module_without_a_promised_operator_is_incomplete(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Imported and not whole: the one warning names the operators, the file, and what to install."""
    name, file = site.extension(binary("working"))
    module = KernelModule(name=name, operators=("thrice", "twice", "halve"), distribution="vendor-kernels")
    record = record_of(module)
    assert (record.outcome, record.missing_operators, record.file) == (INCOMPLETE, ("thrice", "halve"), str(file))
    (warning,) = warnings_of(caplog)
    assert f"is incomplete: it was imported and lacks thrice, halve, which it promises [{file}]" in warning
    assert "pip install --upgrade vendor-kernels" in warning


def test_none_is_no_operator(site: Site) -> None:
    """An operator that a module sets to None, where its library was not built, is missing now, not called later."""
    name = site.module("fast = None\nclass Namespace:\n    deep = print\n")
    record = record_of(KernelModule(name=name, operators=("fast", "Namespace.deep")))
    assert (record.outcome, record.missing_operators) == (INCOMPLETE, ("fast",))


def test_an_operator_elsewhere_that_cannot_be_looked_at_is_missing(site: Site) -> None:
    """If the module that should hold the operator is not there, the reason says so."""
    name = site.module("")
    record = record_of(KernelModule(name=name, operators=("nowhere.registry:fast",)))
    assert record.outcome is INCOMPLETE
    assert record.reason is not None
    assert "nowhere.registry:fast (ModuleNotFoundError: No module named 'nowhere')" in record.reason.message


@pytest.mark.torch
def test_torch_operators_are_looked_up(site: Site) -> None:
    """``namespace::operator`` is an operator that torch knows, overload or not."""
    name = site.module("")
    operators = ("aten::add", "aten::add.Tensor", "aten::no_such", "no_such::add")
    record = record_of(KernelModule(name=name, operators=operators))
    assert record.missing_operators == ("aten::no_such", "no_such::add")


def test_absent_and_optional_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    """A module that nobody installed is no warning, one line at INFO, and its remedy is the distribution."""
    caplog.set_level(logging.INFO, logger="hardpoint")
    platform = KernelPlatform(KernelModule(name="nowhere_quiet._ext", distribution="vendor-kernels"))
    report = platform.import_kernels()
    (record,) = report.modules
    assert (record.outcome, report.ok) == (ABSENT, True)
    assert record.reason == Reason(
        code=ReasonCode.NOT_INSTALLED,
        message="ModuleNotFoundError: No module named 'nowhere_quiet'",
        remedy="pip install vendor-kernels",
    )
    assert [(item.levelname, "nowhere_quiet._ext is absent" in item.message) for item in caplog.records] == [
        ("INFO", True)
    ]


def test_absent_and_required_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The warning says what is required, why it is not there and what to type; the report is not ok."""
    platform = KernelPlatform(KernelModule(name="nowhere_loud._ext", required=True, distribution="vendor-kernels"))
    assert not platform.import_kernels().ok
    (warning,) = warnings_of(caplog)
    assert warning == (
        "kernel module nowhere_loud._ext is absent: ModuleNotFoundError: No module named 'nowhere_loud'; "
        "the platform requires it (pip install vendor-kernels) [platform/testing (hardpoint-testing 1.2)]"
    )


def test_an_installed_distribution_without_the_module(site: Site) -> None:
    """Where the distribution is there and the module is not, the reason gives its version and says to reinstall it."""
    package = site.package()
    reason = reason_of(KernelModule(name=f"{package.name}._ext", distribution="pluggy"))
    assert reason.message.startswith(f"ModuleNotFoundError: No module named '{package.name}._ext'; pluggy ")
    assert reason.message.endswith(" is installed, without this module")
    assert reason.remedy == "pip install --force-reinstall --no-deps pluggy"
    assert reason.code == ReasonCode.KERNEL_MISSING
    other = site.folder / package.name / "_ext.cpython-23-x86_64-linux-gnu.so"
    other.write_bytes(b"")
    reason = reason_of(KernelModule(name=f"{package.name}._ext", distribution="pluggy"))
    assert reason.message.endswith(f", without this module: {other} is built for another Python")


@pytest.mark.compiler
def test_a_missing_dependency_is_broken(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A native module that needs a Python module which is not there is broken, not absent; the warning has its path."""
    name, file = site.extension(binary("missing_dependency"))
    record = record_of(KernelModule(name=name))
    assert record.outcome is BROKEN
    assert record.reason is not None
    assert record.reason.code is ReasonCode.MISSING_DEPENDENCY
    assert record.reason.message == f"ModuleNotFoundError: No module named '{MISSING_DEPENDENCY}' [{file}]"
    assert len(warnings_of(caplog)) == 1


def test_a_parent_package_that_fails_is_broken(site: Site) -> None:
    """A package that is there and cannot be imported makes its module broken."""
    package = site.package("import nowhere_parent")
    reason = reason_of(KernelModule(name=f"{package.name}._ext"))
    assert reason.code is ReasonCode.MISSING_DEPENDENCY


def test_a_circular_import_is_broken(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A module that needs itself is told apart, and always a warning."""
    package = site.package()
    (package / "_ext.py").write_text(f"from {package.name}._other import thing", encoding="utf-8")
    (package / "_other.py").write_text(f"from {package.name}._ext import something", encoding="utf-8")
    assert reason_of(KernelModule(name=f"{package.name}._ext")).code is ReasonCode.CIRCULAR_IMPORT
    assert len(warnings_of(caplog)) == 1


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("import_error", "ImportError: built for another torch"),
        ("os_error", "OSError: the driver does not answer"),
    ],
)
def test_a_native_start_up_that_fails_is_broken(site: Site, kind: str, text: str) -> None:
    """What a module's own start-up says of this machine is the reason, with the file."""
    name, file = site.extension(binary(kind))
    assert reason_of(KernelModule(name=name)).message == f"{text} [{file}]"


def test_the_first_of_a_group_is_taken(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Of alternatives the first that is whole is imported; what stands before it and is broken is one warning."""
    broken = site.module("raise ImportError('built for another torch')")
    incomplete = site.module("")
    taken = site.module("def fast(): return 'taken'")
    later = site.module("raise AssertionError('never imported')")
    platform = KernelPlatform(
        KernelModule(name="nowhere._ext", group="fast"),
        KernelModule(name=broken, group="fast"),
        KernelModule(name=incomplete, group="fast", operators=("fast",)),
        KernelModule(name=taken, group="fast", operators=("fast",), required=True),
        KernelModule(name=later, group="fast"),
    )
    assert outcomes(platform) == [ABSENT, BROKEN, INCOMPLETE, IMPORTED, NOT_RUN]
    assert platform.import_kernels().ok
    assert later not in sys.modules
    last = platform.import_kernels().modules[-1].reason
    assert last is not None
    assert last.message == f"{taken} of the same group is imported"
    warnings = warnings_of(caplog)
    assert [f"using {taken} instead" in text for text in warnings] == [True, True]
    assert broken in warnings[0]
    assert incomplete in warnings[1]
    assert platform.get_operator("fast", "fast")() == "taken"


def test_a_required_group_without_any(caplog: pytest.LogCaptureFixture) -> None:
    """If no alternative of a required group is there, one warning tells of all of them."""
    unsupported = Reason(code=ReasonCode.CAPABILITY, message="no avx512f")
    platform = KernelPlatform(
        KernelModule(name="nowhere._wide", group="cpu", unsupported=unsupported),
        KernelModule(name="nowhere._narrow", group="cpu", required=True),
    )
    assert not platform.import_kernels().ok
    (warning,) = warnings_of(caplog)
    assert warning.startswith(
        "kernel module nowhere._wide is not imported: no avx512f; kernel module nowhere._narrow is absent: "
        "ModuleNotFoundError: No module named 'nowhere'; the platform requires one of them"
    )


def test_an_unsupported_module_is_not_tried(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A module for other machines is not imported, not set up, and not spoken of."""
    name = site.module("raise AssertionError('never imported')")
    reason = Reason(code=ReasonCode.CAPABILITY, message="no amx_tile")
    record = record_of(KernelModule(name=name, unsupported=reason, setup=f"{name}:start"))
    assert (record.outcome, record.reason) == (NOT_RUN, reason)
    assert name not in sys.modules
    assert warnings_of(caplog) == []


def test_setup_runs_before_the_import(site: Site) -> None:
    """The module finds what its setup has done, and the setup was called once."""
    setup = site.module("calls = []\ndef allow(): calls.append(1)")
    name = site.module(f"import {setup} as setup\ndef allowed(): return setup.calls\nassert setup.calls == [1]")
    platform = KernelPlatform(KernelModule(name=name, setup=f"{setup}:allow"))
    assert outcomes(platform) == [IMPORTED]
    platform.import_kernels()
    assert platform.get_operator(name, "allowed")() == [1]


def test_a_setup_that_fails_loses_the_module(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Where the operating system refuses, the module is broken for that reason, not imported, the next taken."""
    setup = site.module(
        "from hardpoint import EnvironmentFailure\n"
        "def ask(): raise EnvironmentFailure('AMX not permitted', code='permission', remedy='allow arch_prctl')"
    )
    wide, narrow = site.module(""), site.module("")
    platform = KernelPlatform(
        KernelModule(name=wide, group="cpu", setup=f"{setup}:ask"), KernelModule(name=narrow, group="cpu")
    )
    assert outcomes(platform) == [BROKEN, IMPORTED]
    assert wide not in sys.modules
    reason = platform.import_kernels().modules[0].reason
    assert reason is not None
    assert reason.code is ReasonCode.PERMISSION
    assert reason.message == f"its setup {setup}:ask failed: EnvironmentFailure: AMX not permitted"
    (warning,) = warnings_of(caplog)
    assert f"AMX not permitted; using {narrow} instead (allow arch_prctl)" in warning


def test_no_setup_for_an_absent_module(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is asked of the operating system for kernels that nobody installed."""
    setup = site.module("def ask(): raise AssertionError('never called')")
    package = site.package()
    platform = KernelPlatform(
        KernelModule(name="nowhere._ext", setup=f"{setup}:ask"),
        KernelModule(name=f"{package.name}._ext", setup=f"{setup}:ask"),
    )
    assert outcomes(platform) == [ABSENT, ABSENT]
    assert setup not in sys.modules
    assert warnings_of(caplog) == []


def test_the_log_names_a_module_before_it_is_imported(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A process that dies in a module's start-up has said at DEBUG which one it was."""
    name = site.module("import logging\nlogging.getLogger('hardpoint').debug('inside')")
    caplog.set_level(logging.DEBUG, logger="hardpoint")
    KernelPlatform(KernelModule(name=name)).import_kernels()
    assert [record.getMessage() for record in caplog.records] == [f"importing kernel module {name}", "inside"]
