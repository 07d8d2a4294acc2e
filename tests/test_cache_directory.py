from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hardpoint import InMemoryMachine, LiveMachine
from hardpoint._cache_directory import cache_directory, make_cache_directory
from hardpoint.errors import EnvironmentFailure, SettingsError
from tests.processes import open_to_all

NOBODYS_UID = 12345
as_root = pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs to become another user")


def _machine(variables: dict[str, str], *directories: str, read_only: str = "/none") -> InMemoryMachine:
    return InMemoryMachine(
        variables=variables, directories=directories or ["/tmp"], read_only=[read_only], user_id=NOBODYS_UID
    )


def run_as_nobody(script: str, **variables: str) -> str:
    """Run a script as a user without a name, a home or a terminal, and return what it prints."""
    start = f"""
import getpass, json, os, sys
sys.path[:] = {sys.path!r}
from hardpoint import LiveMachine
from hardpoint._cache_directory import cache_directory, make_cache_directory
import hardpoint, hardpoint._settings, hardpoint._process
os.setgroups([]); os.setgid({NOBODYS_UID}); os.setuid({NOBODYS_UID})
try: name = getpass.getuser()
except (KeyError, OSError): name = None
assert name is None, "this user was meant to have no name"
"""
    environment = {"PATH": os.defpath, **variables}
    command = [sys.executable, "-c", start + textwrap.dedent(script)]
    done = subprocess.run(
        command, env=environment, text=True, capture_output=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "/tmp/hardpoint-12345"),
        ({"HOME": ""}, "/tmp/hardpoint-12345"),
        ({"HOME": "/"}, "/tmp/hardpoint-12345"),
        ({"HOME": "//"}, "/tmp/hardpoint-12345"),
        ({"HOME": "somewhere"}, "/tmp/hardpoint-12345"),
        ({"HOME": "/home/me"}, "/home/me/.cache/hardpoint"),
        ({"HOME": "/home/me", "XDG_CACHE_HOME": "/cache"}, "/cache/hardpoint"),
        ({"HOME": "/home/me", "XDG_CACHE_HOME": "relative"}, "/home/me/.cache/hardpoint"),
        ({"HOME": "/home/me", "HARDPOINT_CACHE_DIR": " /chosen/here "}, "/chosen/here"),
        ({"HOME": "/", "TMPDIR": "/scratch"}, "/scratch/hardpoint-12345"),
        ({"HOME": "/", "TMPDIR": "relative", "TEMP": "/scratch"}, "/scratch/hardpoint-12345"),
    ],
)
def test_choice(variables: dict[str, str], expected: str) -> None:
    """Our variable, the cache folder of the desktop standard, the home, a temporary path with the numeric user id."""
    directories = ("/tmp", "/home/me", "/cache", "/chosen", "/scratch")
    assert cache_directory(_machine(variables, *directories)) == expected


def test_system_without_user_ids() -> None:
    """Where there is no numeric user id, the temporary path has none."""
    windows = InMemoryMachine(system="Windows", user_id=None, directories=["/tmp"])
    assert cache_directory(windows) == "/tmp/hardpoint"


def test_default_that_cannot_be_used_is_passed_over() -> None:
    """A home on a read-only file system is no place for a cache, and a default may be replaced."""
    assert (
        cache_directory(_machine({"HOME": "/home/me"}, "/home/me", "/tmp", read_only="/home")) == "/tmp/hardpoint-12345"
    )


def test_temporary_directory_that_cannot_be_used_is_passed_over() -> None:
    """One that a variable names is a default too: behind it stand the system's own."""
    variables = {"HOME": "/", "TMPDIR": "/scratch"}
    usable = _machine(variables, "/scratch", "/tmp", read_only="/scratch")
    assert cache_directory(usable) == "/tmp/hardpoint-12345"
    machine = InMemoryMachine(
        variables=variables, directories=["/scratch", "/tmp", "/var/tmp"], read_only=["/scratch", "/tmp"], user_id=12345
    )
    assert cache_directory(machine) == "/var/tmp/hardpoint-12345"


def test_no_place_at_all() -> None:
    """If nothing can be used, the failure lists each path with its trouble, and what to set."""
    with pytest.raises(EnvironmentFailure) as failure:
        cache_directory(_machine({"HOME": "/home/me"}, "/home/me", "/tmp", read_only="/"))
    assert str(failure.value) == (
        "no cache directory can be used: /home/me/.cache/hardpoint: /home/me cannot be written; "
        "/tmp/hardpoint-12345: /tmp cannot be written; /var/tmp/hardpoint-12345: / cannot be written"
    )
    assert failure.value.code == "permission"
    assert failure.value.remedy == "set HARDPOINT_CACHE_DIR to a directory that can be written"


def test_explicit_choice_is_never_replaced() -> None:
    """An explicit directory that cannot be used is an error with variable, path and trouble."""
    with pytest.raises(EnvironmentFailure) as failure:
        cache_directory(_machine({"HARDPOINT_CACHE_DIR": "/data/cache"}, "/data", "/tmp", read_only="/data"))
    assert str(failure.value) == "HARDPOINT_CACHE_DIR=/data/cache cannot be used: /data cannot be written"
    assert failure.value.code == "permission"
    blocked = InMemoryMachine(variables={"HARDPOINT_CACHE_DIR": "/a/file/below"}, files={"/a/file": ""})
    with pytest.raises(
        EnvironmentFailure, match="HARDPOINT_CACHE_DIR=/a/file/below cannot be used: /a/file is not a directory"
    ):
        cache_directory(blocked)
    hidden = InMemoryMachine(
        variables={"HARDPOINT_CACHE_DIR": "/a/b"}, directories={"/a": PermissionError(13, "Permission denied")}
    )
    with pytest.raises(EnvironmentFailure, match="cannot be used: /a cannot be read"):
        cache_directory(hidden)


def test_explicit_choice_is_absolute() -> None:
    """A relative path would be another one in each process."""
    with pytest.raises(SettingsError, match="HARDPOINT_CACHE_DIR='cache' is not an absolute path") as error:
        cache_directory(_machine({"HARDPOINT_CACHE_DIR": "cache"}))
    assert error.value.setting == "HARDPOINT_CACHE_DIR"


def test_asking_creates_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path may not exist before or after it was chosen."""
    monkeypatch.setenv("HARDPOINT_CACHE_DIR", str(tmp_path / "one" / "two"))
    assert cache_directory(LiveMachine()) == str(tmp_path / "one" / "two")
    assert list(tmp_path.iterdir()) == []


def test_making(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory is made for this user alone, and made again without harm."""
    monkeypatch.setenv("HARDPOINT_CACHE_DIR", str(tmp_path / "one" / "two"))
    for _ in range(2):
        made = Path(make_cache_directory(LiveMachine()))
        assert made.stat().st_mode & 0o777 == 0o700


def test_directory_that_others_may_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept in a directory that everybody may write could be anybody's code."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("HARDPOINT_CACHE_DIR", str(tmp_path / "open"))
    with pytest.raises(EnvironmentFailure, match="open may be written by every user") as failure:
        make_cache_directory(LiveMachine())
    assert failure.value.code == "untrusted"


@as_root
@pytest.mark.parametrize("home", [{}, {"HOME": "/"}], ids=["unset", "root"])
def test_user_without_a_name(tmp_path: Path, home: dict[str, str]) -> None:
    """An arbitrary user id, without passwd entry, home or terminal, gets a temporary path with its number, unmade."""
    tmp_path.chmod(0o777)
    open_to_all(tmp_path.parent)
    printed = run_as_nobody(
        """
        hardpoint._settings.read_settings(LiveMachine())
        path = cache_directory(LiveMachine())
        print(path, os.path.exists(path), make_cache_directory(LiveMachine()) == path, os.stat(path).st_uid)
        """,
        TMPDIR=str(tmp_path),
        **home,
    )
    assert printed == f"{tmp_path}/hardpoint-{NOBODYS_UID} False True {NOBODYS_UID}"


@as_root
def test_really_read_only(tmp_path: Path) -> None:
    """A directory that this user really may not write: a default is passed over, an explicit one is an error."""
    open_to_all(tmp_path.parent)
    tmp_path.chmod(0o755)
    (tmp_path / "closed").mkdir(mode=0o755)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    script = """
        from hardpoint.errors import EnvironmentFailure
        try: print(cache_directory(LiveMachine()))
        except EnvironmentFailure as failure: print(failure.code, failure)
    """
    closed, scratch = str(tmp_path / "closed"), str(tmp_path / "open")
    assert run_as_nobody(script, HOME=closed, TMPDIR=scratch) == f"{scratch}/hardpoint-{NOBODYS_UID}"
    assert run_as_nobody(script, HARDPOINT_CACHE_DIR=f"{closed}/x", TMPDIR=scratch) == (
        f"permission HARDPOINT_CACHE_DIR={closed}/x cannot be used: {closed} cannot be written"
    )


@as_root
def test_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    """A directory that somebody else made under our name beforehand is not used."""
    open_to_all(tmp_path.parent)
    tmp_path.chmod(0o777)
    theirs = tmp_path / f"hardpoint-{NOBODYS_UID}"
    theirs.mkdir()
    theirs.chmod(0o770)
    os.chown(theirs, NOBODYS_UID + 1, NOBODYS_UID)
    printed = run_as_nobody(
        """
        from hardpoint.errors import EnvironmentFailure
        try: print(make_cache_directory(LiveMachine()))
        except EnvironmentFailure as failure: print(failure.code, failure)
        """,
        TMPDIR=str(tmp_path),
    )
    assert printed.startswith(f"untrusted the cache directory {theirs} belongs to user {NOBODYS_UID + 1}")
