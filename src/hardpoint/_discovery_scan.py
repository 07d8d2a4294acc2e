"""The raw scan: list the folders of the path, and read of each distribution only its ``entry_points.txt``.

`importlib_metadata` says what a distribution is and which copy of it counts; this gives the same answer sooner. It
lists what the authority lists (`list_entry`), prefers what it prefers (`ranked`), and leaves to it what is no plain
folder (`Listing.is_file`).
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Protocol

from hardpoint._discovery_records import GROUPS, DiscoveryFault
from hardpoint._discovery_text import looks_odd, normalise, parse_entry_points, parse_headers
from hardpoint._reasons import ReasonCode
from hardpoint.errors import DiscoveryError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

_SUFFIXES = (".dist-info", ".egg-info")
_MARK = b"hardpoint."
# A FIFO without a writer must not hold us up.
_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_CHUNK = 65536
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The process is short of something: no folder's fault, and another try may well succeed."""

EntryPoints = tuple[tuple[str, str, str], ...]


class Copy(Protocol):
    """One copy of a distribution's metadata. A distribution may have several on the path; one of them counts."""

    @property
    def key(self) -> str:
        """The distribution's normalised name."""

    @property
    def path(self) -> str | None:
        """The metadata folder, or the ``.egg-info`` file."""

    @property
    def location(self) -> str | None:
        """The entry of the path that led there."""

    @property
    def entry_points(self) -> EntryPoints:
        """(group, name, value) of our groups."""

    @property
    def fault(self) -> DiscoveryFault | None:
        """Why the entry points cannot be read."""

    def has_metadata(self) -> bool:
        """Whether there is a ``METADATA``, a ``PKG-INFO``, or the metadata is itself a file."""

    def headers(self) -> Iterable[tuple[str, str]]:
        """Name (lower case) and value of the metadata's header lines; empty where there is none."""


def describe(error: BaseException) -> str:
    """``<Type>: <message>``, or the type alone where it has no message."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def refuse_if_exhausted(error: BaseException) -> None:
    """Raise where an error is the whole process's: out of file descriptors or memory."""
    if isinstance(error, OSError) and error.errno in _EXHAUSTED:
        raise DiscoveryError(f"the installed distributions cannot be listed now: {describe(error)}") from error


def fault_of(path: str, error: Exception, what: str) -> DiscoveryFault:
    """Record an error as the fault of one place."""
    refuse_if_exhausted(error)
    code = ReasonCode.PERMISSION if isinstance(error, PermissionError) else ReasonCode.OTHER
    return DiscoveryFault(path=path, message=f"{path}: {what}: {describe(error)}", code=code)


def read_bytes(path: str) -> bytes:
    """A file's content. Half the price of `open`, and a scan is made of nothing else."""
    return _drain(os.open(path, _FLAGS))


def _drain(descriptor: int) -> bytes:
    try:
        data = os.read(descriptor, _CHUNK)
        if len(data) == _CHUNK:  # a regular file gives less only at its end
            while part := os.read(descriptor, _CHUNK):
                data += part
    finally:
        os.close(descriptor)
    return data


class FolderCopy:
    """A copy in a plain folder. Nothing is read before it is asked for."""

    __slots__ = ("entry_points", "fault", "key", "location", "path")

    def __init__(self, location: str, path: str, key: str | None = None) -> None:
        self.location = location
        # The working directory may have changed by the time somebody reads the record.
        self.path = path if os.path.isabs(path) else os.path.abspath(path)
        self.entry_points: EntryPoints = ()
        self.fault: DiscoveryFault | None = None
        self.key = self._own_name() if key is None else key

    def _own_name(self) -> str:
        """The normalised name from the metadata, or failing that from the folder; `EGG-INFO` takes its egg's."""
        # As it stands there: the authority strips nothing before it compares.
        name = next((value for name, value in self.headers() if name == "name"), "")
        return normalise(name or name_of_folder(self.path))

    def parse(self, data: bytes) -> None:
        """Take the entry points of our groups, or the fault, from the content of an ``entry_points.txt``."""
        try:
            found = parse_entry_points(data)
        except ValueError as error:
            self.fault = fault_of(self.path, error, "its entry_points.txt is malformed, so none of it counts")
            return
        self.entry_points = tuple(point for point in found if point[0] in GROUPS)
        if data.startswith(b"\xef\xbb\xbf[hardpoint."):
            self.fault = DiscoveryFault(
                path=self.path,
                message=f"{self.path}: its entry_points.txt starts with a byte order mark, and this hides "
                "its first section",
                code=ReasonCode.OTHER,
            )

    def has_metadata(self) -> bool:
        return any(map(os.path.exists, self._candidates()[:2])) or os.path.isfile(self.path)

    def _candidates(self) -> tuple[str, str, str]:
        """Where metadata may be: dist-info, egg-info, and an egg-info that is itself the file."""
        return f"{self.path}/METADATA", f"{self.path}/PKG-INFO", self.path

    def headers(self) -> Iterator[tuple[str, str]]:
        for path in self._candidates():
            try:
                data = read_bytes(path)
            except OSError as error:
                refuse_if_exhausted(error)
                continue
            if data:
                # Only names and versions are wanted here, and these are ASCII even where a description is not UTF-8.
                return parse_headers(data.decode("utf-8", "replace"))
        return iter(())


def name_of_folder(path: str) -> str:
    """The distribution's name as far as a metadata folder's own name tells it, or that of the egg it is in."""
    folder, base = os.path.split(path)
    return (os.path.basename(folder) if base.lower() == "egg-info" else base).rpartition(".")[0].partition("-")[0]


class Listing:
    """The metadata folders in one entry of the path, by name and in the order of the folder.

    `odd` are those among them whose own name does not tell whose they are. `is_file` says that the entry is a file,
    perhaps a zip archive: the authority's matter.
    """

    __slots__ = ("fault", "is_file", "location", "names", "odd", "prefix")

    def __init__(self, location: str) -> None:
        self.location = location
        self.prefix = os.path.join(location, "")
        self.names: list[str] = []
        self.odd: dict[str, FolderCopy] = {}
        self.fault: DiscoveryFault | None = None
        self.is_file = False

    def copy(self, name: str) -> FolderCopy:
        return self.odd.get(name) or FolderCopy(self.location, self.prefix + name, key_of(name))

    def copies(self, keys: Collection[str]) -> Iterator[FolderCopy]:
        """The copies of the distributions wanted."""
        for name in self.names:
            key = name.partition("-")[0].lower()
            # The plain case of `key_of`, in place: this passes over every distribution there is.
            if "." in key or "__" in key:
                key = key_of(name)
            if key in keys or (self.odd and name in self.odd):
                copy = self.copy(name)
                if copy.key in keys:
                    yield copy


def key_of(name: str) -> str:
    """The normalised name of the distribution whose metadata folder has this name."""
    key = name.partition("-")[0].lower()
    if "." in key or "__" in key:
        # A name with separators, or a folder without a version: "name.dist-info".
        return normalise(name.rpartition(".")[0].partition("-")[0])
    return key


def list_entry(location: str) -> Listing:
    """List one entry of the path. An absent one is empty, an unreadable one has a fault."""
    listing = Listing(location)
    try:
        children = os.listdir(location or ".")
    except FileNotFoundError:
        return listing
    except NotADirectoryError:
        listing.is_file = os.path.isfile(location)
        return listing
    except (OSError, ValueError) as error:
        listing.fault = fault_of(location, error, "this entry of the path cannot be listed")
        return listing
    listing.names = [child for child in children if child.endswith(_SUFFIXES)]
    # One search in all names at once: is there another spelling, an EGG-INFO, or a name that begins like no name?
    joined = f"/{'/'.join(children)}/".lower()
    if joined.count("-info/") != len(listing.names) or "/." in joined or "/-" in joined:
        _sort_out(listing, children)
    return listing


def _sort_out(listing: Listing, children: list[str]) -> None:
    names = [child for child in children if child.lower().endswith(_SUFFIXES)]
    # Of these the authority takes the name from the metadata; of the others from the folder's name.
    odd = [name for name in names if not _stem(name)]
    if os.path.basename(listing.location).lower().endswith(".egg"):
        eggs = [child for child in children if child.lower() == "egg-info"]
        names += eggs
        odd += eggs
    if odd:
        # The authority gathers what seems to be of one name, so that a nameless folder may come before a named one.
        first_seen = {key: index for index, key in reversed(list(enumerate(map(key_of, names))))}
        names.sort(key=lambda name: (name.lower() == "egg-info", first_seen[key_of(name)]))
    listing.names = names
    listing.odd = {name: FolderCopy(listing.location, listing.prefix + name) for name in odd}


def _stem(name: str) -> str:
    stem, suffix = os.path.splitext(name)
    return stem.partition("-")[0] if suffix in _SUFFIXES else ""


def read_listing(listing: Listing) -> list[FolderCopy]:
    """The copies that have entry points of ours, or a fault. This loop is what discovery spends its time in."""
    found = []
    prefix = listing.prefix
    for name in listing.names:
        try:
            # Not through read_bytes: most have no such file, and an exception pays for each frame that it passes.
            data = _drain(os.open(f"{prefix}{name}/entry_points.txt", _FLAGS))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            continue
        except OSError as error:
            copy = listing.copy(name)
            copy.fault = fault_of(copy.path, error, "its entry_points.txt cannot be read")
            found.append(copy)
            continue
        if _MARK in data or looks_odd(data):
            copy = listing.copy(name)
            copy.parse(data)
            if copy.entry_points or copy.fault:
                found.append(copy)
    return found


def ranked(copies: Iterable[Copy]) -> list[list[Copy]]:
    """The copies of each distribution, the one that counts in front.

    That is the first on the path, but one that has metadata before one that has none.
    """
    by_key: dict[str, list[Copy]] = {}
    for copy in copies:
        by_key.setdefault(copy.key, []).append(copy)
    for group in by_key.values():
        if len(group) > 1:
            group.sort(key=lambda copy: not copy.has_metadata())
    return list(by_key.values())


def name_and_version(copy: Copy) -> tuple[str | None, str | None]:
    """What the metadata states; of a repeated line the first."""
    found: dict[str, str] = {}
    for name, value in copy.headers():
        if name in {"name", "version"}:
            found.setdefault(name, " ".join(value.split()))  # a folded line is one line
            if len(found) == 2:
                break
    return found.get("name") or None, found.get("version") or None
