"""Selecting a backend: the candidates in their order, the first valid one, and why each of the others was not taken."""

from __future__ import annotations

from dataclasses import replace
from operator import index
from typing import TYPE_CHECKING

from hardpoint._candidates import cause_of, is_failure
from hardpoint._capability import DeviceCapability
from hardpoint._evaluation import Asked, Depth, Evaluator
from hardpoint._flight import at_work
from hardpoint._importing import decided_provisionally
from hardpoint._reasons import Candidate, Outcome, Provenance, Reason, ReasonCode
from hardpoint._requests import AUTO, Request, plain_names, read_request
from hardpoint._say import INFO, say_once
from hardpoint._selection import NOTHING_VALID, Selection
from hardpoint._selection_order import Ordering
from hardpoint._selection_verdicts import Verdicts
from hardpoint._settings import backend_variable, read_settings, split_names
from hardpoint.attention import AttentionConfig
from hardpoint.errors import BackendUnavailableError, ConfigError, HardpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hardpoint._plugins import LoadedPlugin, PluginEntry, Registry
    from hardpoint._probing import Failure
    from hardpoint._selection_order import RaiseAs
    from hardpoint._settings import Settings
    from hardpoint.platforms import Platform


def select_backend(
    platform: Platform,
    config: AttentionConfig,
    *,
    requested: str | Sequence[str] | Selection | None,
    devices: Sequence[int] | int | None,
    depth: Depth | str,
    strict: bool | None,
) -> Selection:
    """See `Platform.select_backend`."""
    try:
        variable = _VARIABLES[config.kind]
    except (AttributeError, KeyError):
        raise ConfigError(f"expected an AttentionConfig, got {config!r}") from None
    value = platform.machine.variable(variable)
    registry = platform._registry  # noqa: SLF001  # the core's own members, kept out of a vendor's sight
    cache = platform._selections  # noqa: SLF001  # as above
    # The key may hold nothing but plain values: it lives as long as the platform.
    if requested is not None and type(requested) is not str and not isinstance(requested, Selection):
        requested = plain_names(requested, "backend")
    if devices is not None and type(devices) is not int:
        devices = _plain_indices(devices)
    if not isinstance(depth, str):
        raise ConfigError(f"depth={depth!r}: known are {', '.join(Depth)}", field="depth")
    key = (config, requested, devices, depth, None if strict is None else bool(strict), value)
    if registry is not None:
        # The kernel report changes what is valid once, when it comes to be.
        known = cache.get(key, (registry.generation, platform.kernel_report is not None))
        if known is not None:
            return known
    with at_work:
        selector = _Selector(platform, config, devices=devices, depth=depth, strict=strict)
        selection = selector.select(_request_of(requested, value, variable), requested)
    if not decided_provisionally(selection.candidates):
        cache.put(key, (selector.registry.generation, platform.kernel_report is not None), selection)
    return selection


def _plain_indices(devices: object) -> tuple[int, ...]:
    try:
        items = list(devices)  # type: ignore[call-overload]  # what is none of the two ends below
    except TypeError:
        items = [devices]
    if any(isinstance(item, bool) or not hasattr(item, "__index__") for item in items):
        raise ConfigError(f"devices={devices!r}: expected the logical number of a device, or several", field="devices")
    return tuple(map(index, items))


# In CPython 3.11 an enum's member costs 0.2 µs each time it is looked up, and these are for every candidate.
_VALID, _CHOSEN = Outcome.VALID, Outcome.CHOSEN
_VARIABLES = {kind: backend_variable(kind) for kind in ("attention", "mla_attention")}


def survey_backends(
    platform: Platform,
    config: AttentionConfig,
    *,
    depth: Depth | str,
    requested: str | Sequence[str] | None = None,
    devices: Sequence[int] | None = None,
) -> Selection:
    """What a selection would choose, with every candidate evaluated and bugs recorded: for inspection."""
    variable = backend_variable(config.kind)
    with at_work:
        selector = _Selector(platform, config, devices=devices, depth=depth, strict=False, inspecting=True)
        return selector.survey(_request_of(requested, platform.machine.variable(variable), variable))


def valid_backends(
    platform: Platform,
    device_capability: DeviceCapability | Sequence[DeviceCapability | None] | None,
    config: AttentionConfig,
    *,
    depth: Depth | str,
) -> tuple[list[Candidate], dict[str, Candidate]]:
    """See `Platform.get_valid_backends`."""
    capabilities = (
        (device_capability,)
        if device_capability is None or isinstance(device_capability, DeviceCapability)
        else tuple(device_capability)
    )
    for capability in capabilities:
        if capability is not None and not isinstance(capability, DeviceCapability):
            raise ConfigError(
                f"device_capability={capability!r}: expected a DeviceCapability, such as DeviceCapability.parse('9.0')",
                field="device_capability",
            )
    with at_work:
        selector = _Selector(platform, config, devices=tuple(enumerate(capabilities)), depth=depth, strict=False)
        return selector.all_valid()


def _request_of(requested: str | Sequence[str] | Selection | None, value: str | None, variable: str) -> Request:
    if isinstance(requested, Selection):
        requested = requested.backend or ()
    return read_request(requested, split_names(value or ""), variable, "backend")


class _Selector:
    """One question, on one platform."""

    def __init__(
        self,
        platform: Platform,
        config: AttentionConfig,
        *,
        devices: Sequence[int] | int | Sequence[tuple[int, DeviceCapability | None]] | None,
        depth: Depth | str,
        strict: bool | None,
        inspecting: bool = False,
    ) -> None:
        if not isinstance(config, AttentionConfig):
            raise ConfigError(f"expected an AttentionConfig, got {config!r}")
        self.platform = platform
        self.config = config
        self.registry, self.settings = _decided_with(platform)
        self.strict = self.settings.strict if strict is None else strict
        self.inspecting = inspecting
        try:
            wanted_depth = Depth(depth)
        except ValueError:
            raise ConfigError(f"depth={depth!r}: known are {', '.join(Depth)}", field="depth") from None
        # On a machine that is not live nothing is loaded.
        self.depth = wanted_depth if platform.machine.live else Depth.STATIC
        self.devices = self._capabilities(devices)
        asked = Asked(config, self.devices, self.depth)
        self.evaluator = Evaluator(platform, self.registry, asked, inspecting=inspecting)
        capabilities = [capability for _, capability in self.devices]
        self.ordering = Ordering(platform, config, capabilities, self.registry, self.settings, inspecting=inspecting)
        self.verdicts = Verdicts(platform, config)

    def _capabilities(
        self, devices: Sequence[int] | int | Sequence[tuple[int, DeviceCapability | None]] | None
    ) -> tuple[tuple[int, DeviceCapability | None], ...]:
        if devices is None:
            devices = range(self.platform.device_count())
        elif isinstance(devices, int):
            devices = (devices,)
        pairs = tuple(
            item if isinstance(item, tuple) else (item, self.platform.get_device_capability(item)) for item in devices
        )
        if not pairs:
            raise ConfigError("devices is empty; name at least one", field="devices")
        return pairs

    def select(self, request: Request, requested: object = None) -> Selection:
        if self.platform.attention_note is not None:
            return self._no_selection(request)
        if self.depth is Depth.READY:
            self.platform.import_kernels()
        order = self._in_order(request)
        candidates: list[Candidate] = []
        winner: Candidate | None = None
        for name, item in order:
            if winner is not None:
                candidates.append(self._not_tried(name, item, winner.name))
                continue
            candidate = self._consider(name, item, request)
            if candidate.outcome is _VALID:
                candidate = winner = replace(candidate, outcome=Outcome.CHOSEN)
            elif self.strict and name not in request.explicit and is_failure(candidate):
                raise self.verdicts.strict(candidate, candidates) from cause_of(candidate)
            candidates.append(candidate)
        if winner is None:
            raise self.verdicts.nothing_left(request, candidates)
        lost = self.verdicts.speak_of_losses(request, candidates, winner.name)
        selection = self._selection(request, candidates, winner, is_fallback=lost)
        if isinstance(requested, Selection):
            self._check_shared_layout(requested, selection)
        say_once(INFO, "%s on %s: backend %s (%s) for %s",
            self.config.kind, self.platform.name, winner.name, request.describe(), self.config.describe(),
        )  # fmt: skip
        return selection

    def survey(self, request: Request) -> Selection:
        """Every candidate evaluated, and the first valid one that may be taken chosen; no error where there is none."""
        if self.platform.attention_note is not None:
            return self._selection(request, (), None, note=self.platform.attention_note)
        # Also those outside a request that binds: their reasons are what an inspection is made for.
        order = self._in_order(request if request.open else Request((*request.names, AUTO), request.source))
        candidates: list[Candidate] = []
        winner: Candidate | None = None
        for name, item in order:
            candidate = self._consider(name, item, Request())
            if winner is None and candidate.outcome is _VALID and (request.open or name in request.explicit):
                candidate = winner = replace(candidate, outcome=Outcome.CHOSEN)
            candidates.append(candidate)
        before = len(candidates) if winner is None else candidates.index(winner)
        lost = any(is_failure(item) or item.name in request.explicit for item in candidates[:before])
        if self.ordering.platform_bug is not None:
            candidates.insert(0, self.ordering.platform_bug)
        if winner is None:
            asked = request.explicit if not request.open else ()
            note = f"nothing that was asked for is valid: {', '.join(asked)}" if asked else NOTHING_VALID
            return self._selection(request, candidates, None, note=note)
        return self._selection(request, candidates, winner, is_fallback=lost)

    def all_valid(self) -> tuple[list[Candidate], dict[str, Candidate]]:
        if self.platform.attention_note is not None:
            return [], {}
        if self.depth is Depth.READY:
            self.platform.import_kernels()
        valid: list[Candidate] = []
        rejected: dict[str, Candidate] = {}
        for name, item in self._in_order(Request()):
            candidate = self._consider(name, item, Request())
            if candidate.outcome is _VALID:
                valid.append(candidate)
            else:
                rejected[name] = candidate
        return valid, rejected

    def _in_order(self, request: Request) -> list[tuple[str, LoadedPlugin | Candidate]]:
        return self.ordering.candidates(request, self._raise_at_load(request) if request.single else None)

    def _raise_at_load(self, request: Request) -> RaiseAs:
        def build(entry: PluginEntry, failure: Failure) -> HardpointError:
            return self.verdicts.unavailable(request, failure.as_candidate(entry.name, entry.provenance))

        return build

    def _consider(self, name: str, item: LoadedPlugin | Candidate, request: Request) -> Candidate:
        rank_reason = self.ordering.rank_reasons.get(name)
        if isinstance(item, Candidate):
            candidate = item if item.rank_reason == rank_reason else replace(item, rank_reason=rank_reason)
        else:
            raise_as: Callable[[Failure], HardpointError] | None = None
            if request.single or (self.strict and name not in request.explicit and not self.inspecting):
                provenance = item.provenance

                def raise_as(failure: Failure) -> HardpointError:
                    failed = failure.as_candidate(name, provenance, rank_reason)
                    return (
                        self.verdicts.unavailable(request, failed)
                        if request.single
                        else self.verdicts.strict(failed, [])
                    )

            candidate = self.evaluator.evaluate(item, rank_reason, raise_as)
        if request.single and candidate.outcome is not _VALID:
            raise self.verdicts.unavailable(request, candidate)
        return candidate

    def _not_tried(self, name: str, item: LoadedPlugin | Candidate, winner: str) -> Candidate:
        if isinstance(item, Candidate):
            return item
        if name in self.ordering.foreign:
            # Nothing of it runs: the platform alone refuses it.
            return self.evaluator.evaluate(item)
        reason = Reason(code=ReasonCode.OTHER, message=f"{winner} stands before it and is valid")
        return Candidate(
            name=name,
            outcome=Outcome.NOT_TRIED,
            reasons=(reason,),
            provenance=item.provenance,
            rank_reason=self.ordering.rank_reasons.get(name),
        )

    def _no_selection(self, request: Request) -> Selection:
        note = self.platform.attention_note
        if request.explicit and not request.open:
            raise BackendUnavailableError(
                f"platform {self.platform.name} has no selectable {self.config.kind} backend "
                f"({request.describe()}): {note}"
            )
        return self._selection(request, (), None, note=note)

    def _selection(
        self,
        request: Request,
        candidates: Sequence[Candidate],
        winner: Candidate | None,
        *,
        is_fallback: bool = False,
        note: str | None = None,
    ) -> Selection:
        return Selection(
            kind=self.config.kind,
            config=self.config,
            platform=self.platform.name,
            backend=None if winner is None else winner.name,
            depth=self.depth,
            candidates=tuple(candidates),
            devices=tuple(index for index, _ in self.devices),
            requested=request.names,
            source=request.source if winner is None else request.source_of(winner.name),
            is_fallback=is_fallback,
            layout=None if winner is None else self.evaluator.layouts.get(winner.name),
            provenance=None if winner is None else winner.provenance,
            note=note,
            live=self.platform.machine.live,
        )

    def _check_shared_layout(self, target: Selection, selection: Selection) -> None:
        if target.layout != selection.layout:
            raise BackendUnavailableError(
                f"{selection.backend} would read the shared cache as {selection.layout}, "
                f"and it is written as {target.layout} "
                f"[{self.config.describe()}]",
                candidates=selection.candidates,
            )


def _decided_with(platform: Platform) -> tuple[Registry, Settings]:
    """The plugins and settings of a platform: its resolution's, or the process's where it was built by hand."""
    registry, settings = platform._registry, platform._settings  # noqa: SLF001  # the core's own members
    if registry is None or settings is None:
        from hardpoint._process import process

        registry, settings = process().registry, read_settings(platform.machine)
        platform._attach(registry, settings, Provenance(plugin=f"platform/{platform.name}"))  # noqa: SLF001  # as above
    return registry, settings
