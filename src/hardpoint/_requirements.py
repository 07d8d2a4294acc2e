"""Required packages, checked from metadata: nothing is imported to find out whether it is there."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from hardpoint._reasons import Reason, ReasonCode
from hardpoint.errors import ContractError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from hardpoint._machine import Machine


@lru_cache(maxsize=256)
def _parse(text: str) -> Requirement:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return Requirement(text)
    except InvalidRequirement as error:
        raise ContractError(f"requirement {text!r} cannot be read: {error}") from None


def requirement_reason(text: str, machine: Machine) -> Reason | None:
    """Why a requirement is not met on a machine, with the pip command; None: it is met. Errors: `ContractError`."""
    requirement = _parse(text)
    if requirement.marker is not None and not requirement.marker.evaluate():
        return None
    found = machine.distribution_version(requirement.name)
    remedy = f"pip install {text!r}" if requirement.specifier else f"pip install {requirement.name}"
    wanted = str(requirement.specifier) or "any version"
    if found is None:
        return Reason(
            code=ReasonCode.MISSING_DEPENDENCY,
            message=f"{requirement.name} is not installed; needs {wanted}",
            accepted=wanted,
            remedy=remedy,
        )
    from packaging.version import InvalidVersion, Version

    try:
        # A development build satisfies the range that its number lies in.
        is_met = requirement.specifier.contains(Version(found), prereleases=True)
        problem = f"found {requirement.name} {found}, needs {wanted}"
    except InvalidVersion:
        is_met = False
        problem = f"found {requirement.name} of version {found!r}, which cannot be read; needs {wanted}"
    if is_met:
        return None
    return Reason(
        code=ReasonCode.INCOMPATIBLE_DEPENDENCY, message=problem, requested=found, accepted=wanted, remedy=remedy
    )


def required_name(text: str) -> str | None:
    """The name of the distribution that a requirement is about; None where it cannot be read."""
    try:
        return _parse(text).name
    except ContractError:
        return None
