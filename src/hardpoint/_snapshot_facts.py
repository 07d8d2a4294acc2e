"""What is asked for a snapshot beyond what the decision needed, so that it can be made anew with other plugins."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from hardpoint._backend_spec import BackendSpec
from hardpoint._kernels import provenance_of
from hardpoint._plugins import KINDS
from hardpoint._probing import Failure, attempt
from hardpoint._process import process
from hardpoint._race import start_race
from hardpoint._reasons import Phase
from hardpoint._recording import is_secret_name
from hardpoint._settings import DESCRIPTIONS, PREFIX, read_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hardpoint._machine import Machine
    from hardpoint._plugins import LoadedPlugin
    from hardpoint.platforms import Platform


def owned_variables(machine: Machine) -> tuple[str, ...]:
    """The variables that the loaded plugins declare as theirs, apart from those that are never recorded."""
    names = {setting.name for loaded in _admitted(machine) for setting in loaded.spec.settings}
    # A name of a letter or two would be the beginning of too many others.
    return tuple(sorted(name for name in names if len(name) > 2 and not is_secret_name(name)))


def ask_everybody(machine: Machine, owned: Sequence[str], platform: Platform | None) -> None:
    """Let every plugin that may be loaded detect and report, and look up every package that a backend may want.

    Of the platform, also the packages of its kernel modules: a live machine imports them and does not ask.

    The answers are of no interest: the machine writes them down. Whatever fails is recorded there as well.
    """
    questions: list[Callable[[], object]] = [machine.variables, partial(machine.variables, PREFIX)]
    questions += [partial(machine.variable, name) for name in (*DESCRIPTIONS, *owned)]
    registry = process().registry
    for loaded in _admitted(machine):
        for hook in ("hardpoint_detect", "hardpoint_report"):
            attempt(
                lambda plugin=loaded.plugin, hook=hook: registry.call(plugin, hook, machine=machine),  # type: ignore[misc]  # lambda's defaults
                phase=Phase.DETECT,
                provenance=loaded.provenance,
                inspecting=True,
            )
        questions += [partial(machine.distribution_version, name) for name in _packages(loaded)]
    if platform is not None:
        declared = attempt(
            lambda: [module.distribution for module in platform.kernel_modules()],
            phase=Phase.IMPORT_KERNELS,
            provenance=provenance_of(platform),
            inspecting=True,
        )
        named = [] if isinstance(declared, Failure) else filter(None, declared)
        questions += [partial(machine.distribution_version, name) for name in dict.fromkeys(named)]
    for question in questions:
        # A replayed machine may not know.
        with contextlib.suppress(OSError):
            question()


def _admitted(machine: Machine) -> Iterator[LoadedPlugin]:
    state = process()
    settings = read_settings(machine)
    for kind in KINDS:
        yield from start_race(state.registry, kind, settings, inspecting=True).runners


def _packages(loaded: LoadedPlugin) -> Iterator[str]:
    """The distributions that a backend's declarations name."""
    spec = loaded.spec
    if not isinstance(spec, BackendSpec):
        return
    from hardpoint._requirements import required_name

    texts: Iterable[str | None] = (*spec.requires, *(variant.package for variant in spec.support.variants))
    for text in texts:
        name = required_name(text) if text else None
        if name is not None:
            yield name
