"""B41 and B44, from the broken file or the nameless user to the decision."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import hardpoint
from tests.native import EXTENSION_SUFFIX
from tests.plugins import Site, config
from tests.processes import open_to_all

if TYPE_CHECKING:
    from pathlib import Path

FIRST = "BackendPriority('first', 'fastest'), BackendPriority('second', 'works everywhere')"
needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user"
)
needs_elf = pytest.mark.skipif(sys.platform != "linux", reason="the texts are those of Linux's loader")


def other_architecture() -> bytes:
    """An ELF file of a 32-bit machine of another kind."""
    header = bytearray(64)
    header[:16] = b"\x7fELF\x01\x01\x01" + bytes(9)
    header[16:20] = (3).to_bytes(2, "little") + (40).to_bytes(2, "little")
    return bytes(header) + bytes(4096)


BROKEN = {
    "empty": (b"", "file too short"),
    "four bytes": (b"\x7fELF", "file too short"),
    "text": (b"<html>not found</html>" * 400, "invalid ELF header"),
    "other class": (other_architecture(), "wrong ELF class"),
}


@needs_elf
@pytest.mark.parametrize("how", ["import", "ctypes"])
@pytest.mark.parametrize("kind", BROKEN)
def test_b41_a_broken_extension_of_a_backend(site: Site, kind: str, how: str) -> None:
    """B41: the next backend; the reason has the loader's words and the full path; mended and reset, it is taken."""
    content, text = BROKEN[kind]
    extension = site.folder / f"broken_{len(kind)}_{how}{EXTENSION_SUFFIX}"
    extension.write_bytes(content)
    name = extension.name.partition(".")[0]
    top = f"import {name}" if how == "import" else f"import ctypes\nctypes.CDLL({str(extension)!r})"
    site.platform("fake", priorities=FIRST)
    site.backend("first", top=top)
    site.backend("second")
    selection = hardpoint.current_platform().select_backend(config())
    assert selection.backend == "second"
    (first,) = [item for item in selection.candidates if item.name == "first"]
    assert text in first.reasons[0].message
    assert str(extension) in first.reasons[0].message
    assert first.reasons[0].message.startswith("ImportError: " if how == "import" else "OSError: ")
    with pytest.raises(ValueError, match=text) as caught:
        hardpoint.current_platform().select_backend(config(), "first")
    assert isinstance(caught.value.__cause__, (ImportError, OSError))
    import _ctypes

    shutil.copyfile(_ctypes.__file__, extension)
    if how == "import":
        extension.unlink()
        extension.with_name(f"{name}.py").write_text("")
    hardpoint.reset()
    assert hardpoint.current_platform().select_backend(config()).backend == "first"


BECOME_NOBODY = """
import getpass, os, sys
sys.dont_write_bytecode = True
import hardpoint
from hardpoint._cache_directory import cache_directory
config = hardpoint.AttentionConfig(head_size=64, num_heads=4, dtype="float32", block_size=16)
# The other user may not be able to read the interpreter's own files: what is needed is imported before.
os.environ.pop("HARDPOINT_CACHE_DIR", None)
hardpoint.current_platform().select_backend(config, depth="ready")
hardpoint.report(); hardpoint.fingerprint(); cache_directory(hardpoint.LiveMachine())
hardpoint.reset()
os.setgroups([]); os.setgid(54321); os.setuid(54321)
"""
PROGRAM = """
made = []
def hook(event, arguments):
    if event in ("os.mkdir", "os.rename", "tempfile.mkdtemp") or (
        event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")):
        made.append(str(arguments))
sys.addaudithook(hook)
try:
    getpass.getuser()
except (KeyError, OSError):
    print("nameless")
platform = hardpoint.current_platform()
print(platform.name, platform.select_backend(config, depth="ready").backend)
print(cache_directory(hardpoint.LiveMachine()))
hardpoint.report(); hardpoint.fingerprint()
print(made)
"""


def as_nobody(site: Site, code: str, variables: dict[str, str]) -> list[str]:
    """What a program prints, a line each, after it has become a user without a name or a terminal."""
    done = subprocess.run(
        [sys.executable, "-c", BECOME_NOBODY + code],
        capture_output=True, text=True, check=False, timeout=120, stdin=subprocess.DEVNULL, start_new_session=True,
        env={
            "PATH": os.defpath,
            "PYTHONPATH": os.pathsep.join([str(site.folder), *filter(None, sys.path)]),
            "HARDPOINT_PLUGINS": os.environ["HARDPOINT_PLUGINS"],
            **variables,
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@needs_root
@pytest.mark.parametrize("home", [None, "/", "/nonexistent", ""])
def test_b44_a_user_without_a_name(site: Site, tmp_path: Path, home: str | None) -> None:
    """B44: import, resolution and selection at depth ready work, nothing is made, the cache is keyed by the number."""
    open_to_all(tmp_path)
    site.platform("fake")
    site.backend("one")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    scratch.chmod(0o777)
    variables = {"TMPDIR": str(scratch)} if home is None else {"TMPDIR": str(scratch), "HOME": home}
    lines = as_nobody(site, PROGRAM, variables)
    assert lines == ["nameless", "fake one", f"{scratch}/hardpoint-54321", "[]"]
    assert list(scratch.iterdir()) == []


@needs_root
def test_b44_a_cache_that_is_really_read_only(site: Site, tmp_path: Path) -> None:
    """B44: detection is unaffected; only the backend that needs the cache is rejected, with the path as its reason."""
    open_to_all(tmp_path)
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o555)
    site.platform("fake", priorities=FIRST)
    site.backend(
        "first",
        top="import os, hardpoint\nfrom hardpoint._cache_directory import make_cache_directory",
        prepare="""
            path = os.path.join(make_cache_directory(hardpoint.LiveMachine()), 'kernel')
            with open(path, 'w'):
                pass
        """,
    )
    site.backend("second")
    code = f"""
os.environ["HARDPOINT_CACHE_DIR"] = {str(cache)!r}
found = hardpoint.current_platform().select_backend(config, depth="ready")
print(found.backend, found.candidates[0].reasons[0].code, {str(cache)!r} in found.candidates[0].reasons[0].message)
try:
    hardpoint.current_platform().select_backend(config, "first", depth="ready")
except ValueError as error:
    print({str(cache)!r} in str(error))
print(hardpoint.resolve().is_fallback)
"""
    lines = as_nobody(site, code, {"TMPDIR": str(tmp_path)})
    assert lines == ["second permission True", "True", "False"]


def test_b44_a_key_error_of_a_backends_own(site: Site) -> None:
    """B44: an unknown uid that a backend looks up itself is its bug, with its name on it."""
    site.platform("fake")
    site.backend("one", prepare="raise KeyError('getpwuid(): uid not found: 54321')")
    with pytest.raises(KeyError) as caught:
        hardpoint.current_platform().select_backend(config(), depth="ready")
    assert any("backend/one (fake-one 1.0)" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("declared", "quiet"),
    [("", True), ("kernel_modules=('fake_kernels._ext',)", False)],
)
def test_b40_only_who_declared_the_module_is_rejected(
    site: Site, caplog: pytest.LogCaptureFixture, declared: str, quiet: bool
) -> None:
    """B40: main module fine, secondary missing: the backends that declared it go, the others stay; INFO for absent."""
    body = """
def kernel_modules(self):
    return [KernelModule(name='fake_kernels._main', required=True), KernelModule(name='fake_kernels._ext')]
"""
    folder = site.folder / "fake_kernels"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "_main.py").write_text("")
    site.platform("fake", priorities=FIRST, body=body)
    site.backend("first", spec=declared)
    site.backend("second")
    platform = hardpoint.current_platform()
    with caplog.at_level(logging.INFO, "hardpoint"):
        report = platform.import_kernels()
        assert platform.import_kernels() is report
        selection = platform.select_backend(config())
    assert report.ok
    assert selection.backend == ("first" if quiet else "second")
    if not quiet:
        (first,) = [item for item in selection.candidates if item.name == "first"]
        assert "fake_kernels._ext" in first.reasons[0].message
    for name in [name for name in sys.modules if name.startswith("fake_kernels")]:
        del sys.modules[name]
