"""What a shell offers for the values of options: names from metadata and data files; no plugin is loaded for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint.errors import HardpointError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import click


def complete_profiles(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001  # as click calls it
    """The names of device profiles."""
    from hardpoint import list_profiles

    try:
        names = [profile.name for profile in list_profiles()]
    except (HardpointError, OSError):
        return []
    return _of_a_list(names, incomplete)


def complete_platforms(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001  # as click calls it
    """The names of installed platforms."""
    return _installed("platform", incomplete)


def complete_backends(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001  # as click calls it
    """The names of installed backends."""
    return _installed("backend", incomplete)


def _installed(kind: str, incomplete: str) -> list[str]:
    from hardpoint._process import process

    try:
        names = {entry.name for entry in process().registry.entries(kind)}
    except (HardpointError, OSError):
        return []
    return _of_a_list([*sorted(names), "auto"], incomplete)


def _of_a_list(names: Iterable[str], incomplete: str) -> list[str]:
    """Values of which the last one of a list is still being written."""
    before, separator, last = incomplete.rpartition(",")
    taken = before.split(",")
    return [f"{before}{separator}{name}" for name in names if name.startswith(last) and name not in taken]
