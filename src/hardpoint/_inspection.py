"""Inspecting a machine: every decision is made, and whatever goes wrong is recorded, a plugin's bug too.

The third column of the failure rule. The process's own platform is neither used nor changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hardpoint._plugins import KINDS, LoadedPlugin
from hardpoint._process import process
from hardpoint._race import start_race
from hardpoint._report import Report, build_report
from hardpoint._report_sections import ask_for_sections
from hardpoint._requests import Request, read_request
from hardpoint._resolution import Resolution, in_progress_error, resolve_platform, resolving_here
from hardpoint._settings import read_settings
from hardpoint.errors import ResolutionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hardpoint._evaluation import Depth
    from hardpoint._machine import Machine
    from hardpoint._plugins import Registry
    from hardpoint._selection import Selection
    from hardpoint._settings import Settings
    from hardpoint.attention import AttentionConfig
    from hardpoint.platforms import Platform


class Examined(NamedTuple):
    """What an inspection has found: the report, and what can be asked further questions. None: no platform."""

    report: Report
    platform: Platform | None
    selections: tuple[Selection, ...]


def inspect(
    configs: Iterable[AttentionConfig] = (),
    *,
    machine: Machine | None = None,
    depth: Depth | str = "loaded",
    platform: str | Sequence[str] | None = None,
    backend: str | Sequence[str] | None = None,
) -> Report:
    """Resolve, import kernels and evaluate every backend for each config, and report all of it.

    `platform` and `backend` are requests, as in `resolve` and `Platform.select_backend`; None: what the variables say.
    Goes on after a plugin's bug, which the report shows first. On the live machine it may import torch and kernel
    modules; run it in a process of its own if a plugin may crash. Errors: `SettingsError`; `ResolutionInProgressError`
    from within a plugin.
    """
    wanted = tuple(configs)
    return examine(lambda _: wanted, machine=machine, depth=depth, platform=platform, backend=backend).report


def examine(
    configs: Callable[[Platform], Iterable[AttentionConfig]],
    *,
    machine: Machine | None = None,
    depth: Depth | str = "loaded",
    platform: str | Sequence[str] | None = None,
    backend: str | Sequence[str] | None = None,
    kernels: bool = True,
) -> Examined:
    """As `inspect`, with configs that may depend on the platform. `kernels`: whether to import them."""
    if (plugin := resolving_here()) is not None:
        raise in_progress_error(plugin)
    state = process()
    machine = machine or state.machine
    settings = read_settings(machine)
    request = read_request(platform, settings.platform, "HARDPOINT_PLATFORM", "platform")
    resolution, data = _resolve(machine, settings, request)
    found = None if resolution is None else resolution.platform
    selections: tuple[Selection, ...] = ()
    imported = None
    if found is not None:
        from hardpoint._selecting import survey_backends

        if kernels:
            imported = found._kernel_state.run(found, inspecting=True)  # noqa: SLF001  # the core's own member
        selections = tuple(survey_backends(found, config, depth=depth, requested=backend) for config in configs(found))
    left_out = start_race(state.registry, "backend", settings, inspecting=True).out
    sections, bugs = _sections(state.registry, machine)
    report = build_report(
        machine,
        state.registry,
        resolution=data,
        override=None,
        platform=found,
        kernels=imported,
        selections=selections,
        sections=sections,
        more_bugs=bugs,
        left_out=left_out,
    )
    return Examined(report, found, selections)


def _resolve(
    machine: Machine, settings: Settings, request: Request
) -> tuple[Resolution | None, dict[str, Any]]:  # Any: JSON
    try:
        resolution = resolve_platform(
            process().registry,
            machine,
            settings,
            request,
            strict=False,
            note_progress=lambda text: None,
            inspecting=True,
        )
    except ResolutionError as error:
        return None, {
            "platform": None,
            "requested": list(request.names),
            "source": request.source,
            "is_fallback": False,
            "strict": settings.strict,
            "candidates": [candidate.as_dict() for candidate in error.candidates],
            "error": str(error),
        }
    return resolution, resolution.as_dict()


def _sections(registry: Registry, machine: Machine) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:  # Any: JSON
    """What the loaded plugins add to the report, and the bugs met on the way."""
    sections: list[dict[str, Any]] = []
    bugs: list[dict[str, Any]] = []
    for kind in KINDS:
        for entry in registry.entries(kind):
            loaded = registry.outcome_of(entry)
            if isinstance(loaded, LoadedPlugin):
                found, bug = ask_for_sections(registry, loaded, machine)
                sections += found
                bugs += bug
    return sections, bugs
