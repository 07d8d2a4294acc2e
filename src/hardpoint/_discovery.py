"""Which plugins are installed: the entry points of our groups, from metadata alone. No code of a plugin runs.

Each distribution is read apart from the others: a malformed one is a recorded fault and hides nobody.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from hardpoint._discovery_installed import InstalledVersions, installed_version
from hardpoint._discovery_records import GROUPS, Discovery, DiscoveryFault, EntryPointRecord
from hardpoint._discovery_scan import FolderCopy, name_and_version, ranked, read_bytes, read_listing
from hardpoint._discovery_survey import survey
from hardpoint._discovery_text import normalise
from hardpoint._reasons import ReasonCode
from hardpoint._trust import judge_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hardpoint._discovery_scan import Copy
    from hardpoint._discovery_survey import Survey

__all__ = [
    "GROUPS",
    "Discovery",
    "DiscoveryFault",
    "EntryPointRecord",
    "InstalledVersions",
    "discover",
    "installed_version",
    "requires_hardpoint",
]


def discover(search_path: Sequence[str] | None = None) -> Discovery:
    """Find the entry points of our groups on a path (None: `sys.path`).

    Reads the disk at every call and keeps nothing, so that a caller may try again after an error. `DiscoveryError`
    says that nothing could be listed at all.
    """
    sources = survey(search_path)
    read: dict[str, Copy] = {}
    interesting: list[Copy] = []
    for source in sources.sources:
        if isinstance(source, list):
            for copy in source:
                copy.read()
            interesting += [copy for copy in source if copy.entry_points or copy.fault]
        else:
            for folder in read_listing(source):
                interesting.append(read.setdefault(folder.path, folder))
    faults = sources.faults
    records: set[EntryPointRecord] = set()
    for group in ranked(read.get(copy.path or "", copy) for copy in sources.copies({copy.key for copy in interesting})):
        first = group[0]
        if first.fault is not None:
            faults.append(first.fault)
        if any(copy.entry_points for copy in group):
            faults += _rivals(group)
        if _is_leftover(first):
            faults.append(_leftover(first))
        elif first.entry_points:
            records.update(_records(first, sources))
    return Discovery(
        entries=tuple(
            sorted(records, key=lambda record: (record.group, record.name, record.distribution or "", record.value))
        ),
        faults=tuple(faults),
        method="raw scan" if sources.is_raw else "importlib_metadata",
    )


def requires_hardpoint(record: EntryPointRecord) -> str | None:
    """What the record's distribution requires of ``hardpoint``, as its metadata puts it; None if it says nothing."""
    if record.metadata_path is None:
        return None
    if os.path.exists(record.metadata_path):
        requirements = _requirements(FolderCopy(record.location or "", record.metadata_path, ""))
    elif record.location is not None and os.path.isfile(record.location):
        from hardpoint._discovery_foreign import copies_in_archive

        copies = copies_in_archive(record.location, [])
        requirements = [line for copy in copies if copy.path == record.metadata_path for line in _requirements(copy)]
    else:
        return None
    ours = [line for line in requirements if normalise(re.split(r"[^\w.-]", line, maxsplit=1)[0]) == "hardpoint"]
    return ", ".join(ours) or None


def _requirements(copy: Copy) -> list[str]:
    stated = [value.strip() for name, value in copy.headers() if name == "requires-dist"]
    if stated or copy.path is None:
        return stated
    try:
        # Where setuptools' .egg-info has them; what follows the first section is for extras.
        text = read_bytes(os.path.join(copy.path, "requires.txt")).decode("utf-8", "replace")
    except OSError:
        return []
    return [line.strip() for line in text.partition("[")[0].splitlines()]


def _records(copy: Copy, sources: Survey) -> Iterable[EntryPointRecord]:
    distribution, version = name_and_version(copy)
    reason = sources.untrusted.get(copy.location) if copy.location is not None else None
    if reason is None and copy.path is not None:
        reason = judge_folder(copy.path)
    for group, name, value in copy.entry_points:
        yield EntryPointRecord(
            group=group,
            name=name,
            value=value,
            distribution=distribution,
            version=version,
            metadata_path=copy.path,
            location=copy.location,
            trusted=reason is None,
            untrusted_reason=reason,
        )


def _rivals(group: list[Copy]) -> Iterable[DiscoveryFault]:
    """Other metadata of the same distribution in the same folder: an upgrade that went wrong."""
    first = group[0]
    if first.path is None or first.location is None:
        return
    for rival in group[1:]:
        if rival.path is None or rival.location != first.location:
            continue
        if os.path.realpath(rival.path) != os.path.realpath(first.path):
            yield DiscoveryFault(
                path=rival.path,
                message=f"{rival.path}: {os.path.basename(first.path)} beside it is of the same distribution, and is "
                "the one that Python takes; reinstall the distribution to be rid of the other",
                code=ReasonCode.DUPLICATE,
            )


def _is_leftover(copy: Copy) -> bool:
    """Whether pip renamed the folder in order to remove it, and was killed; pip itself ignores it from then on."""
    return copy.path is not None and os.path.basename(copy.path).startswith("~")


def _leftover(copy: Copy) -> DiscoveryFault:
    return DiscoveryFault(
        path=copy.path or "",
        message=f"{copy.path}: ignored, for an interrupted pip left it there; delete it",
        code=ReasonCode.OTHER,
    )
