"""Kernel modules as data: what may be declared, and what a record means for a backend that needs the module."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hardpoint import InMemoryMachine
from hardpoint._kernels import (
    KernelModule,
    KernelOutcome,
    KernelRecord,
    KernelReport,
    rejection_for,
    static_rejection_for,
)
from hardpoint._reasons import Reason, ReasonCode
from hardpoint.errors import ContractError
from tests.native import KernelPlatform

BROKEN = Reason(code=ReasonCode.BROKEN_IMPORT, message="ImportError: /k/_b.so: file too short", detail="Traceback …")
NOT_THERE = Reason(code=ReasonCode.NOT_INSTALLED, message="ModuleNotFoundError: no c", remedy="pip install c-kernels")
REPORT = KernelReport(
    modules=(
        KernelRecord(name="k._a", outcome=KernelOutcome.IMPORTED, required=True),
        KernelRecord(name="k._b", outcome=KernelOutcome.BROKEN, reason=BROKEN),
        KernelRecord(name="k._c", outcome=KernelOutcome.ABSENT, group="fast", reason=NOT_THERE),
        KernelRecord(name="k._d", outcome=KernelOutcome.ABSENT, group="fast", reason=NOT_THERE),
    )
)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"name": "k._a-b"}, "name is no import name"),
        ({"name": None}, "name is no import name"),
        ({"name": "k", "operators": "fast"}, "operators is 'fast'; expected a tuple of texts"),
        ({"name": "k", "operators": ("a:b:c",)}, "operator 'a:b:c' is none of"),
        ({"name": "k", "benign_messages": ("",)}, "benign_messages is ('',); expected a tuple of texts"),
        ({"name": "k", "unsupported": "no AMX"}, "unsupported is 'no AMX'; expected a Reason"),
        ({"name": "k", "setup": "k.setup"}, "setup is 'k.setup'; expected 'package.module:function'"),
        ({"name": "k", "setup": print}, "expected 'package.module:function'"),
    ],
)
def test_a_declaration_that_means_nothing_is_refused(wrong: dict[str, Any], text: str) -> None:
    """The contract error says which module, which value, and what was expected."""
    with pytest.raises(ContractError) as caught:
        KernelModule(**wrong)
    assert text in str(caught.value)
    assert repr(wrong["name"]) in str(caught.value)


def test_all_problems_of_a_declaration_are_told_at_once() -> None:
    """Two wrong values are one error that names both."""
    with pytest.raises(ContractError, match=r"operators is .*; setup is"):
        KernelModule(name="k", operators=("",), setup="")


def test_only_backends_that_declared_a_lost_module_are_rejected() -> None:
    """The main module is there and a second one is broken: only who needs the second is told, with the first reason."""
    assert rejection_for(REPORT, ()) is None
    assert rejection_for(REPORT, ("k._a",)) is None
    assert rejection_for(REPORT, ("k._a", "k._b")) == Reason(
        code=ReasonCode.KERNEL_MISSING,
        message="kernel module k._b is broken: ImportError: /k/_b.so: file too short",
        requested="k._b",
    )


def test_a_rejection_keeps_the_traceback_text() -> None:
    """The original detail goes along, for debugging."""
    reason = rejection_for(REPORT, ("k._b",))
    assert reason is not None
    assert reason.detail == BROKEN.detail


def test_a_lost_group_is_told_reason_by_reason() -> None:
    """A group without any module repeats every alternative's reason, each once, and each remedy once."""
    reason = rejection_for(REPORT, ("fast",))
    assert reason is not None
    assert reason.message == (
        "no kernel module of group fast is imported: k._c, k._d: absent: ModuleNotFoundError: no c"
    )
    assert reason.remedy == "pip install c-kernels"


def test_a_group_is_there_if_one_module_is() -> None:
    """Who needs a group is served by any of it; who names an alternative that was not taken is not."""
    other = Reason(code=ReasonCode.OTHER, message="k._a of the same group is imported")
    report = KernelReport(
        modules=(
            KernelRecord(name="k._a", outcome=KernelOutcome.IMPORTED, group="fast", required=True),
            KernelRecord(name="k._b", outcome=KernelOutcome.NOT_RUN, group="fast", reason=other),
        )
    )
    assert report.ok
    assert rejection_for(report, ("fast", "k._a")) is None
    reason = rejection_for(report, ("k._b",))
    assert reason is not None
    assert reason.message == "kernel module k._b is not imported: k._a of the same group is imported"


def test_several_lost_modules_are_one_reason() -> None:
    """One reason names all that is wanted and missing."""
    reason = rejection_for(REPORT, ("k._b", "k._c"))
    assert reason is not None
    assert reason.requested == ("k._b", "k._c")
    assert "file too short; kernel module k._c is absent" in reason.message
    assert reason.remedy == "pip install c-kernels"


def test_an_unknown_name_is_told_with_the_known_ones() -> None:
    """A backend that wants what the platform does not declare is told what it does declare."""
    reason = rejection_for(REPORT, ("k._z",))
    assert reason is not None
    assert reason.message == (
        "no kernel module or group is called 'k._z'; the platform declares: k._a, k._b, k._c, k._d, fast"
    )


def test_static_rejection_asks_metadata_only() -> None:
    """Before any import a distribution that is not installed and an unsupported module reject; nothing else does."""
    no_amx = Reason(code=ReasonCode.CAPABILITY, message="no amx_tile")
    modules = (
        KernelModule(name="nowhere._plain"),
        KernelModule(name="nowhere._here", distribution="here-kernels"),
        KernelModule(name="nowhere._gone", distribution="gone-kernels"),
        KernelModule(name="nowhere._amx", group="cpu", unsupported=no_amx),
        KernelModule(name="nowhere._avx", group="cpu"),
    )
    machine = InMemoryMachine(distributions={"here-kernels": "1.0"})

    def message(*wanted: str) -> str | None:
        reason = static_rejection_for(modules, machine, wanted)
        return None if reason is None else f"{reason.message} ({reason.remedy})"

    assert message() is None
    assert message("nowhere._plain", "nowhere._here", "cpu", "nowhere._avx") is None
    assert message("nowhere._gone") == (
        "kernel module nowhere._gone is not imported: gone-kernels is not installed (pip install gone-kernels)"
    )
    assert message("nowhere._amx") == "kernel module nowhere._amx is not imported: no amx_tile (None)"
    unknown = message("nowhere._z", "cpu")
    assert unknown is not None
    assert "declares: nowhere._plain, nowhere._here, nowhere._gone, nowhere._amx, nowhere._avx, cpu" in unknown


def test_a_distribution_is_looked_for_once() -> None:
    """The alternatives of a group lie in one distribution: the machine is asked once, and only if one can run."""
    asked: list[str] = []

    class Counting(InMemoryMachine):
        def distribution_version(self, name: str) -> str | None:
            asked.append(name)
            return super().distribution_version(name)

    no_amx = Reason(code=ReasonCode.CAPABILITY, message="no amx_tile")
    modules = [KernelModule(name=f"nowhere._{letter}", group="cpu", distribution="kernels") for letter in "abc"]
    assert static_rejection_for(modules, Counting(), ("cpu",)) is not None
    assert asked == ["kernels"]
    unsupported = KernelModule(name="nowhere._d", distribution="kernels", unsupported=no_amx)
    assert static_rejection_for([unsupported], Counting(), ("nowhere._d",)) is not None
    assert asked == ["kernels"]


def test_a_report_is_json() -> None:
    """The report has a JSON form with every module, and a text with a line for each."""
    data = json.loads(json.dumps(REPORT.as_dict()))
    assert data["ok"] is True
    assert [item["outcome"] for item in data["modules"]] == ["imported", "broken", "absent", "absent"]
    assert data["modules"][1]["reason"]["detail"] == BROKEN.detail
    assert REPORT.describe().splitlines()[:2] == ["k._a: imported", f"k._b: broken: {BROKEN.message}"]


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        (("k._a",), "'k._a' is no KernelModule"),
        ((KernelModule(name="k"), KernelModule(name="k")), "k is declared twice"),
        ((KernelModule(name="k"), KernelModule(name="l", group="k")), "k is the name of a module and of a group"),
    ],
)
def test_a_wrong_list_of_modules_is_recorded(
    declared: tuple[Any, ...], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A list that breaks the contract is one WARNING and a report that is not ok, and rejects with that reason."""
    platform = KernelPlatform(*declared)
    report = platform.import_kernels()
    assert not report.ok
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("the list of kernel modules is broken: platform/testing (hardpoint-testing 1.2)")
    assert text in warning
    reason = rejection_for(report, ("k._b",))
    assert reason is not None
    assert "the platform declares: none; its list of kernel modules failed:" in reason.message
    assert text in reason.message
    with pytest.raises(ContractError, match="strict mode"):
        KernelPlatform(*declared, strict=True).import_kernels()


def test_a_list_that_is_none_is_recorded() -> None:
    """A platform that returns nothing for its modules breaks the contract; it does not crash its engine."""

    class Forgetful(KernelPlatform):
        def kernel_modules(self) -> Any:
            return None

    (record,) = Forgetful().import_kernels().modules
    assert record.reason is not None
    assert "kernel_modules(): it returned None; expected a list of KernelModule" in record.reason.message
