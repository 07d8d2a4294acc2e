"""Required packages, checked from metadata alone."""

from __future__ import annotations

import pytest

from hardpoint import InMemoryMachine, ReasonCode
from hardpoint._requirements import requirement_reason
from hardpoint.errors import ContractError

MACHINE = InMemoryMachine(
    distributions={"flash-attn": "2.3.1", "torch": "2.13.0+cpu", "nightly": "3.0.dev20260101", "odd": "not a version"}
)


@pytest.mark.parametrize(
    "text",
    [
        "flash-attn",
        "Flash_Attn>=2.3",
        "torch>=2.5,<3",
        "nightly>=2.9",
        "absent>=1; python_version < '3'",
        "torch[extra]>=2",
    ],
)
def test_what_is_met_is_no_reason(text: str) -> None:
    """Names are normalised, local and development versions count, and a marker that is false asks for nothing."""
    assert requirement_reason(text, MACHINE) is None


def test_a_package_that_is_too_old_shows_both_versions() -> None:
    """What was found, what is needed, and the command."""
    reason = requirement_reason("flash-attn>=2.6", MACHINE)
    assert reason is not None
    assert reason.code is ReasonCode.INCOMPATIBLE_DEPENDENCY
    assert reason.message == "found flash-attn 2.3.1, needs >=2.6"
    assert (reason.requested, reason.accepted) == ("2.3.1", ">=2.6")
    assert reason.remedy == "pip install 'flash-attn>=2.6'"


def test_a_package_that_is_missing_says_how_to_get_it() -> None:
    """With and without a range."""
    plain, ranged = requirement_reason("absent", MACHINE), requirement_reason("absent>=1", MACHINE)
    assert plain is not None
    assert ranged is not None
    assert (plain.code, plain.remedy) == (ReasonCode.MISSING_DEPENDENCY, "pip install absent")
    assert ranged.message == "absent is not installed; needs >=1"
    assert ranged.remedy == "pip install 'absent>=1'"


def test_a_version_that_cannot_be_read_is_a_reason() -> None:
    """Foreign metadata never crash a selection."""
    reason = requirement_reason("odd>=1", MACHINE)
    assert reason is not None
    assert reason.code is ReasonCode.INCOMPATIBLE_DEPENDENCY
    assert "'not a version', which cannot be read" in reason.message


def test_a_requirement_that_cannot_be_read_is_the_plugins_fault() -> None:
    """It shows the text."""
    with pytest.raises(ContractError, match=r"requirement 'torch >> 2' cannot be read"):
        requirement_reason("torch >> 2", MACHINE)
