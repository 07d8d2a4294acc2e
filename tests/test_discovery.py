"""Discovery: which entry points count, what is a fault, and what is never touched."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import pytest

import hardpoint
from hardpoint._discovery import (
    GROUPS,
    Discovery,
    InstalledVersions,
    discover,
    installed_version,
    requires_hardpoint,
)
from hardpoint._reasons import ReasonCode
from hardpoint.errors import DiscoveryError
from tests.distributions import PLUGIN, add, archive, copy_core, run

if TYPE_CHECKING:
    from collections.abc import Iterator

needs_posix = pytest.mark.skipif(os.name == "nt", reason="permissions and symbolic links as POSIX has them")


def look(*path: object) -> Discovery:
    """What there is on this path."""
    return discover([str(entry) for entry in path])


def test_a_record_says_where_it_comes_from(tmp_path: Path) -> None:
    """A record holds group, name, value, distribution, version, metadata folder and path entry, as strings."""
    info = add(tmp_path, "vendor-2.5.dist-info", "[hardpoint.platforms]\nnpu = vendor.platform:npu [extra]\n")
    found = look(tmp_path)
    (record,) = found.entries
    assert (record.group, record.name, record.value) == ("hardpoint.platforms", "npu", "vendor.platform:npu [extra]")
    assert (record.distribution, record.version) == ("vendor", "2.5")
    assert (record.metadata_path, record.location) == (str(info), str(tmp_path))
    assert (record.trusted, record.untrusted_reason) == (True, None)
    assert (found.faults, found.method) == ((), "raw scan")


@needs_posix
def test_a_pipe_in_the_place_of_the_entry_points_holds_nobody_up(tmp_path: Path) -> None:
    """Opening one that nobody writes to would wait for ever."""
    os.mkfifo(add(tmp_path, "odd-1.0.dist-info", None) / "entry_points.txt")
    add(tmp_path, "vendor-2.5.dist-info")
    assert [record.distribution for record in look(tmp_path).entries] == ["vendor"]


def test_nothing_installed_is_an_empty_answer(tmp_path: Path) -> None:
    """An empty folder, a missing one and an empty path give no entries, no fault and no error."""
    assert look(tmp_path, tmp_path / "missing") == Discovery(entries=(), faults=(), method="raw scan")
    assert discover([]) == Discovery(entries=(), faults=(), method="raw scan")


def test_only_our_groups_are_reported(tmp_path: Path) -> None:
    """Entries of other groups, even of similar names, are left out; a name may stand in both of ours."""
    add(
        tmp_path,
        "vendor-1.dist-info",
        "[console_scripts]\na = b:c\n[hardpoint.platforms]\nx = v:p\n[hardpoint.backends]\nx = v:b\n"
        "[hardpoint.backends.old]\ny = v:b\n[hardpoint]\nz = v:b\n",
    )
    assert [(record.group, record.name) for record in look(tmp_path).entries] == [(GROUPS[1], "x"), (GROUPS[0], "x")]


def test_the_order_of_records_is_that_of_their_names(tmp_path: Path) -> None:
    """Records are sorted by group and name, whatever order the folders are listed in."""
    for name in ("zeta", "alpha", "mid"):
        add(tmp_path / "b", f"{name}-1.dist-info", f"[hardpoint.backends]\n{name} = m:o\n")
    add(tmp_path / "a", "last-1.dist-info", "[hardpoint.backends]\nlast = m:o\n")
    assert [record.name for record in look(tmp_path / "a", tmp_path / "b").entries] == ["alpha", "last", "mid", "zeta"]


def test_a_malformed_neighbour_hides_nobody(tmp_path: Path) -> None:
    """A malformed line in a group that is not ours is one fault, which names the folder and the line."""
    add(tmp_path, "vendor-1.dist-info")
    broken = add(tmp_path, "unrelated-3.dist-info", "[console_scripts]\ntool = a:b\nthis is no entry\n")
    found = look(tmp_path)
    assert [record.name for record in found.entries] == ["fast"]
    (fault,) = found.faults
    assert fault.path == str(broken)
    assert fault.code is ReasonCode.OTHER
    assert fault.message == (
        f"{broken}: its entry_points.txt is malformed, so none of it counts: "
        "ValueError: line 3 is neither a [section] nor 'name = value': 'this is no entry'"
    )


@pytest.mark.parametrize(
    "spoiled",
    [
        "[a]\nb\n",
        "[a\n[b]\n[c\n",
        "[a]\r\nb\r\n",
        "[a]\nx = y\x0bb\n",
        "[a]\nx = y\x85b\n",
        "[a]\n  b  \n",
        "[a]\n[b] c\n",
        b"[a]\nb = \xff\n",
    ],
)
def test_every_malformed_file_is_a_fault(tmp_path: Path, spoiled: str | bytes) -> None:
    """Whatever `importlib_metadata` would stumble over is a fault, though no group of ours is in the file."""
    add(tmp_path, "unrelated-3.dist-info", spoiled)
    assert [fault.path for fault in look(tmp_path).faults] == [str(tmp_path / "unrelated-3.dist-info")]


@pytest.mark.parametrize(
    "sound", ["", "# b\n[a]\n# c\nx = y\n", "b\n[a]\nx=y\n", "[a]\n\n  \nx = y", "[a]\n[b]\n", "[a]\nx = \u00fc\n"]
)
def test_a_sound_file_is_no_fault(tmp_path: Path, sound: str) -> None:
    """Comments, blank lines, empty sections, text before the first section and UTF-8 are all right."""
    add(tmp_path, "unrelated-3.dist-info", sound)
    assert look(tmp_path).faults == ()


@pytest.mark.parametrize("order", list(itertools.permutations(["good-1", "bad-1", "fine-1"])))
def test_one_bad_distribution_hides_no_other_in_any_order(tmp_path: Path, order: tuple[str, ...]) -> None:
    """Good, bad and good give the same two records and one fault in all six orders."""
    for index, name in enumerate(order):
        text = "[hardpoint.backends]\nbad\n" if name == "bad-1" else f"[hardpoint.backends]\n{name[:4]} = m:o\n"
        add(tmp_path / str(index), f"{name}.dist-info", text)
    found = look(*(tmp_path / str(index) for index in range(3)))
    assert [record.name for record in found.entries] == ["fine", "good"]
    assert [PurePath(fault.path).name for fault in found.faults] == ["bad-1.dist-info"]


def test_a_broken_copy_that_does_not_count_is_no_fault(tmp_path: Path) -> None:
    """What Python would never read is not complained about."""
    add(tmp_path / "a", "vendor-2.dist-info")
    add(tmp_path / "b", "vendor-1.dist-info", "[a]\nb\n")
    found = look(tmp_path / "a", tmp_path / "b")
    assert [record.version for record in found.entries] == ["2"]
    assert found.faults == ()


def test_a_byte_order_mark_is_explained(tmp_path: Path) -> None:
    """A byte order mark hides the first section from Python, and so from us; the fault says so."""
    add(tmp_path, "vendor-1.dist-info", b"\xef\xbb\xbf" + PLUGIN.encode())
    found = look(tmp_path)
    assert found.entries == ()
    assert "byte order mark" in found.faults[0].message


def test_a_distribution_without_metadata_is_found(tmp_path: Path) -> None:
    """Without METADATA the plugin is found, and its distribution and version are unknown."""
    add(tmp_path, "vendor-1.dist-info", metadata=None)
    (record,) = look(tmp_path).entries
    assert (record.name, record.distribution, record.version) == ("fast", None, None)


def test_metadata_is_read_up_to_the_description(tmp_path: Path) -> None:
    """Name and Version come from the header lines in any case, the first of each, never from the description."""
    text = "Metadata-Version: 2.1\nSummary: a\n  Name: folded\nNAME:  Vendor.Kit \nname: other\n\nVersion: 9\n"
    add(tmp_path, "vendor_kit-1.dist-info", metadata=text)
    (record,) = look(tmp_path).entries
    assert (record.distribution, record.version) == ("Vendor.Kit", None)


def test_metadata_that_is_not_utf8_still_has_a_name(tmp_path: Path) -> None:
    """A description in another encoding costs neither name nor version."""
    add(tmp_path, "vendor-1.dist-info", metadata=b"Name: vendor\nVersion: 1\nAuthor: J\xfcrgen\n\n\xff")
    assert [(record.distribution, record.version) for record in look(tmp_path).entries] == [("vendor", "1")]


def test_the_first_copy_on_the_path_wins(tmp_path: Path) -> None:
    """Of one distribution in two entries of the path, in any spelling, the first counts, without a fault."""
    add(tmp_path / "a", "Vendor.Kit-2.dist-info")
    add(tmp_path / "b", "vendor_kit-1.dist-info")
    found = look(tmp_path / "a", tmp_path / "b")
    assert [record.version for record in found.entries] == ["2"]
    assert found.faults == ()


def test_a_copy_without_plugins_shadows_a_later_one_with(tmp_path: Path) -> None:
    """The first copy counts even where it has no entry points of ours: Python would import it."""
    add(tmp_path / "a", "vendor-2.dist-info", None)
    add(tmp_path / "b", "vendor-1.dist-info")
    assert look(tmp_path / "a", tmp_path / "b").entries == ()


def test_two_versions_in_one_folder_are_one_plugin_and_a_fault(tmp_path: Path) -> None:
    """Of old and new metadata side by side Python's choice is taken, and the other folder is named."""
    for version in ("1.0", "2.0"):
        add(tmp_path, f"vendor-{version}.dist-info")
    import importlib_metadata

    (chosen,) = itertools.islice(importlib_metadata.distributions(name="vendor", path=[str(tmp_path)]), 1)
    other = {"1.0": "2.0", "2.0": "1.0"}[chosen.version]
    found = look(tmp_path)
    assert [record.version for record in found.entries] == [chosen.version]
    (fault,) = found.faults
    assert fault.code is ReasonCode.DUPLICATE
    assert fault.path == str(tmp_path / f"vendor-{other}.dist-info")
    assert f"vendor-{chosen.version}.dist-info beside it" in fault.message


def test_two_versions_of_a_stranger_are_nobodys_business(tmp_path: Path) -> None:
    """Side by side metadata of a distribution without plugins is not reported."""
    for version in ("1.0", "2.0"):
        add(tmp_path, f"unrelated-{version}.dist-info", "[console_scripts]\na = b:c\n")
    assert look(tmp_path).faults == ()


def test_an_interrupted_uninstall_is_not_installed(tmp_path: Path) -> None:
    """The folder that a killed pip leaves behind is a fault, not a second copy of the plugin."""
    add(tmp_path, "vendor-2.dist-info")
    add(tmp_path, "~endor-1.dist-info", metadata="Name: vendor\nVersion: 1\n")
    found = look(tmp_path)
    assert [record.version for record in found.entries] == ["2"]
    assert [PurePath(fault.path).name for fault in found.faults] == ["~endor-1.dist-info"]


def test_an_editable_install_is_found(tmp_path: Path) -> None:
    """Both kinds are found: metadata beside a .pth file, and an egg-info in the source folder that one points to."""
    add(tmp_path / "site", "vendor-1.dist-info")
    (tmp_path / "site" / "__editable__.vendor-1.pth").write_text(str(tmp_path / "checkout"))
    add(tmp_path / "source", "other.egg-info", "[hardpoint.backends]\nother = m:o\n", file="PKG-INFO")
    found = look(tmp_path / "site", tmp_path / "source", "__editable__.vendor-1.finder.__path_hook__")
    assert [record.name for record in found.entries] == ["fast", "other"]


def test_eggs_are_found(tmp_path: Path) -> None:
    """An .egg folder on the path is one distribution, named by its metadata."""
    egg = tmp_path / "other_name-1-py3.egg"
    add(egg, "EGG-INFO", metadata="Name: vendor\nVersion: 1\n", file="PKG-INFO")
    add(tmp_path / "site", "vendor-2.dist-info")
    assert [record.version for record in look(egg, tmp_path / "site").entries] == ["1"]


def test_an_archive_is_read_by_the_authority(tmp_path: Path) -> None:
    """A zip archive is answered by `importlib_metadata`, in its place on the path."""
    add(tmp_path / "a", "vendor-2.dist-info", metadata="Name: vendor\nVersion: 2\nRequires-Dist: hardpoint>=1\n")
    add(tmp_path / "a", "spoiled-2.dist-info", "[a]\nb\n")
    packed = archive(tmp_path / "a", tmp_path / "packed.whl")
    add(tmp_path / "b", "vendor-1.dist-info")
    found = look(packed, tmp_path / "b")
    assert [(record.version, record.location) for record in found.entries] == [("2", str(packed))]
    assert found.method == "importlib_metadata"
    assert [fault.path for fault in found.faults] == [str(packed / "spoiled-2.dist-info")]
    assert requires_hardpoint(found.entries[0]) == "hardpoint>=1"
    assert [record.version for record in look(tmp_path / "b", packed).entries] == ["1"]
    assert installed_version("vendor", [str(packed)]) == "2"


def test_a_file_that_is_no_archive_is_nothing(tmp_path: Path) -> None:
    """Any file may stand on the path; one that is no archive holds nothing, and is no fault."""
    (tmp_path / "text").write_text("not a zip archive")
    add(tmp_path, "vendor-1.dist-info")
    found = look(tmp_path / "text", tmp_path / "text" / "below", tmp_path)
    assert ([record.name for record in found.entries], found.faults) == (["fast"], ())


@needs_posix
def test_a_folder_reached_twice_is_listed_once(tmp_path: Path) -> None:
    """A symbolic link on the path, and one inside a folder, give neither a second record nor a fault."""
    info = add(tmp_path / "site", "vendor-1.dist-info")
    (tmp_path / "link").symlink_to(tmp_path / "site")
    (tmp_path / "site" / "vendor-1.0.dist-info").symlink_to(info)
    found = look(tmp_path / "link", tmp_path / "site", tmp_path / "site", f"{tmp_path}/site/")
    assert (len(found.entries), found.faults) == (1, ())


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the core and nothing else, for the path of a fresh process."""
    return copy_core(tmp_path_factory.mktemp("core"))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        yield folder


@needs_posix
def test_what_may_not_be_read_is_a_fault(open_folder: Path) -> None:
    """A path entry and a file without read permission are faults; the rest is found."""
    closed, site = open_folder / "closed", open_folder / "site"
    add(closed, "hidden-1.dist-info")
    secret = add(site, "secret-1.dist-info", "[hardpoint.backends]\nsecret = m:o\n")
    add(site, "vendor-1.dist-info")
    mute = add(site, "mute-1.dist-info", "[hardpoint.backends]\nmute = m:o\n")
    (secret / "entry_points.txt").chmod(0)
    (mute / "METADATA").chmod(0)
    closed.chmod(0)
    program = (
        "import os, sys, json; from hardpoint._discovery import discover\n"
        # Root may read everything.
        "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        f"found = discover([{str(closed)!r}, {str(site)!r}])\n"
        "print(json.dumps([[(r.name, r.distribution) for r in found.entries],"
        " [(f.path, f.code) for f in found.faults]]))"
    )
    done = run("-c", program, path=Path(hardpoint.__path__[0]).parent)
    closed.chmod(0o755)
    if "os.set" in done.stderr:
        pytest.skip("this root may not become another user")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        [["fast", "vendor"], ["mute", None]],
        [[str(closed), "permission"], [str(secret), "permission"]],
    ]


@needs_posix
def test_a_file_that_cannot_be_opened_is_a_fault_of_its_distribution(tmp_path: Path) -> None:
    """An ``entry_points.txt`` that fails for a reason of its own costs nobody else; a missing one is no fault."""
    info = add(tmp_path, "looping-1.dist-info", None)
    (info / "entry_points.txt").symlink_to(info / "entry_points.txt")
    dangling = add(tmp_path, "dangling-1.dist-info", None)
    (dangling / "entry_points.txt").symlink_to(tmp_path / "missing")
    add(tmp_path, "vendor-1.dist-info")
    found = look(tmp_path)
    assert [record.name for record in found.entries] == ["fast"]
    (fault,) = found.faults
    assert fault.path == str(info)
    assert "its entry_points.txt cannot be read: OSError: " in fault.message


def test_an_entry_that_is_no_string_is_a_fault(tmp_path: Path) -> None:
    """Bytes, numbers and None on the path are faults; an object that is a path is read as the authority reads it."""
    add(tmp_path, "vendor-1.dist-info")
    odd: list[Any] = [b"/bytes", 7, None, "nul\0byte", tmp_path]
    found = discover(odd)
    assert [record.location for record in found.entries] == [str(tmp_path)]
    assert [fault.path for fault in found.faults] == ["b'/bytes'", "7", "None", "nul\0byte"]


def test_a_long_file_is_read_to_its_end(tmp_path: Path) -> None:
    """An entry at the end of an ``entry_points.txt`` longer than one read is found."""
    text = "[console_scripts]\n" + "".join(f"tool-{index} = m:o\n" for index in range(9000)) + PLUGIN
    assert len(text) > 2 * 65536
    add(tmp_path, "vendor-1.dist-info", text)
    assert [record.name for record in look(tmp_path).entries] == ["fast"]


@needs_posix
def test_a_path_of_which_nothing_can_be_listed_is_an_error_and_the_next_call_tries_again(tmp_path: Path) -> None:
    """Where every entry fails for a reason that is not its own, nothing is concluded, and nothing is remembered."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(DiscoveryError, match=r"cannot be listed: .*loop: this entry of the path"):
        look(loop)
    loop.unlink()
    add(loop, "vendor-1.dist-info")
    assert [record.name for record in look(loop).entries] == ["fast"]


@needs_posix
def test_a_process_out_of_descriptors_gets_an_error_not_an_empty_answer(tmp_path: Path) -> None:
    """When no file can be opened the answer is an error that says so, and a later call succeeds."""
    import resource

    add(tmp_path, "vendor-1.dist-info")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        while len(taken) < 100:
            try:
                taken.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        with pytest.raises(DiscoveryError, match="Too many open files"):
            look(tmp_path)
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [record.name for record in look(tmp_path).entries] == ["fast"]


class Finder:
    """A finder of distributions that nobody has heard of."""

    def __init__(self, *answers: object) -> None:
        self.answers = answers

    def find_spec(self, *arguments: object) -> None:
        return None

    def find_distributions(self, context: object) -> Iterator[object]:
        for answer in self.answers:
            if isinstance(answer, Exception):
                raise answer
            yield answer


@pytest.fixture
def meta_path() -> Iterator[list[Any]]:
    """`sys.meta_path`, restored afterwards, with what importing importlib_metadata puts there."""
    importlib.import_module("importlib_metadata")
    before = sys.meta_path[:]
    yield sys.meta_path
    sys.meta_path[:] = before


def test_an_unknown_finder_is_asked_in_its_turn(tmp_path: Path, meta_path: list[Any]) -> None:
    """A finder before Python's own counts before the path; one behind it, after the path."""
    import importlib_metadata

    supplied = importlib_metadata.Distribution.at(add(tmp_path / "apart", "vendor-9.dist-info"))
    add(tmp_path / "site", "vendor-1.dist-info")
    meta_path.insert(0, Finder(supplied))
    found = look(tmp_path / "site")
    assert [(record.version, record.location) for record in found.entries] == [("9", None)]
    assert found.method == "importlib_metadata"
    meta_path.append(meta_path.pop(0))
    assert [record.version for record in look(tmp_path / "site").entries] == ["1"]


def test_a_finder_that_fails_hides_nobody(tmp_path: Path, meta_path: list[Any]) -> None:
    """Whatever an unknown finder raises is a fault, and what it gave before that counts."""
    import importlib_metadata

    supplied = importlib_metadata.Distribution.at(add(tmp_path / "apart", "given-9.dist-info"))
    add(tmp_path / "site", "vendor-1.dist-info")
    meta_path.insert(0, Finder(supplied, TypeError("no such luck")))
    found = look(tmp_path / "site")
    assert [record.distribution for record in found.entries] == ["given", "vendor"]
    (fault,) = found.faults
    assert "Finder.find_distributions" in fault.message
    assert "TypeError: no such luck" in fault.message


def test_a_finder_that_cannot_be_asked_hides_nobody(tmp_path: Path, meta_path: list[Any]) -> None:
    """A proxy that fails at every attribute is passed over."""

    class Proxy:
        def __getattr__(self, name: str) -> None:
            raise RuntimeError(name)

    add(tmp_path, "vendor-1.dist-info")
    meta_path.append(Proxy())
    found = look(tmp_path)
    assert [record.distribution for record in found.entries] == ["vendor"]
    assert (found.faults, found.method) == ((), "raw scan")


def test_a_distribution_class_of_somebody_elses_is_read(tmp_path: Path, meta_path: list[Any]) -> None:
    """A finder's own distribution class needs no folder; its broken sibling is a fault of that one alone."""
    import importlib_metadata

    class Virtual(importlib_metadata.Distribution):
        def __init__(self, points: str) -> None:
            self.points = points

        def read_text(self, filename: object) -> str | None:
            return {"entry_points.txt": self.points, "METADATA": "Name: Virtual\nVersion: 3\n"}.get(str(filename))

        def locate_file(self, path: object) -> Any:
            raise NotImplementedError

    class Nameless(Virtual):
        def read_text(self, filename: object) -> str | None:
            return self.points if filename == "entry_points.txt" else None

    meta_path.append(Finder(Virtual(PLUGIN), Nameless("[a]\nb\n")))
    found = look(tmp_path)
    (record,) = found.entries
    assert (record.distribution, record.version, record.metadata_path) == ("Virtual", "3", None)
    assert requires_hardpoint(record) is None
    assert ["Nameless" in fault.path for fault in found.faults] == [True]


def test_without_the_authority_the_plain_folders_are_read(core: Path, tmp_path: Path) -> None:
    """Where `importlib_metadata` is not installed, an archive is a fault and the folders are still found."""
    add(tmp_path / "a", "packed-1.dist-info")
    packed = archive(tmp_path / "a", tmp_path / "packed.zip")
    add(tmp_path / "b", "vendor-1.dist-info")
    program = (
        "from hardpoint._discovery import discover\n"
        f"found = discover([{str(packed)!r}, {str(tmp_path / 'b')!r}])\n"
        "print([r.distribution for r in found.entries], [(f.path, str(f.code)) for f in found.faults])"
    )
    # -S: without any site-packages.
    done = run("-S", "-c", program, path=core)
    assert done.stdout.strip() == f"['vendor'] [({str(packed)!r}, 'missing_dependency')]", done.stderr


def test_discovery_imports_nothing_and_changes_no_finder(core: Path, tmp_path: Path) -> None:
    """The raw scan loads no metadata library, no JSON and no plugin, and leaves `sys.meta_path` as it was."""
    add(tmp_path, "vendor-1.dist-info")
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor" / "__init__.py").write_text("raise SystemExit('imported')")
    program = (
        f"import sys; sys.path.append({str(tmp_path)!r}); finders = sys.meta_path[:]\n"
        "from hardpoint._discovery import InstalledVersions, discover\n"
        "assert [r.name for r in discover().entries] == ['fast']\n"
        "assert InstalledVersions().version('vendor') == '1'\n"
        "assert sys.meta_path == finders\n"
        "unwanted = {'importlib_metadata', 'importlib.metadata', 'email', 'json', 'packaging', 'pathlib', 'pluggy',"
        " 'torch', 'vendor', 'zipfile'}\n"
        "print(sorted(unwanted & set(sys.modules)))"
    )
    done = run("-S", "-c", program, path=core)
    assert done.stdout.strip() == "[]", done.stderr


def test_each_folder_is_listed_once_and_each_file_read_once(core: Path, tmp_path: Path) -> None:
    """For both groups together a folder is listed once, and of 500 strangers only ``entry_points.txt`` is read."""
    for index in range(500):
        add(tmp_path, f"stranger_{index}-1.dist-info", "[console_scripts]\na = b:c\n")
    for index in range(3):
        add(tmp_path, f"ours_{index}-1.dist-info", f"[hardpoint.backends]\nb{index} = m:o\n")
    program = (
        "import sys; from collections import Counter; from hardpoint._discovery import discover\n"
        "seen = Counter()\n"
        "def hook(event, arguments):\n"
        "    if event in ('os.listdir', 'os.scandir', 'open'):\n"
        "        seen[event, str(arguments[0]).rpartition('/')[2]] += 1\n"
        "sys.addaudithook(hook)\n"
        f"found = discover([{str(tmp_path)!r}])\n"
        "print(len(found.entries), sorted(seen.items()))"
    )
    done = run("-c", program, path=core)
    listed = f"(('open', 'METADATA'), 3), (('open', 'entry_points.txt'), 503), (('os.listdir', '{tmp_path.name}'), 1)"
    assert done.stdout.strip() == f"3 [{listed}]", done.stderr


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ("Name: v\nRequires-Dist: hardpoint>=1,<2\nRequires-Dist: hardpoint-cpu==3\n", "hardpoint>=1,<2"),
        (
            "Name: v\nRequires-Dist: Hardpoint [x] (>=1) ; python_version > '3'\n",
            "Hardpoint [x] (>=1) ; python_version > '3'",
        ),
        ("Name: v\nRequires-Dist: hardpoint<2\nRequires-Dist: hardpoint>=1\n", "hardpoint<2, hardpoint>=1"),
        ("Name: v\nRequires-Dist: torch\n", None),
        (None, None),
    ],
)
def test_the_requirement_of_the_core_is_quoted(tmp_path: Path, metadata: str | None, expected: str | None) -> None:
    """What a plugin's distribution requires of the core is given as written; others' requirements are not."""
    add(tmp_path, "v-1.dist-info", metadata=metadata)
    assert requires_hardpoint(look(tmp_path).entries[0]) == expected


def test_the_requirement_of_an_egg_info_is_quoted(tmp_path: Path) -> None:
    """An egg-info keeps requirements in ``requires.txt``; those of extras are not the distribution's."""
    info = add(tmp_path, "v-1.egg-info", file="PKG-INFO")
    (info / "requires.txt").write_text("torch\nhardpoint>=1\n\n[dev]\nhardpoint>=9\n")
    (record,) = look(tmp_path).entries
    assert requires_hardpoint(record) == "hardpoint>=1"
    shutil.rmtree(info)
    assert requires_hardpoint(record) is None


def test_installed_versions_are_looked_up_by_any_spelling(tmp_path: Path) -> None:
    """A version is found by normalised name, the first on the path; an absent distribution has none."""
    add(tmp_path / "a", "Flash_Attn-2.8.3.dist-info", None, metadata="Name: flash-attn\nVersion: 2.8.3\n")
    add(tmp_path / "b", "flash_attn-1.0.dist-info", None, metadata="Name: flash-attn\nVersion: 1.0\n")
    add(tmp_path / "b", "bare-1.0.dist-info", None, metadata=None)
    installed = InstalledVersions([str(tmp_path / "a"), str(tmp_path / "b")])
    assert [installed.version(name) for name in ("flash-attn", "FLASH.attn", "flash_attn")] == ["2.8.3"] * 3
    assert [installed.version(name) for name in ("flash", "bare", "")] == [None] * 3
    assert installed_version("flash-attn", [str(tmp_path / "b")]) == "1.0"


def test_installed_versions_of_this_environment_are_those_of_the_authority() -> None:
    """Every distribution installed here has the version that `importlib_metadata` gives."""
    import importlib_metadata

    installed = InstalledVersions()
    known = {dist.name for dist in importlib_metadata.distributions() if "Name" in dist.metadata}
    assert {name: installed.version(name) for name in known} == {
        name: importlib_metadata.version(name) for name in known
    }
