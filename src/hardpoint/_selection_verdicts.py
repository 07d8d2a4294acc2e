"""What a selection says of candidates that were lost: the errors that end it, and the warnings where it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint._candidates import is_failure, remedies
from hardpoint._reasons import Outcome
from hardpoint._say import WARNING, say_once
from hardpoint.errors import BackendUnavailableError, NoBackendError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint._reasons import Candidate
    from hardpoint._requests import Request
    from hardpoint.attention import AttentionConfig
    from hardpoint.errors import HardpointError
    from hardpoint.platforms import Platform

# In CPython 3.11 an enum's member costs 0.2 µs each time it is looked up, and this is for every candidate.
_CHOSEN = Outcome.CHOSEN


class Verdicts:
    """For one question on one platform."""

    def __init__(self, platform: Platform, config: AttentionConfig) -> None:
        self.platform = platform
        self.config = config

    def unavailable(self, request: Request, candidate: Candidate) -> HardpointError:
        return BackendUnavailableError(
            f"{self.config.kind} backend {candidate.describe()}{remedies(candidate)} "
            f"[{request.describe()}; platform {self.platform.name}; {self.config.describe()}]",
            candidates=(candidate,),
        )

    def strict(self, candidate: Candidate, before: Sequence[Candidate]) -> HardpointError:
        return BackendUnavailableError(
            f"{self.config.kind} backend {candidate.describe()}{remedies(candidate)}; strict mode does not "
            f"go on to the next candidate [platform {self.platform.name}; {self.config.describe()}]",
            candidates=(*before, candidate),
        )

    def nothing_left(self, request: Request, candidates: Sequence[Candidate]) -> HardpointError:
        from hardpoint._table import candidate_table

        lines = "".join(f"\n{line}" for line in candidate_table(candidates, "backend"))
        if not candidates:
            lines = (
                "\n  no backend plugin of this kind is installed: pip install hardpoint-torch-sdpa (or another), or "
                "register one with hardpoint.register('backend', name, plugin)"
            )
        error = BackendUnavailableError if request.explicit and not request.open else NoBackendError
        return error(
            f"no {self.config.kind} backend can run on {self.platform.name} ({request.describe()}) "
            f"for {self.config.describe()}:{lines}",
            candidates=candidates,
        )

    def speak_of_losses(self, request: Request, candidates: Sequence[Candidate], winner: str) -> bool:
        """One WARNING for each better candidate that was lost; whether there was any."""
        lost = False
        explicit = request.explicit
        for candidate in candidates:
            if candidate.outcome is _CHOSEN:
                break
            if not is_failure(candidate) and candidate.name not in explicit:
                continue
            lost = True
            say_once(WARNING, "%s backend %s%s [%s]; using %s instead",
                self.config.kind, candidate.describe(whose=False), remedies(candidate),
                candidate.provenance or "no distribution", winner,
            )  # fmt: skip
        return lost
