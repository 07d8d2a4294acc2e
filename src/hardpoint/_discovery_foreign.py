"""What only `importlib_metadata` can answer: archives on the path, and finders that we do not know.

Importing it changes the process (it adds a finder of its own and takes the standard library's away), so this module is
imported only where there is something of the kind. Each finder and each distribution is asked apart from the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import importlib_metadata

from hardpoint._discovery_records import GROUPS, DiscoveryFault
from hardpoint._discovery_scan import EntryPoints, fault_of, name_and_version, name_of_folder
from hardpoint._discovery_text import normalise, parse_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_T = TypeVar("_T")


class ForeignCopy:
    """A copy that a finder supplied, behind whatever class that finder has."""

    __slots__ = ("_distribution", "entry_points", "fault", "key", "location", "path")

    def __init__(self, distribution: importlib_metadata.Distribution, location: str | None) -> None:
        self._distribution = distribution
        self.location = location
        path = getattr(distribution, "_path", None)
        # An archive's folders end in a slash.
        self.path = None if path is None else str(path).rstrip("/")
        self.entry_points: EntryPoints = ()
        self.fault: DiscoveryFault | None = None
        # Private, and still the authority's own answer to which copies belong together.
        own = _attempt(lambda: getattr(distribution, "_normalized_name", None))
        # An empty name is none: the folder's counts.
        self.key = own if isinstance(own, str) and own else normalise(self._own_name())

    def read(self) -> None:
        """Take the entry points of our groups, or the fault."""
        found = _attempt(lambda: [(point.group, point.name, point.value) for point in self._distribution.entry_points])
        if isinstance(found, Exception):
            self.fault = fault_of(self._described(), found, "its entry points cannot be read")
        else:
            self.entry_points = tuple(point for point in found if point[0] in GROUPS)

    def has_metadata(self) -> bool:
        return _attempt(self._has_metadata) is True

    def _has_metadata(self) -> bool:
        # The authority's own method for it is recent, and a finder's class need not have a folder.
        path = getattr(self._distribution, "_path", None)
        if path is None:
            return self._text() is not None
        return bool(path.joinpath("METADATA").exists() or path.joinpath("PKG-INFO").exists() or path.is_file())

    def headers(self) -> Iterable[tuple[str, str]]:
        text = _attempt(self._text)
        return parse_headers(text) if isinstance(text, str) else ()

    def _text(self) -> str | None:
        texts = (self._distribution.read_text(name) for name in ("METADATA", "PKG-INFO", ""))
        return next((text for text in texts if text), None)

    def _own_name(self) -> str:
        return name_and_version(self)[0] or (name_of_folder(self.path) if self.path else self._described())

    def _described(self) -> str:
        return self.path or f"a {type(self._distribution).__qualname__} of {type(self._distribution).__module__}"


def copies_in_archive(location: str, faults: list[DiscoveryFault]) -> list[ForeignCopy]:
    """The distributions in a file on the path: none, unless it is a zip archive."""
    return _ask(importlib_metadata.MetadataPathFinder().find_distributions, [location], location, faults)


def copies_of_finder(
    find: Callable[[Any], Iterable[Any]], path: Sequence[str], faults: list[DiscoveryFault]
) -> list[ForeignCopy]:
    """The distributions that the `find_distributions` of a finder on `sys.meta_path` knows of."""
    return _ask(find, path, None, faults)


def _ask(
    find: Callable[[Any], Iterable[Any]], path: Sequence[str], location: str | None, faults: list[DiscoveryFault]
) -> list[ForeignCopy]:
    context: Any = importlib_metadata.DistributionFinder.Context
    copies: list[ForeignCopy] = []
    # One by one: what a finder gave before it failed counts.
    failure = _attempt(
        lambda: copies.extend(ForeignCopy(distribution, location) for distribution in find(context(path=list(path))))
    )
    if failure is not None:
        name = str(location or getattr(find, "__qualname__", None) or find)
        faults.append(fault_of(name, failure, "its distributions cannot be listed"))
    return copies


def _attempt(call: Callable[[], _T]) -> _T | Exception:
    """What somebody else's code answers, or what it raises.

    A malformed file raises TypeError here, and a finder may raise anything. Metadata trouble is no plugin's programming
    error, so it is recorded whatever its type.
    """
    try:
        return call()
    except Exception as error:  # noqa: BLE001  # see above
        return error
