"""What discovery hands on: strings only, so that a record never keeps anything alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hardpoint._reasons import ReasonCode

GROUPS = ("hardpoint.platforms", "hardpoint.backends")
"""The entry-point groups of Hardpoint's plugins."""


class EntryPointRecord(NamedTuple):
    """One entry point of one of our groups, as its metadata has it; nothing was imported to learn it.

    `value` is the text behind the equals sign, extras and all. `distribution` is None where the metadata has no name
    (to be shown as "unknown distribution"). `metadata_path` is the ``.dist-info`` or ``.egg-info`` it was read from,
    `location` the entry of the path that led there, None where a foreign finder supplied it. `untrusted_reason` is a
    sentence.
    """

    group: str
    name: str
    value: str
    distribution: str | None
    version: str | None
    metadata_path: str | None
    location: str | None
    trusted: bool = True
    untrusted_reason: str | None = None


class DiscoveryFault(NamedTuple):
    """Metadata that could not be read or contradicts itself. It costs nobody but the distribution it belongs to."""

    path: str
    message: str
    code: ReasonCode


class Discovery(NamedTuple):
    """The entry points of our groups, sorted by group and name, and what went wrong on the way.

    `method` is ``raw scan``, or ``importlib_metadata`` where any part of the answer had to come from there.
    """

    entries: tuple[EntryPointRecord, ...]
    faults: tuple[DiscoveryFault, ...]
    method: str
