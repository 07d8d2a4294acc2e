"""Evaluating one backend for one request: metadata and declared support, then its class, then its preparation.

Every step that runs a plugin's code goes through the failure rule. All reasons of a step are collected; the next step
is taken only where there was none, so that a heavy module is never imported for a request that it could not serve.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from hardpoint._backend_spec import BackendSpec
from hardpoint._kernels import rejection_for, static_rejection_for
from hardpoint._probing import Failure, add_note, attempt, classify
from hardpoint._reasons import Candidate, Outcome, Phase, Provenance, Reason, ReasonCode
from hardpoint._requirements import requirement_reason
from hardpoint.errors import ContractError
from hardpoint.hookspecs import as_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hardpoint._capability import DeviceCapability
    from hardpoint._plugins import LoadedPlugin, Registry
    from hardpoint.attention import AttentionBackend, AttentionConfig
    from hardpoint.errors import HardpointError
    from hardpoint.platforms import Platform

_T = TypeVar("_T")

TORCH_DEVICE = "torch-device"

# In CPython 3.11 an enum's member costs 0.2 µs each time it is looked up, and these are for every candidate.
_SUPPORT, _REJECTED, _NOT_THERE = Phase.SUPPORT, Outcome.REJECTED, Outcome.NOT_INSTALLED


class Depth(StrEnum):
    """How deep a selection looks."""

    STATIC = "static"
    """Metadata, required packages, declared support. Imports no backend."""
    LOADED = "loaded"
    """The class was imported and its `validate_configuration` ran."""
    READY = "ready"
    """Kernels were imported and `prepare` ran: caches are open, what the first forward needs is compiled."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, on the devices that must all be able to serve it (logical index and capability)."""

    config: AttentionConfig
    devices: tuple[tuple[int, DeviceCapability | None], ...]
    depth: Depth


class Evaluator:
    """Evaluates backends for one request on one platform."""

    def __init__(self, platform: Platform, registry: Registry, asked: Asked, *, inspecting: bool = False) -> None:
        self.platform = platform
        self.registry = registry
        self.asked = asked
        self.inspecting = inspecting
        self.distinct = _distinct_capabilities(asked.devices)
        self.layouts: dict[str, str] = {}

    def evaluate(
        self,
        loaded: LoadedPlugin,
        rank_reason: str | None = None,
        raise_as: Callable[[Failure], HardpointError] | None = None,
    ) -> Candidate:
        """The candidate's record: VALID, or why not. `raise_as`: see `hardpoint._probing.attempt`."""
        started = time.perf_counter()
        outcome, phase, reasons = self._judge(loaded, raise_as)
        return Candidate(
            name=loaded.entry.name,
            outcome=outcome,
            reasons=tuple(reasons),
            provenance=loaded.entry.provenance,
            phase=phase,
            rank_reason=rank_reason,
            seconds=time.perf_counter() - started,
        )

    def _judge(
        self, loaded: LoadedPlugin, raise_as: Callable[[Failure], HardpointError] | None
    ) -> tuple[Outcome, Phase, Sequence[Reason]]:
        """The outcome, how far it came, and the reasons."""
        spec = loaded.spec
        if not isinstance(spec, BackendSpec):
            raise TypeError(f"{loaded.provenance} is no backend")
        found = attempt(
            partial(self._static_reasons, spec),
            phase=_SUPPORT,
            provenance=loaded.entry.provenance,
            inspecting=self.inspecting,
            raise_as=raise_as,
        )
        if isinstance(found, Failure):
            return found.outcome, found.phase, (found.reason,)
        if found:
            return _static_outcome(found), _SUPPORT, found
        if self.asked.depth is Depth.STATIC:
            return Outcome.VALID, Phase.SUPPORT, loaded.remarks
        return self._judge_class(loaded, raise_as)

    def _judge_class(
        self, loaded: LoadedPlugin, raise_as: Callable[[Failure], HardpointError] | None
    ) -> tuple[Outcome, Phase, Sequence[Reason]]:
        from hardpoint.attention import AttentionBackend

        def guarded(action: Callable[[], list[Reason]], phase: Phase) -> list[Reason] | Failure:
            return attempt(
                action, phase=phase, provenance=loaded.provenance, inspecting=self.inspecting, raise_as=raise_as
            )

        cls = self.registry.load_class(
            loaded, AttentionBackend, phase=Phase.IMPORT, inspecting=self.inspecting, raise_as=raise_as
        )
        if isinstance(cls, Failure):
            return cls.outcome, cls.phase, (cls.reason,)
        found = guarded(lambda: self._class_reasons(loaded, cls), Phase.VALIDATE)
        if isinstance(found, Failure):
            return found.outcome, found.phase, (found.reason,)
        if found:
            return Outcome.REJECTED, Phase.VALIDATE, found
        if self.asked.depth is Depth.LOADED:
            return Outcome.VALID, Phase.VALIDATE, loaded.remarks
        found = guarded(lambda: self._prepare(cls), Phase.PREPARE)
        if isinstance(found, Failure):
            return found.outcome, found.phase, (found.reason,)
        return Outcome.VALID, Phase.PREPARE, loaded.remarks

    def _static_reasons(self, spec: BackendSpec) -> list[Reason]:
        config = self.asked.config
        if spec.kind != config.kind:
            sentence = f"it is a backend of kind {spec.kind}, and {config.kind} was asked for"
            return [Reason(code=ReasonCode.KIND, message=sentence, requested=config.kind, accepted=spec.kind)]
        if reason := self._platform_reason(spec):
            return [reason]
        reasons = [found for text in spec.requires if (found := self._requirement_reason(text)) is not None]
        if spec.kernel_modules and (found := self._kernel_reason(spec.kernel_modules)) is not None:
            reasons.append(found)
        for index, capability in self.distinct:
            against = spec.support.reasons(capability, config, self._requirement_reason)
            if spec.kernel_architectures and (found := _architecture_reason(spec, capability)) is not None:
                against = (*against, found)
            if against:
                reasons += self._on_device(index, capability, against)
        return list(dict.fromkeys(reasons)) if len(reasons) > 1 else reasons

    def _requirement_reason(self, text: str) -> Reason | None:
        # To look for a distribution takes a live machine a millisecond, and many backends ask for the same ones.
        answers = self.platform._selections.requirements  # noqa: SLF001  # the core's own member
        key = (self.registry.generation, text)
        try:
            return answers[key]
        except KeyError:
            return answers.setdefault(key, requirement_reason(text, self.platform.machine))

    def _platform_reason(self, spec: BackendSpec) -> Reason | None:
        platform = self.platform
        if platform.name in spec.platforms:
            return None
        if TORCH_DEVICE in spec.platforms:
            features = self._of_platform(lambda: platform.torch_features)
            if features and features.issuperset(spec.torch_features):
                return None
            missing = [name for name in spec.torch_features if name not in features]
            lack = ", ".join(missing) or "any torch feature"
            sentence = f"platform {platform.name} does not declare {lack}"
        else:
            sentence = f"runs on {' or '.join(spec.platforms)}; this platform is {platform.name}"
        return Reason(
            code=ReasonCode.CAPABILITY, message=sentence, requested=platform.name, accepted=" or ".join(spec.platforms)
        )

    def _kernel_reason(self, wanted: tuple[str, ...]) -> Reason | None:
        platform = self.platform
        report = platform.kernel_report
        if report is not None and platform.machine.live:
            return rejection_for(report, wanted)
        # As for requirements: a live machine looks for the modules' distributions.
        answers = platform._selections.kernels  # noqa: SLF001  # the core's own member
        key = (self.registry.generation, wanted)
        if key not in answers:
            modules = self._of_platform(platform.kernel_modules)
            answers[key] = static_rejection_for(modules, platform.machine, wanted)
        return answers[key]

    def _of_platform(self, question: Callable[[], _T]) -> _T:
        """What the platform's own code answers: a bug in there is the platform plugin's, not this backend's."""
        try:
            return question()
        except Exception as error:
            if classify(error, phase=_SUPPORT) is None:
                add_note(error, provenance_of(self.platform), _SUPPORT)
            raise

    def _on_device(
        self, index: int, capability: DeviceCapability | None, reasons: Sequence[Reason]
    ) -> Sequence[Reason]:
        if len(self.asked.devices) == 1:
            return reasons
        described = "capability unknown" if capability is None else str(capability)
        return [reason.on_device(index, described) for reason in reasons]

    def _class_reasons(self, loaded: LoadedPlugin, cls: type[AttentionBackend]) -> list[Reason]:
        config = self.asked.config
        reasons: list[Reason] = []
        for index, capability in self.distinct:
            answer: Any = cls.validate_configuration(capability, config)
            if not isinstance(answer, (list, tuple)) or not all(isinstance(item, (str, Reason)) for item in answer):
                raise ContractError(
                    f"{loaded.provenance}: validate_configuration() returned {answer!r}; expected a list of reasons",
                    plugin=loaded.provenance.plugin,
                )
            reasons += self._on_device(index, capability, [as_reason(item) for item in answer])
        if not reasons and config.block_size is not None:
            self.layouts[loaded.name] = cls.kv_cache_spec(config).layout
        return reasons

    def _prepare(self, cls: type[AttentionBackend]) -> list[Reason]:
        self._of_platform(self.platform.register_torch_device)
        for index, _ in self.asked.devices:
            cls.prepare(self.asked.config, self.platform.device_string(index))
        return []


def provenance_of(platform: Platform) -> Provenance:
    """Where a platform comes from; of one that was made by hand only the name is known."""
    return platform._provenance or Provenance(plugin=f"platform/{platform.name}")  # noqa: SLF001  # the core's own


def _distinct_capabilities(
    devices: Sequence[tuple[int, DeviceCapability | None]],
) -> tuple[tuple[int, DeviceCapability | None], ...]:
    """One device per distinct capability: equal ones give equal answers."""
    first: dict[DeviceCapability | None, int] = {}
    for index, capability in devices:
        first.setdefault(capability, index)
    return tuple((index, capability) for capability, index in first.items())


def _architecture_reason(spec: BackendSpec, capability: DeviceCapability | None) -> Reason | None:
    built = spec.kernel_architectures
    arch = None if capability is None else capability.arch
    if arch is not None and any(arch.startswith(item[:-1]) if item.endswith("*") else arch == item for item in built):
        return None
    accepted = " or ".join(built)
    shown = arch or "unknown"
    return Reason(
        code=ReasonCode.KERNEL_ARCH,
        message=f"its kernels are built for {accepted}, not for {shown}",
        requested=arch,
        accepted=accepted,
    )


_NOT_INSTALLED = frozenset({ReasonCode.MISSING_DEPENDENCY, ReasonCode.NOT_INSTALLED})
_ENVIRONMENT = _NOT_INSTALLED | {ReasonCode.INCOMPATIBLE_DEPENDENCY, ReasonCode.KERNEL_MISSING}


def _static_outcome(reasons: Sequence[Reason]) -> Outcome:
    """A request that the backend could not serve anyway is a refusal, whatever else is missing."""
    outcome = _NOT_THERE
    for reason in reasons:
        if reason.code not in _ENVIRONMENT:
            return _REJECTED
        if reason.code not in _NOT_INSTALLED:
            outcome = Outcome.FAILED
    return outcome
