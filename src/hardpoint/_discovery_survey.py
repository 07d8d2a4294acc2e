"""Where distributions can come from: the entries of the path, and the finders that know of others, in their order."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from hardpoint._discovery_records import DiscoveryFault
from hardpoint._discovery_scan import describe, list_entry
from hardpoint._reasons import ReasonCode
from hardpoint._trust import judge_path, script_folder
from hardpoint.errors import DiscoveryError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from hardpoint._discovery_foreign import ForeignCopy
    from hardpoint._discovery_scan import Copy, Listing


class Survey:
    """The sources in the order in which they count. `untrusted` says of an entry of the path why it is not trusted."""

    __slots__ = ("faults", "sources", "untrusted")

    def __init__(self) -> None:
        self.sources: list[Listing | list[ForeignCopy]] = []
        self.faults: list[DiscoveryFault] = []
        self.untrusted: dict[str, str] = {}

    @property
    def is_raw(self) -> bool:
        """Whether `importlib_metadata` was not needed."""
        return not any(isinstance(source, list) for source in self.sources)

    def copies(self, keys: Collection[str]) -> Iterator[Copy]:
        """All copies of the distributions wanted, by normalised name."""
        for source in self.sources:
            if isinstance(source, list):
                yield from (copy for copy in source if copy.key in keys)
            else:
                yield from source.copies(keys)


def survey(search_path: Sequence[str] | None = None) -> Survey:
    """List the path (None: `sys.path`) and ask unknown finders. Raises `DiscoveryError` if nothing can be listed.

    An untrusted entry counts as if it stood last: a folder that a stranger can fill must not hide what is installed,
    and a checkout that one happens to stand in must not hide its own installed copy.
    """
    result = Survey()
    path = _strings(sys.path if search_path is None else search_path, result.faults)
    why = dict(zip(path, judge_path(path, script=script_folder()), strict=True))
    result.untrusted = {entry: reason for entry, reason in why.items() if reason is not None}
    listings = [list_entry(entry) for entry in sorted(why, key=result.untrusted.__contains__)]
    result.faults += [listing.fault for listing in listings if listing.fault is not None]
    _refuse_if_blind(listings)

    strangers = [finder for finder in sys.meta_path if _is_stranger(finder)]
    if not strangers and not any(listing.is_file for listing in listings):
        result.sources += listings
        return result
    try:
        # Only now: importing it changes the finders of the process.
        from hardpoint import _discovery_foreign as foreign
    except ImportError as error:
        skipped = [listing.location for listing in listings if listing.is_file] + [repr(finder) for finder in strangers]
        result.faults += [
            DiscoveryFault(
                path=place,
                message=f"{place}: left out, for importlib_metadata is missing: {describe(error)}",
                code=_CODE,
            )
            for place in skipped
        ]
        result.sources += [listing for listing in listings if not listing.is_file]
        return result
    for finder in tuple(sys.meta_path):
        find = _question_of(finder)
        if find is not None and _is_stranger(finder):
            result.sources.append(foreign.copies_of_finder(find, path, result.faults))
        elif find is not None and listings:
            result.sources += [
                foreign.copies_in_archive(listing.location, result.faults) if listing.is_file else listing
                for listing in listings
            ]
            listings = []
    return result


_CODE = ReasonCode.MISSING_DEPENDENCY


def _strings(path: Sequence[object], faults: list[DiscoveryFault]) -> list[str]:
    """The entries that the authority can read: `os.PathLike` too, though nothing is imported from there."""
    found = []
    for entry in tuple(path):
        text = os.fspath(entry) if isinstance(entry, str | os.PathLike) else entry
        if isinstance(text, str):
            found.append(text)
        else:
            message = f"{entry!r}: this entry of the path is not a string, so nothing can be found or imported there"
            faults.append(DiscoveryFault(path=repr(entry), message=message, code=ReasonCode.OTHER))
    return found


def _refuse_if_blind(listings: list[Listing]) -> None:
    broken = [listing.fault for listing in listings if listing.fault is not None]
    # Python's own folder is on any real path, so that not one can be listed is no property of the folders.
    if len(broken) == len(listings) and any(fault.code == ReasonCode.OTHER for fault in broken):
        raise DiscoveryError(
            "the installed distributions cannot be listed: " + "; ".join(fault.message for fault in broken)
        )


def _question_of(finder: object) -> Any:  # noqa: ANN401  # a foreign function
    """The function of a finder that lists distributions; None: it has none, or cannot even be asked for it."""
    try:
        return getattr(finder, "find_distributions", None)
    except Exception:  # noqa: BLE001
        # A proxy or a lazy object that some tool has put there.
        return None


def _is_stranger(finder: object) -> bool:
    """Whether this finder may know of distributions that are not on the path.

    Those that read the path are known: the standard library's and `importlib_metadata`'s, which some tools bundle.
    Editable installs add finders that find modules, and have no `find_distributions`.
    """
    if _question_of(finder) is None:
        return False
    cls = finder if isinstance(finder, type) else type(finder)
    if cls.__module__ == "_frozen_importlib_external":
        return False
    return not (cls.__name__ == "MetadataPathFinder" and cls.__module__.rpartition(".")[2] == "importlib_metadata")
