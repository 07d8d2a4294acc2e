"""Resolving the platform: load, detect and activate, under the failure rule, with every candidate on record."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from hardpoint._candidates import cause_of, is_failure, remedies
from hardpoint._contract import check_detection
from hardpoint._probing import Failure, attempt
from hardpoint._race import Race, start_race, unknown_names
from hardpoint._reasons import Candidate, Outcome, Phase, Reason, ReasonCode
from hardpoint._say import WARNING, say_once
from hardpoint.errors import (
    AmbiguousPlatformError,
    ContractError,
    HardpointError,
    NoPlatformError,
    PlatformUnavailableError,
    ResolutionError,
    ResolutionInProgressError,
    UnknownPlatformError,
)
from hardpoint.hookspecs import Detection, DetectionStatus, Device, PlatformSpec, Rank
from hardpoint.platforms import Platform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hardpoint._machine import Machine
    from hardpoint._plugins import LoadedPlugin, PluginEntry, Registry
    from hardpoint._requests import Request
    from hardpoint._settings import Settings

_resolving_here = threading.local()


class Resolution(NamedTuple):
    """A resolved platform, and everything that was considered on the way.

    `source` says who asked: ``argument``, ``HARDPOINT_PLATFORM`` or ``automatic``. `is_fallback`: a better candidate,
    or an earlier one of the request, was lost to a failure.
    """

    platform: Platform
    candidates: tuple[Candidate, ...]
    requested: tuple[str, ...] = ()
    source: str = "automatic"
    is_fallback: bool = False
    strict: bool = False
    seconds: float = 0.0

    @property
    def chosen(self) -> Candidate:
        """The winner's own record."""
        return next(candidate for candidate in self.candidates if candidate.outcome is Outcome.CHOSEN)

    def explain(self) -> str:
        """Several lines: which platform, who asked for it, and why each of the others was not taken."""
        how = f" (fallback; {self.source})" if self.is_fallback else f" ({self.source})"
        return "\n".join(
            [f"platform {self.platform.name}{how}", *(f"  {candidate.describe()}" for candidate in self.candidates)]
        )

    def as_dict(self) -> dict[str, Any]:  # Any: JSON
        return {
            "platform": self.platform.name,
            "requested": list(self.requested),
            "source": self.source,
            "is_fallback": self.is_fallback,
            "strict": self.strict,
            "candidates": [candidate.as_dict() for candidate in self.candidates],
        }


class _Considered:
    """A candidate in the making."""

    def __init__(self, loaded: LoadedPlugin) -> None:
        self.loaded = loaded
        self.detection: Detection | None = None
        self.candidate: Candidate | None = None
        self.seconds = 0.0

    @property
    def rank(self) -> int:
        spec = self.loaded.spec
        return int(spec.rank) if isinstance(spec, PlatformSpec) else int(Rank.VENDOR)

    def record(self, outcome: Outcome, phase: Phase, reasons: tuple[Reason, ...] = ()) -> Candidate:
        self.candidate = Candidate(
            name=self.loaded.name,
            outcome=outcome,
            reasons=reasons,
            provenance=self.loaded.provenance,
            phase=phase,
            rank_reason=Rank(self.rank).name.lower().replace("_", "-"),
            seconds=self.seconds,
        )
        return self.candidate


def resolve_platform(
    registry: Registry,
    machine: Machine,
    settings: Settings,
    request: Request,
    *,
    strict: bool,
    note_progress: Callable[[str], None],
    inspecting: bool = False,
) -> Resolution:
    """One resolution, from the plugins' descriptors to an activated platform. Errors: see `hardpoint.errors`.

    `inspecting` records a plugin's bug as a candidate's outcome and goes on.
    """
    with _marked_as_resolving() as mark:

        def progress(text: str) -> None:
            mark.append(text)
            note_progress(text)

        resolver = _Resolver(registry, machine, settings, request, progress, strict=strict, inspecting=inspecting)
        return resolver.run()


def resolving_here() -> str | None:
    """What this thread is probing right now, if it is in the middle of a resolution."""
    marks: list[str] | None = getattr(_resolving_here, "marks", None)
    return None if marks is None else (marks[-1] if marks else "the plugins")


@contextmanager
def _marked_as_resolving() -> Iterator[list[str]]:
    if (plugin := resolving_here()) is not None:
        raise in_progress_error(plugin)
    _resolving_here.marks = []
    try:
        yield _resolving_here.marks
    finally:
        _resolving_here.marks = None


def in_progress_error(plugin: str) -> ResolutionInProgressError:
    """For a plugin that asks for the platform that is being resolved."""
    from hardpoint._importing import module_being_imported_here

    module = module_being_imported_here()
    when = "meanwhile" if module is None else f"while its module {module!r} was being imported"
    return ResolutionInProgressError(
        f"the platform is being resolved, and {plugin} asked for it {when}; "
        "a plugin gets everything it may know from the machine object that its hook is given"
    )


class _Resolver:
    def __init__(
        self,
        registry: Registry,
        machine: Machine,
        settings: Settings,
        request: Request,
        progress: Callable[[str], None],
        *,
        strict: bool,
        inspecting: bool,
    ) -> None:
        self.registry = registry
        self.machine = machine
        self.settings = settings
        self.request = request
        self.strict = strict
        self.inspecting = inspecting
        self.progress = progress
        self.considered: list[_Considered] = []
        self.out: list[Candidate] = []

    def run(self) -> Resolution:
        started = time.perf_counter()
        race = self._race()
        self.considered = [_Considered(loaded) for loaded in race.runners]
        self.considered.sort(key=self._position)
        self.out = list(race.out)
        for item in self.considered:
            self._detect(item)
        platform = self._activate_best()
        if platform is None:
            raise self._nothing_left()
        lost = self._losses(platform)
        self._speak_of_losses(platform, lost)
        return Resolution(
            platform=platform,
            candidates=self._candidates(),
            requested=self.request.names,
            source=self.request.source_of(platform.name),
            is_fallback=bool(lost),
            strict=self.strict,
            seconds=time.perf_counter() - started,
        )

    def _race(self) -> Race:
        request = self.request
        unknown = unknown_names(self.registry, "platform", request.explicit)
        if unknown and request.single:
            raise UnknownPlatformError(f"{unknown[request.names[0]]} ({request.describe()})")
        race = start_race(
            self.registry,
            "platform",
            self.settings,
            names=None if request.open else request.explicit,
            inspecting=self.inspecting,
            raise_as=self._explicit_error if request.single else None,
            note_progress=self.progress,
        )
        missing = tuple(
            Candidate(
                name=name,
                outcome=Outcome.NOT_INSTALLED,
                reasons=(Reason(code=ReasonCode.NOT_INSTALLED, message=text),),
            )
            for name, text in unknown.items()
        )
        return Race(race.runners, (*race.out, *missing))

    def _position(self, item: _Considered) -> tuple[int, int, str]:
        names = self.request.explicit
        place = names.index(item.loaded.name) if item.loaded.name in names else len(names)
        return place, item.rank, item.loaded.name

    def _detect(self, item: _Considered) -> None:
        loaded = item.loaded
        self.progress(str(loaded.provenance))

        def detect() -> Detection | None:
            answer = self.registry.call(loaded.plugin, "hardpoint_detect", machine=self.machine)
            return None if answer is None else check_detection(answer, loaded.provenance)

        started = time.perf_counter()
        outcome = attempt(
            detect,
            phase=Phase.DETECT,
            provenance=loaded.provenance,
            inspecting=self.inspecting,
            raise_as=self._raise_as(loaded.entry),
        )
        item.seconds = time.perf_counter() - started
        if isinstance(outcome, Failure):
            item.record(outcome.outcome, outcome.phase, (outcome.reason,))
        elif outcome is None:
            reason = Reason(code=ReasonCode.DECLINED, message="declined: it returned no detection")
            item.record(Outcome.DECLINED, Phase.DETECT, (reason,))
        elif outcome.status is DetectionStatus.USABLE:
            item.detection = outcome
        else:
            unusable = outcome.status is DetectionStatus.UNUSABLE
            item.record(Outcome.UNUSABLE if unusable else Outcome.ABSENT, Phase.DETECT, outcome.reasons)

    def _raise_as(self, entry: PluginEntry) -> Callable[[Failure], HardpointError] | None:
        return (lambda failure: self._explicit_error(entry, failure)) if self.request.single else None

    def _explicit_error(self, entry: PluginEntry, failure: Failure) -> HardpointError:
        candidate = failure.as_candidate(entry.name, entry.provenance)
        return PlatformUnavailableError(
            f"platform {entry.name!r} ({self.request.describe()}) cannot be used here: {failure.reason.message} "
            f"[{entry.provenance}, phase {failure.phase}]{remedies(candidate)}",
            candidates=(candidate,),
        )

    def _activate_best(self) -> Platform | None:
        usable = [item for item in self.considered if item.detection is not None]
        while usable:
            first = usable[0]
            rivals = [item for item in usable if self._position(item)[:2] == self._position(first)[:2]]
            if len(rivals) > 1:
                raise self._ambiguous(rivals)
            platform = self._activate(first)
            if platform is not None:
                for item in usable[1:]:
                    reason = Reason(code=ReasonCode.OTHER, message=f"usable; {platform.name} stands before it")
                    item.record(Outcome.VALID, Phase.DETECT, (reason,))
                return platform
            usable.pop(0)
        return None

    def _activate(self, item: _Considered) -> Platform | None:
        loaded, detection = item.loaded, item.detection
        self.progress(str(loaded.provenance))
        cls = self.registry.load_class(
            loaded, Platform, phase=Phase.ACTIVATE, inspecting=self.inspecting, raise_as=self._raise_as(loaded.entry)
        )
        if isinstance(cls, Failure):
            item.record(cls.outcome, cls.phase, (cls.reason,))
            return None
        devices = detection.devices if detection is not None else ()
        platform = attempt(
            lambda: self._build(loaded, cls, devices),
            phase=Phase.ACTIVATE,
            provenance=loaded.provenance,
            inspecting=self.inspecting,
            raise_as=self._raise_as(loaded.entry),
        )
        if isinstance(platform, Failure):
            item.record(platform.outcome, platform.phase, (platform.reason,))
            return None
        notes = detection.notes if detection is not None else ()
        item.record(Outcome.CHOSEN, Phase.ACTIVATE, (*loaded.remarks, *notes))
        return platform

    def _build(self, loaded: LoadedPlugin, cls: type[Platform], devices: tuple[Device, ...]) -> Platform:
        platform = cls(self.machine, devices)
        if not platform._is_initialised:  # the core's own members, kept out of a vendor's sight
            raise ContractError(
                f"{loaded.provenance}: {loaded.spec.target!r} does not call super().__init__(machine, devices)",
                plugin=loaded.provenance.plugin,
            )
        if platform.name != loaded.name:
            raise ContractError(
                f"{loaded.provenance}: its platform calls itself {platform.name!r}; "
                f"the entry point says {loaded.name!r}",
                plugin=loaded.provenance.plugin,
            )
        platform._attach(self.registry, self.settings, loaded.provenance)  # as above
        return platform

    def _ambiguous(self, rivals: list[_Considered]) -> AmbiguousPlatformError:
        names = [item.loaded.name for item in rivals]
        listed = " and ".join(str(item.loaded.provenance) for item in rivals)
        return AmbiguousPlatformError(
            f"{len(rivals)} platforms are usable here and none goes before the other: {listed}; "
            f"set HARDPOINT_PLATFORM={names[0]} (or {', '.join(names[1:])})",
            candidates=self._candidates(),
        )

    def _candidates(self) -> tuple[Candidate, ...]:
        made = [
            item.candidate if item.candidate is not None else item.record(Outcome.VALID, Phase.DETECT)
            for item in self.considered
        ]
        return (*made, *self.out)

    def _losses(self, platform: Platform) -> list[Candidate]:
        """Candidates that may have stood before the winner and were lost: to a failure, or though asked for."""
        names = self.request.explicit
        place = names.index(platform.name) if platform.name in names else len(names)
        lost = []
        for item in self.considered:
            if item.loaded.name == platform.name:
                break
            if item.candidate is None or (item.loaded.name not in names and self._is_settled(item, platform)):
                continue
            if _is_loss(item.candidate) or item.loaded.name in names:
                lost.append(item.candidate)
        for candidate in self.out:
            if candidate.name in names:
                if names.index(candidate.name) < place:
                    lost.append(candidate)
            elif _is_loss(candidate):
                # The rank of a plugin that could not be loaded is unknown; it may well have been the better one.
                lost.append(candidate)
        return lost

    def _is_settled(self, item: _Considered, platform: Platform) -> bool:
        """Whether torch's build has settled it between two of one rank: then neither was the better one."""
        (winner,) = (other for other in self.considered if other.loaded.name == platform.name)
        if item.candidate is None or self._position(item)[:2] != self._position(winner)[:2]:
            return False
        return {reason.code for reason in item.candidate.reasons} <= {ReasonCode.OTHER_BUILD, ReasonCode.MASKED}

    def _speak_of_losses(self, platform: Platform, lost: list[Candidate]) -> None:
        for candidate in lost:
            told = f"platform {candidate.describe(whose=False)}{remedies(candidate)}"
            text = f"{told} [{candidate.provenance or 'no distribution'}]"
            if self.strict and candidate.name not in self.request.explicit:
                raise PlatformUnavailableError(
                    f"{text}; strict mode does not fall back to {platform.name}", candidates=self._candidates()
                ) from cause_of(candidate)
            say_once(WARNING, "%s; using %s instead", text, platform.name)

    def _nothing_left(self) -> HardpointError:
        candidates = self._candidates()
        if not candidates:
            return NoPlatformError(
                "no platform plugin is installed: pip install hardpoint-cpu (or a vendor's plugin), or register one "
                "with hardpoint.register('platform', name, plugin)"
            )
        from hardpoint._table import candidate_table

        lines = "".join(f"\n{line}" for line in candidate_table(candidates, "platform"))
        error: type[ResolutionError] = NoPlatformError
        if self.request.explicit and not self.request.open:
            unknown = all(candidate.outcome is Outcome.NOT_INSTALLED for candidate in candidates)
            error = UnknownPlatformError if unknown else PlatformUnavailableError
        return error(f"no platform can be used here ({self.request.describe()}):{lines}", candidates=candidates)


def _is_loss(candidate: Candidate) -> bool:
    if candidate.outcome is Outcome.UNUSABLE:
        # A mask that hides every device is the user's own word; one with something to mend is a mistake.
        return any(reason.code is not ReasonCode.MASKED or reason.remedy for reason in candidate.reasons)
    return is_failure(candidate)


__all__ = ["Resolution", "in_progress_error", "resolve_platform", "resolving_here"]
