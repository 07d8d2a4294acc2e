"""Which version of a distribution is installed, and where its files are, before anything of it is imported."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hardpoint._discovery_scan import name_and_version, ranked
from hardpoint._discovery_survey import survey
from hardpoint._discovery_text import normalise

if TYPE_CHECKING:
    from collections.abc import Sequence


class InstalledVersions:
    """The versions of what is installed on a path (None: `sys.path`), as it was when this was made.

    Lists the folders once and reads the metadata of the distributions that are asked for. Not cached between objects:
    make one per resolution.
    """

    def __init__(self, search_path: Sequence[str] | None = None) -> None:
        self._survey = survey(search_path)
        self._known: dict[str, str | None] = {}

    def version(self, name: str) -> str | None:
        """The version of the distribution of this name, in any spelling; None if it is absent or states none."""
        key = normalise(name)
        if key not in self._known:
            found = ranked(self._survey.copies({key}))
            self._known[key] = name_and_version(found[0][0])[1] if found else None
        return self._known[key]


def installed_version(name: str, search_path: Sequence[str] | None = None) -> str | None:
    """One look-up in a fresh `InstalledVersions`."""
    return InstalledVersions(search_path).version(name)


def installed_file(name: str, relative_path: str, search_path: Sequence[str] | None = None) -> str | None:
    """The path of a file of the distribution of this name, in any spelling, in the folder where its metadata is."""
    found = ranked(survey(search_path).copies({normalise(name)}))
    location = found[0][0].location if found else None
    if location is None:
        return None
    # An empty entry of the path is the working directory.
    path = os.path.join(location or os.curdir, *relative_path.split("/"))
    return os.path.abspath(path) if os.path.isfile(path) else None
