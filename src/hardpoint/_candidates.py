"""What a candidate's record means for a decision: whether it was a loss, what remedies it, what to raise from."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from hardpoint._probing import Failure
from hardpoint._reasons import Candidate, Outcome, Phase, Reason, ReasonCode

if TYPE_CHECKING:
    from hardpoint.errors import HardpointError

_FAILURES: Final = frozenset((Outcome.FAILED, Outcome.CONTRACT, Outcome.UNTRUSTED))


def is_failure(candidate: Candidate) -> bool:
    """Whether it was lost to something that is wrong here, as opposed to being refused or not installed."""
    return candidate.outcome in _FAILURES


def cause_of(candidate: Candidate) -> HardpointError:
    """An exception to raise from: what was recorded of the failure."""
    return Failure(candidate.outcome, candidate.phase or Phase.LOAD, candidate.reasons[0]).as_cause()


def remedies(candidate: Candidate) -> str:
    """`` (pip install x; set Y)``, or nothing: to be appended to a sentence."""
    found = list(dict.fromkeys(reason.remedy for reason in candidate.reasons if reason.remedy))
    return f" ({'; '.join(found)})" if found else ""


@lru_cache(maxsize=256)
def not_installed(name: str, distribution: str | None) -> Candidate:
    """The record of a backend that a platform's table names and nobody has installed."""
    brings = f" ({distribution})" if distribution else ""
    reason = Reason(
        code=ReasonCode.NOT_INSTALLED,
        message=f"its plugin is not installed{brings}",
        remedy=f"pip install {distribution}" if distribution else None,
    )
    return Candidate(name=name, outcome=Outcome.NOT_INSTALLED, reasons=(reason,), phase=Phase.DISCOVER)


def unknown(name: str, sentence: str | None) -> Candidate:
    """The record of a name that no plugin of the race has, and what is said of it."""
    reasons = () if sentence is None else (Reason(code=ReasonCode.NOT_INSTALLED, message=sentence),)
    return Candidate(name=name, outcome=Outcome.NOT_INSTALLED, reasons=reasons, phase=Phase.DISCOVER)
