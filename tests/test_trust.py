"""Trust: what only the current directory, the script's folder or an open folder leads to is not loaded unasked."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import importlib_metadata
import pytest

from hardpoint._discovery import discover
from hardpoint._trust import judge_folder, judge_path, script_folder
from tests.distributions import add, archive, copy_core, run

pytestmark = pytest.mark.skipif(os.name == "nt", reason="mode bits and links as POSIX has them")

SHOW = (
    "from hardpoint._discovery import discover\n"
    "print([(r.version, r.trusted, r.untrusted_reason) for r in discover().entries])\n"
)


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the core and nothing else, for the path of a fresh process."""
    return copy_core(tmp_path_factory.mktemp("core"))


def test_an_installed_distribution_is_trusted(tmp_path: Path) -> None:
    """A folder that only its owner may write is trusted."""
    assert judge_path([str(tmp_path)], script=None) == [None]
    assert judge_path(["/no/such/folder", "nul\0byte"], script="") == [None, None]


@pytest.mark.parametrize("entry", ["", ".", "./", "././"])
def test_the_current_directory_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str) -> None:
    """Whatever is found through ``''`` or ``.`` alone is not trusted, and the sentence says so."""
    add(tmp_path, "vendor-1.dist-info")
    monkeypatch.chdir(tmp_path)
    (record,) = discover([entry]).entries
    assert record.trusted is False
    assert record.untrusted_reason == f"it was found only through {entry!r} on the path, the current directory"
    assert record.metadata_path == str(tmp_path / "vendor-1.dist-info")


def test_a_process_may_stand_in_its_own_site_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Site-packages is trusted although the current directory is the same folder, or a link to it is on the path."""
    monkeypatch.chdir(tmp_path)
    assert judge_path(["", str(tmp_path)], script="") == [None, None]
    (tmp_path / "link").symlink_to(tmp_path)
    assert judge_path([".", str(tmp_path / "link")], script=None) == [None, None]
    assert judge_path([str(tmp_path), str(tmp_path)], script=str(tmp_path)) == [None, None]


def test_the_folder_of_the_script_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Python put first on the path by itself vouches for nothing, not even for the current directory."""
    monkeypatch.chdir(tmp_path)
    text = f"it was found only through {tmp_path}, the folder that the program was started from"
    assert judge_path([str(tmp_path)], script=str(tmp_path)) == [text]
    assert judge_path(["", str(tmp_path)], script=str(tmp_path)) == [
        "it was found only through '' on the path, the current directory",
        text,
    ]


def test_a_worker_of_an_interactive_process_decides_as_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spawned worker gets the parent's ``''`` as a full path, which is not trusted either."""
    monkeypatch.chdir(tmp_path)
    assert judge_path([str(tmp_path)], script="") == [f"it was found only through {tmp_path}, the current directory"]


@pytest.mark.parametrize(("mode", "trusted"), [(0o755, True), (0o775, True), (0o757, False), (0o1777, False)])
def test_a_folder_that_everybody_may_write_is_not_trusted(tmp_path: Path, mode: int, trusted: bool) -> None:
    """The path entry, or the metadata folder in it, open to everybody is not trusted; open to a group it is."""
    site = tmp_path / "site"
    info = add(site, "vendor-1.dist-info")
    site.chmod(mode)
    reason = None if trusted else f"everybody may write to {site} (mode {mode:04o})"
    assert judge_folder(str(site)) == reason
    assert [record.untrusted_reason for record in discover([str(site)]).entries] == [reason]
    site.chmod(0o755)
    info.chmod(mode)
    reason = None if trusted else f"everybody may write to {info} (mode {mode:04o})"
    assert [record.untrusted_reason for record in discover([str(site)]).entries] == [reason]


def test_a_link_is_judged_by_what_it_leads_to(tmp_path: Path) -> None:
    """Neither a link to an open folder is trusted, nor the same folder under another name."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open")
    reasons = judge_path([str(tmp_path / "link"), str(tmp_path / "open")], script=None)
    assert [reason is None for reason in reasons] == [False, False]


def test_an_untrusted_copy_hides_no_installed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkout of an installed plugin the installed one is found, once, trusted and without a fault."""
    add(tmp_path / "checkout", "vendor.egg-info", file="PKG-INFO")
    add(tmp_path / "site", "vendor-2.dist-info")
    monkeypatch.chdir(tmp_path / "checkout")
    found = discover(["", str(tmp_path / "site")])
    assert [(record.version, record.trusted) for record in found.entries] == [("2", True)]
    assert found.faults == ()


def shown(core: Path, cwd: Path, *arguments: str) -> str:
    """What a fresh process prints."""
    done = run("-S", *arguments, path=core, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_each_way_to_start_a_program_is_recognised(core: Path, tmp_path: Path) -> None:
    """A script, ``-m``, ``-c`` and a folder as the program all find the plugin beside it, and do not trust it."""
    here = tmp_path / "program"
    add(here, "vendor-1.dist-info")
    for name in ("tool.py", "__main__.py"):
        (here / name).write_text(SHOW)
    started = f"[('1', False, 'it was found only through {here}, the folder that the program was started from')]"
    assert shown(core, tmp_path, str(here / "tool.py")) == started
    assert shown(core, tmp_path, str(here)) == started
    assert shown(core, here, "-m", "tool") == started
    assert "the current directory" in shown(core, here, "-c", SHOW)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").symlink_to(here / "tool.py")
    assert shown(core, tmp_path, str(tmp_path / "bin" / "tool")) == started


def test_the_main_module_tells_how_the_program_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file means ``-c``; a file alone a script; a module's specification ``-m``; a file in a file an archive."""
    if sys.flags.safe_path:
        pytest.skip("Python adds nothing to the path under -P")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "tool.pyz").touch()
    told = []
    for file, spec in (
        (None, None),
        (tmp_path / "scripts" / "tool.py", None),
        (tmp_path / "elsewhere" / "tool.py", ModuleSpec("tool", None)),
        (tmp_path / "tool.pyz" / "__main__.py", ModuleSpec("__main__", None)),
    ):
        main = ModuleType("__main__")
        main.__spec__ = spec
        if file is not None:
            main.__file__ = str(file)
        monkeypatch.setitem(sys.modules, "__main__", main)
        told.append(script_folder())
    assert told == ["", str(tmp_path / "scripts"), str(tmp_path), None]


def test_a_program_in_safe_path_mode_does_not_look_there(core: Path, tmp_path: Path) -> None:
    """Under ``-P`` Python adds nothing by itself: a folder named on purpose is trusted, even the script's."""
    add(tmp_path, "vendor-1.dist-info")
    (tmp_path / "tool.py").write_text(f"import sys\nsys.path.append({str(tmp_path)!r})\n{SHOW}")
    assert shown(core, tmp_path, "-P", "-c", SHOW) == "[]"
    assert shown(core, tmp_path, "-P", str(tmp_path / "tool.py")) == "[('1', True, None)]"


def test_a_path_set_on_purpose_is_trusted(core: Path, tmp_path: Path) -> None:
    """The current directory that also stands in PYTHONPATH was put there on purpose."""
    add(tmp_path, "vendor-1.dist-info")
    done = run("-S", "-c", SHOW, path=Path(f"{core}{os.pathsep}{tmp_path}"), cwd=tmp_path)
    assert done.stdout.strip() == "[('1', True, None)]", done.stderr


def test_a_program_that_is_an_archive_is_trusted(core: Path, tmp_path: Path) -> None:
    """A zip archive that is the program brings its own plugins: whoever runs it runs them."""
    add(tmp_path / "content", "vendor-1.dist-info")
    (tmp_path / "content" / "__main__.py").write_text(SHOW)
    packed = archive(tmp_path / "content", tmp_path / "tool.pyz")
    library = Path(importlib_metadata.__file__).parent.parent
    done = run(str(packed), path=Path(f"{core}{os.pathsep}{library}"), cwd=tmp_path)
    assert "('1', True, None)" in done.stdout, done.stderr
