"""The order of a selection's candidates: the platform's table, the places that plugins take, and what was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint._backend_spec import BackendSpec
from hardpoint._candidates import not_installed, unknown
from hardpoint._evaluation import provenance_of
from hardpoint._names import normalise_name
from hardpoint._order import arrange
from hardpoint._probing import add_note, describe_error, under_watch
from hardpoint._race import start_race, unknown_names
from hardpoint._reasons import Candidate, Outcome, Phase, Provenance, Reason, ReasonCode
from hardpoint.errors import ContractError, UnknownBackendError
from hardpoint.platforms import BackendPriority

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hardpoint._capability import DeviceCapability
    from hardpoint._plugins import LoadedPlugin, PluginEntry, Registry
    from hardpoint._probing import Failure
    from hardpoint._requests import Request
    from hardpoint._settings import Settings
    from hardpoint.attention import AttentionConfig
    from hardpoint.errors import HardpointError
    from hardpoint.platforms import Platform

    RaiseAs = Callable[[PluginEntry, Failure], HardpointError]


class Ordering:
    """The candidates of one question on one platform, and what was learnt of them on the way.

    `rank_reasons`: why each name has its rank; `foreign`: the plugins of other platforms; `platform_bug`: the platform
    plugin's own failure to name its order, which only an inspection survives.
    """

    def __init__(
        self,
        platform: Platform,
        config: AttentionConfig,
        capabilities: Sequence[DeviceCapability | None],
        registry: Registry,
        settings: Settings,
        *,
        inspecting: bool,
    ) -> None:
        self.platform = platform
        self.config = config
        self.capabilities = capabilities
        self.registry = registry
        self.settings = settings
        self.inspecting = inspecting
        self.rank_reasons: dict[str, str] = {}
        self.foreign: list[str] = []
        self.platform_bug: Candidate | None = None

    def candidates(self, request: Request, raise_as: RaiseAs | None) -> list[tuple[str, LoadedPlugin | Candidate]]:
        """Names in order, each with its loaded plugin, or with the record of what became of it already.

        `raise_as` makes the error of a plugin that does not load, where that is to end the selection.
        """
        priorities = self._priorities()
        self.rank_reasons = {item.name: item.reason for item in priorities}
        if request.explicit and not self.inspecting:
            self._refuse_unknown(request, [item.name for item in priorities])
        race = start_race(
            self.registry,
            "backend",
            self.settings,
            names=None if request.open else request.explicit,
            inspecting=self.inspecting,
            raise_as=raise_as,
        )
        found: dict[str, LoadedPlugin | Candidate] = {item.name: item for item in race.out}
        orders = {}
        foreign = self.foreign
        for loaded in race.runners:
            found[loaded.name] = loaded
            spec = loaded.spec
            if isinstance(spec, BackendSpec) and (spec.kind == self.config.kind or loaded.name in request.explicit):
                if self.platform.name in spec.platforms or "torch-device" in spec.platforms:
                    orders[loaded.name] = spec.order
                else:
                    foreign.append(loaded.name)
            else:
                del found[loaded.name]
        for item in priorities:
            if item.name not in found and (request.open or item.name in request.explicit):
                found[item.name] = not_installed(item.name, item.distribution)
        names = arrange([item.name for item in priorities], orders, self.platform.name)
        # Plugins that could not be loaded said nothing of their place; those of other platforms cannot win.
        rest = sorted(found.keys() - set(names) - set(foreign))
        names = [*(name for name in names if name in found), *rest, *sorted(foreign)]
        explicit: list[str] = []
        if request.explicit:
            missing = [name for name in request.explicit if name not in found]
            sentences = unknown_names(self.registry, "backend", missing)
            found.update((name, unknown(name, sentences.get(name))) for name in missing)
            explicit = list(request.explicit)
        others = [name for name in names if name not in explicit] if request.open else []
        return [(name, found[name]) for name in (*explicit, *others)]

    def _priorities(self) -> list[BackendPriority]:
        # The choice may not depend on which device is number 0: the least capable one's table is taken.
        capability = min(
            self.capabilities,
            key=lambda item: ("", (0, 0), "") if item is None else (item.runtime, item.version or (0, 0), item.arch),
        )
        provenance = provenance_of(self.platform)
        try:
            items = under_watch(
                lambda: _checked_priorities(self.platform.backend_priorities(capability, self.config), provenance),
                phase=Phase.SUPPORT,
                provenance=provenance,
                what="backend_priorities()",
            )
        except Exception as error:
            # The platform plugin's own code; whatever it raises is its bug.
            if not self.inspecting:
                add_note(error, provenance, Phase.SUPPORT)
                raise
            reason = Reason(code=ReasonCode.OTHER, message=describe_error(error))
            self.platform_bug = Candidate(
                name=self.platform.name,
                outcome=Outcome.BUG,
                reasons=(reason,),
                provenance=provenance,
                phase=Phase.SUPPORT,
            )
            return []
        return [item._replace(name=normalise_name(item.name)) for item in items]

    def _refuse_unknown(self, request: Request, table: Sequence[str]) -> None:
        unknown = unknown_names(self.registry, "backend", request.explicit, table)
        if unknown and (request.single or (len(unknown) == len(request.explicit) and not request.open)):
            raise UnknownBackendError(f"{'; '.join(unknown.values())} ({request.describe()})")


def _checked_priorities(answer: object, provenance: Provenance) -> list[BackendPriority]:
    items = list(answer) if isinstance(answer, (list, tuple)) else [answer]
    found = [item for item in items if isinstance(item, BackendPriority)]
    if len(found) != len(items):
        raise ContractError(
            f"{provenance}: backend_priorities() returned {answer!r}; expected a list of BackendPriority",
            plugin=provenance.plugin,
        )
    return found
