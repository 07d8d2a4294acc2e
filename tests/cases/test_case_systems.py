"""Other systems: the core and the CPU platform where what only POSIX has is not there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PRELUDE = """
import sys, os, threading, logging, tempfile, subprocess, importlib.util

GONE = {"fcntl", "pwd", "grp", "resource", "termios", "pty", "tty", "syslog", "spwd", "torch", "numpy"}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in GONE:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

for name in GONE & set(sys.modules):
    del sys.modules[name]
sys.meta_path.insert(0, Refuse())
for name in (
    "fork", "getuid", "geteuid", "getgid", "getegid", "sched_getaffinity", "sched_setaffinity", "register_at_fork",
    "uname", "sysconf", "getpgid", "setsid", "killpg", "O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_NOFOLLOW", "WNOHANG",
    "getloadavg", "environb", "fsencodeb", "getlogin", "mkfifo", "chown", "posix_spawn", "getppid",
):
    if hasattr(os, name):
        delattr(os, name)
"""
PROGRAM = """
import hardpoint
for name in hardpoint.__all__:
    getattr(hardpoint, name)
found = hardpoint.resolve({platform!r})
print(found.platform.name, found.platform.device_count())
print(found.platform.import_kernels().ok)
config = hardpoint.AttentionConfig(head_size=64, num_heads=4, dtype="float32", block_size=16)
try:
    print(found.platform.select_backend(config, depth="static").backend)
except hardpoint.errors.NoBackendError as error:
    print("none")
hardpoint.report().text() if hasattr(hardpoint.report(), "text") else hardpoint.report()
str(hardpoint.fingerprint())
hardpoint.log_once(logging.getLogger("x"), logging.WARNING, "once")
from hardpoint._cache_directory import cache_directory
print(bool(cache_directory(hardpoint.LiveMachine())))
hardpoint.reset()
"""


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program afresh, that sees this environment's distributions."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables},
    )  # fmt: skip


@pytest.mark.plugins
def test_without_posix(tmp_path: os.PathLike[str]) -> None:
    """No fork, user id, affinity, uname or fcntl: everything imports, and the CPU platform resolves."""
    done = run(PRELUDE + PROGRAM.format(platform="cpu"), TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "cpu 1"
    assert lines[1] == "True"
    assert lines[-1] == "True"


def test_every_module_of_the_core_imports_without_posix() -> None:
    """Module by module, so that none hides behind another's failure."""
    code = (
        PRELUDE
        + """
import pkgutil, hardpoint
failed = []
for module in pkgutil.walk_packages(hardpoint.__path__, "hardpoint."):
    try:
        __import__(module.name)
    except Exception as error:
        failed.append((module.name, repr(error)))
print(failed)
"""
    )
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_importing_as_another_system(system: str) -> None:
    """What is decided when a module is imported does not fail where `sys.platform` says something else."""
    code = (
        f"import sys, os, threading, logging, subprocess, tempfile, json, typing, dataclasses, inspect, traceback\n"
        # What the command line needs decides by itself where it is.
        f"import pluggy, importlib.metadata, click, click.shell_completion, rich.console, rich.table, rich.padding\n"
        f"sys.platform = {system!r}\n"
        "import pkgutil, hardpoint\n"
        "for module in pkgutil.walk_packages(hardpoint.__path__, 'hardpoint.'):\n"
        "    __import__(module.name)\n"
        "print('done')"
    )
    done = run(code)
    assert done.stdout.strip() == "done", done.stderr
