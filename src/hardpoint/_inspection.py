"""Inspecting a machine: every decision is made, and whatever goes wrong is recorded, a plugin's bug too.

The third column of the failure rule. The process's own platform is neither used nor changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hardpoint._process import process
from hardpoint._report import Report, build_report
from hardpoint._requests import Request, read_request
from hardpoint._resolution import Resolution, in_progress_error, resolve_platform, resolving_here
from hardpoint._settings import read_settings
from hardpoint.errors import ResolutionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hardpoint._evaluation import Depth
    from hardpoint._machine import Machine
    from hardpoint._settings import Settings
    from hardpoint.attention import AttentionConfig


def inspect(
    configs: Iterable[AttentionConfig] = (), *, machine: Machine | None = None, depth: Depth | str = "loaded"
) -> Report:
    """Resolve, import kernels and evaluate every backend for each config, and report all of it.

    Goes on after a plugin's bug, which the report shows first. On the live machine it may import torch and kernel
    modules; run it in a process of its own if a plugin may crash. Errors: `SettingsError`; `ResolutionInProgressError`
    from within a plugin.
    """
    if (plugin := resolving_here()) is not None:
        raise in_progress_error(plugin)
    state = process()
    machine = machine or state.machine
    settings = read_settings(machine)
    request = read_request(None, settings.platform, "HARDPOINT_PLATFORM", "platform")
    resolution, data = _resolve(machine, settings, request)
    if resolution is None:
        return build_report(
            machine, state.registry, resolution=data, override=None, platform=None, kernels=None, selections=[]
        )
    from hardpoint._selecting import survey_backends

    platform = resolution.platform
    kernels = platform._kernel_state.run(platform, inspecting=True)  # noqa: SLF001  # the core's own member
    return build_report(
        machine,
        state.registry,
        resolution=data,
        override=None,
        platform=platform,
        kernels=kernels,
        selections=[survey_backends(platform, config, depth=depth) for config in configs],
    )


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
