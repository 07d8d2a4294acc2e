"""The raw scan gives the answer of `importlib_metadata`, over generated environments."""

from __future__ import annotations

import contextlib
import email
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import importlib_metadata
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hardpoint._discovery import GROUPS, InstalledVersions, discover
from hardpoint._discovery_text import looks_odd, normalise, parse_entry_points, parse_headers
from hardpoint._trust import judge_path, script_folder
from tests.distributions import add, archive

# Some versions of the authority never close an archive that they have looked into.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")

LINES = [
    *("[hardpoint.backends]", "[hardpoint.platforms]", "[console_scripts]", "[]", "[hardpoint.backends", "hardpoint.]"),
    *(
        " [hardpoint.backends]\t",
        "[[hardpoint.backends]]",
        "[ hardpoint.backends ]",
        "[hardpoint.backends]x",
        "[a] = b",
    ),
    *("fast = vendor:a", "fast=vendor:b", "slow = v.w:c.d [x, y]", "= v", "fast =", "a = b = c", "\u00e4 = \u00f6"),
    *("", "  ", "\x1f", "# note", "  # note = x", ";x = y", "malformed", "\ufefffast = v", "\u2003fast\u2003=\u2003v"),
]
NAMES = ["vendor", "Vendor", "ven.dor", "Ven_Dor", "ven__dor", "ven-dor", "other", "_other", ".other", "", "."]
HEADERS = [
    *("Metadata-Version: 2.1", "Name: vendor", "Name: ven-dor", "name:other", "NAME:\tother ", "Name:", "Version: 1"),
    *(
        "VERSION:2",
        "Name : bad",
        "N\u00e4me: bad",
        ": bad",
        "From bad",
        " folded",
        "\tfolded",
        "",
        "bad",
        "Summary: x: y",
    ),
]

texts = st.builds(
    lambda lines, end: end.join(lines),
    st.lists(st.sampled_from(LINES) | st.text(max_size=4), max_size=6),
    st.sampled_from(["\n", "\n", "\r\n", "\r", "\x0b", "\u2028"]),
)
contents = (
    st.sampled_from([None, "folder"])
    | texts.map(lambda text: text.encode("utf-8", "ignore"))
    | texts.map(lambda text: "[hardpoint.backends]\nfast = vendor:a\n" + text).map(
        lambda text: text.encode("utf-8", "ignore")
    )
    | st.sampled_from([b"[hardpoint.backends]\n\xff = x", b"\xff", b"\xef\xbb\xbf[hardpoint.backends]\na = b"])
)
headers = st.none() | st.lists(st.sampled_from(HEADERS), max_size=5).map("\n".join)


@dataclass(frozen=True)
class Info:
    name: str
    version: str
    suffix: str
    file: str
    headers: str | None
    entry_points: bytes | str | None

    def write(self, site: Path) -> None:
        folder = f"{self.name}-{self.version}{self.suffix}" if self.version else f"{self.name}{self.suffix}"
        target = site / folder
        if target.exists():
            return
        if self.file == "itself":
            target.write_text(self.headers or "", encoding="utf-8")
            return
        metadata = None if self.headers is None else self.headers.encode()
        points = self.entry_points if isinstance(self.entry_points, bytes) else None
        add(site, folder, points, metadata=metadata, file=self.file)
        if self.entry_points == "folder":
            (target / "entry_points.txt").mkdir()


infos = st.builds(
    Info,
    name=st.sampled_from(NAMES),
    version=st.sampled_from(["", "1", "2", "1-py3"]),
    suffix=st.sampled_from([".dist-info", ".dist-info", ".egg-info", ".DIST-INFO", ".Egg-Info"]),
    file=st.sampled_from(["METADATA", "METADATA", "PKG-INFO", "itself"]),
    headers=headers,
    entry_points=contents,
)
egg_infos = st.builds(
    Info,
    name=st.sampled_from(["EGG-INFO", "egg-info"]),
    version=st.just(""),
    suffix=st.just(""),
    file=st.sampled_from(["PKG-INFO", "METADATA"]),
    headers=headers,
    entry_points=contents,
)


@dataclass(frozen=True)
class Place:
    """One entry of the path: `kind` says what it is, `infos` what is in it."""

    kind: str
    infos: list[Info]

    def entry(self, root: Path, index: int) -> Any:
        folder = root / f"place-{index}"
        if self.kind == "egg":
            folder = root / f"ven_dor-{index}-py3.egg"
        elif self.kind in {"current", "dot", "here"}:
            folder = root / "here"
        folder.mkdir(exist_ok=True)
        for info in self.infos:
            info.write(folder)
        match self.kind:
            case "current":
                return ""
            case "dot":
                return "."
            case "slash":
                return f"{folder}/"
            case "path":
                return folder
            case "bytes":
                return os.fsencode(folder)
            case "nothing":
                return str(root / "missing")
            case "text":
                (root / f"text-{index}").write_text("no archive")
                return str(root / f"text-{index}")
            case "link":
                (root / f"link-{index}").symlink_to(folder)
                return str(root / f"link-{index}")
            case "linked":
                for child in sorted(folder.iterdir()):
                    if not child.is_symlink():
                        child.rename(root / f"moved-{index}-{child.name}")
                        child.symlink_to(root / f"moved-{index}-{child.name}")
                return str(folder)
            case "zip":
                return str(archive(folder, root / f"packed-{index}.whl"))
        return str(folder)


sound_lines = st.sampled_from(
    [
        "[hardpoint.backends]",
        "[hardpoint.platforms]",
        "[console_scripts]",
        "fast = vendor:a",
        "slow=v.w:c.d [x]",
        "# note",
        "",
    ]
)
sound_infos = st.builds(
    lambda name, version, suffix, lines: Info(
        name=name,
        version=version,
        suffix=suffix,
        file="METADATA",
        headers=f"Name: {name}\nVersion: {version}",
        entry_points="\n".join(["[hardpoint.backends]", *lines]).encode(),
    ),
    name=st.sampled_from(["vendor", "Vendor", "ven.dor", "Ven_Dor", "ven__dor", "other"]),
    version=st.sampled_from(["1", "2"]),
    suffix=st.sampled_from([".dist-info", ".egg-info"]),
    lines=st.lists(sound_lines, max_size=5),
)

KINDS = ["folder", "folder", "here", "current", "dot", "slash", "path", "bytes", "nothing", "text"]
if os.name != "nt":
    KINDS += ["link", "linked"]
SOUND_KINDS = [kind for kind in KINDS if kind not in {"bytes", "path"}]
sound = st.builds(Place, kind=st.sampled_from([*SOUND_KINDS, "egg", "zip"]), infos=st.lists(sound_infos, max_size=4))
plain = st.builds(Place, kind=st.sampled_from(KINDS), infos=st.lists(infos, max_size=4))
eggs = st.builds(Place, kind=st.just("egg"), infos=st.lists(infos | egg_infos, max_size=3))
archives = st.builds(Place, kind=st.just("zip"), infos=st.lists(infos, max_size=3))

NAMELESS = Place(
    "zip",
    [
        Info("vendor", "1", ".dist-info", "METADATA", "", None),
        Info("vendor", "", ".dist-info", "METADATA", "Name:", b"[hardpoint.backends]\n[hardpoint.backends"),
    ],
)


def reached(path: list[Any]) -> list[Any]:
    """The path in the order in which it counts: what is not trusted goes last."""
    # What is no text is no folder, and least of all the current one.
    known = [os.fspath(entry) if isinstance(entry, str | Path) else "\0" for entry in path]
    reasons = judge_path(known, script=script_folder())
    doubted = [
        reason is not None and isinstance(entry, str | Path) for entry, reason in zip(path, reasons, strict=True)
    ]
    order = sorted(zip(path, doubted, strict=True), key=lambda pair: pair[1])
    return [entry for entry, _ in order]


def stated(read: Any) -> Any:
    """What the authority says, or None where it raises or says nothing."""
    try:
        return read() or None
    except Exception:  # noqa: BLE001  # which type it raises depends on its version
        return None


def key(dist: Any) -> str:
    """The authority's name for a distribution, or where it has none, that of the folder."""
    own = stated(lambda: dist._normalized_name)
    if own is not None:
        return str(own)
    path = Path(str(dist._path))
    name = path.parent.name if path.name.lower() == "egg-info" else path.name
    return normalise(name.rpartition(".")[0].partition("-")[0])


Record = tuple[str, str, str, str, str | None, str | None]


def is_valid(dist: Any) -> bool:
    """Whether the authority prefers this copy to one without metadata."""
    path = dist._path
    return bool(path.joinpath("METADATA").exists() or path.joinpath("PKG-INFO").exists() or path.is_file())


def place(dist: Any) -> str:
    """The metadata folder, written as records have it."""
    return os.path.abspath(str(dist._path)).rstrip("/")


def authority(path: list[Any]) -> tuple[set[Record], set[str]]:
    """Ask `importlib_metadata`, one entry of the path and one distribution at a time: records and malformed folders."""
    finder = importlib_metadata.MetadataPathFinder
    context: Any = importlib_metadata.DistributionFinder.Context
    dists: list[Any] = []
    for entry in path:
        dists += stated(lambda entry=entry: list(finder.find_distributions(context(path=[entry])))) or []
    unique: dict[str, Any] = {}
    for dist in sorted(dists, key=lambda dist: not is_valid(dist)):
        unique.setdefault(key(dist), dist)
    records, malformed = set(), set()
    for dist in unique.values():
        try:
            points = [point for point in dist.entry_points if point.group in GROUPS]
        except (TypeError, ValueError):
            malformed.add(place(dist))
            continue
        # How a folded line is unfolded depends on the authority's version.
        name = " ".join((stated(lambda dist=dist: dist.name) or "").split()) or None
        version = " ".join((stated(lambda dist=dist: dist.version) or "").split()) or None
        records |= {(point.group, point.name, point.value, place(dist), name, version) for point in points}
    return records, malformed


def untouched_authority(path: list[Any]) -> set[tuple[str, str, str, str]] | None:
    """The very answer of `importlib_metadata.entry_points`, None where something makes it raise.

    Not asked where a copy has no metadata: which one it then prefers depends on its version. Nor where one states an
    empty name, which the authority takes for a name like any other, and we for none.
    """
    before = sys.path[:]
    sys.path[:] = path
    try:
        dists: list[Any] = list(importlib_metadata.distributions())
        if not all(map(is_valid, dists)) or any(dist._normalized_name == "" for dist in dists):
            return None
        points: Any = importlib_metadata.entry_points()
    except Exception:  # noqa: BLE001  # one malformed file anywhere, and it raises whatever that leads to
        return None
    finally:
        sys.path[:] = before
    return {(point.group, point.name, point.value, place(point.dist)) for point in points if point.group in GROUPS}


def compare(places: list[Place], *, is_sound: bool = False) -> None:
    """Lay the places out, ask both, and compare; in a sound environment the authority must not need our care."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve()
        (root / "here").mkdir()
        with contextlib.chdir(root / "here"):
            path = [place.entry(root, index) for index, place in enumerate(places)]
            found = discover(path)
            records, malformed = authority(reached(path))
            whole = untouched_authority(reached(path))
    ours = [
        (record.group, record.name, record.value, record.metadata_path, record.distribution, record.version)
        for record in found.entries
    ]
    assert set(ours) == records
    assert len(ours) == len(records)
    assert not (is_sound and whole is None)
    if whole is not None:
        assert {record[:4] for record in ours} == whole
    spoiled = ("is malformed", "cannot be read")
    assert {fault.path for fault in found.faults if any(text in fault.message for text in spoiled)} == malformed
    needed = any(place.kind in {"zip", "text"} for place in places)
    assert found.method == ("importlib_metadata" if needed else "raw scan")


many = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@many
@given(st.lists(plain | eggs, max_size=4))
def test_folders_are_read_as_the_authority_reads_them(places: list[Place]) -> None:
    """For any path of folders records and malformed folders are the authority's, without asking it."""
    compare(places)


@settings(many, max_examples=80)
@given(st.lists(plain | eggs | archives, max_size=4))
@example([NAMELESS])
def test_archives_among_folders_keep_their_turn(places: list[Place]) -> None:
    """Where archives stand on the path too, the answer is still the authority's for the whole path."""
    compare(places)


@settings(many, max_examples=100)
@given(st.lists(sound, min_size=1, max_size=4))
def test_a_sound_environment_has_the_entry_points_that_the_authority_lists(places: list[Place]) -> None:
    """Where no metadata is malformed, the records are those of a plain `importlib_metadata.entry_points()`."""
    compare(places, is_sound=True)


def version(name: str, path: list[str]) -> str | None:
    """The version that `importlib_metadata` gives, of a copy that has metadata where one has."""
    context: Any = importlib_metadata.DistributionFinder.Context
    found = importlib_metadata.MetadataPathFinder.find_distributions(context(name=name, path=path))
    ranked = sorted(found, key=lambda dist: not dist._path.joinpath("METADATA").exists())
    told = stated(lambda: ranked[0].version) if ranked else None
    return None if told is None else " ".join(str(told).split()) or None


@settings(many, max_examples=100)
@given(
    st.lists(
        st.lists(
            st.builds(
                Info,
                name=st.sampled_from(["vendor", "Vendor", "ven.dor", "Ven_Dor", "ven__dor", "other"]),
                version=st.sampled_from(["", "1", "2"]),
                suffix=st.sampled_from([".dist-info", ".egg-info"]),
                file=st.just("METADATA"),
                headers=headers,
                entry_points=st.none(),
            ),
            max_size=4,
        ),
        max_size=3,
    )
)
def test_versions_are_those_of_the_authority(folders: list[list[Info]]) -> None:
    """A version is that of the copy which `importlib_metadata` takes, for every spelling of the name."""
    with tempfile.TemporaryDirectory() as name:
        path = [Place("folder", infos).entry(Path(name), index) for index, infos in enumerate(folders)]
        installed = InstalledVersions(path)
        for spelling in ("vendor", "VENDOR", "ven-dor", "ven.dor", "Ven_dor", "other", "absent"):
            assert installed.version(spelling) == version(spelling, path)


@settings(many, max_examples=500)
@given(texts)
def test_a_text_is_parsed_as_the_authority_parses_it(text: str) -> None:
    """Groups, names and values are the authority's, and so is the refusal; what is refused always looks odd."""
    data = text.encode("utf-8", "ignore")
    text = data.decode()
    try:
        points: Any = importlib_metadata.EntryPoints
        expected = [(point.group, point.name, point.value) for point in points._from_text(text)]
    except TypeError:
        with pytest.raises(ValueError, match="is neither a"):
            parse_entry_points(data)
        assert looks_odd(data)
    else:
        assert parse_entry_points(data) == expected


@settings(many, max_examples=500)
@given(
    st.lists(st.sampled_from(HEADERS) | st.text(st.characters(codec="ascii"), max_size=5), max_size=6).map("\n".join)
)
def test_headers_are_parsed_as_an_email_is(text: str) -> None:
    """Names and values of the header lines are those of the standard library's e-mail parser."""
    message = email.message_from_string(text)
    expected = [(name.lower(), value.strip()) for name, value in message.items()]
    assert [(name, value.strip()) for name, value in parse_headers(text)] == expected
