"""Nobody but the machine looks at the environment, the file tree, libraries or tools.

What reads them past the machine is in no snapshot, and cannot be simulated. Three kinds of modules may: those of the
machine layer itself, those whose functions `Machine.probe` runs, and the few that are listed here with their reason.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [ROOT / "src", *sorted(ROOT.glob("plugins/*/*/src"))]

MACHINE = {
    "hardpoint._machine_live": "it is the machine",
    "hardpoint._isolation": "starts the children that probes run in",
    "hardpoint._probe_child": "is such a child",
    "hardpoint._running": "runs tools",
    "hardpoint._private": "finds what must not get into a snapshot, and records nothing of it",
    "hardpoint._discovery": "reads the metadata of installed distributions, for the machine and for finding plugins",
    "hardpoint._discovery_foreign": "as _discovery",
    "hardpoint._discovery_installed": "as _discovery",
    "hardpoint._discovery_scan": "as _discovery",
    "hardpoint._trust": "judges the folders that _discovery found plugins in",
}
EXCEPTIONS = {
    "hardpoint._cache_directory": "makes a folder for others to write to, once the machine has said which",
    "hardpoint._kernel_import": "makes the paths of imported files absolute, for its messages",
    "hardpoint._log_node": "locks a file, so that the ranks of a node say a thing once; decides nothing",
    "hardpoint._profiles": "reads the profiles that plugins bring: data of a distribution, not facts of a machine",
    "hardpoint._redaction": "draws a random number",
    "hardpoint._shared_object": "looks whether a library was cut off, right before it is loaded on the live machine",
    "hardpoint._snapshot": "reads the file that the user names",
    "hardpoint._writing": "writes the file that the user names",
}

COMMAND_LINE = "hardpoint.cli."
"""It stands above the machine: its terminal, its arguments' files and its child processes are its own business."""

# What of `os` and `os.path` only computes.
_PURE = frozenset(
    (
        *("PathLike", "altsep", "curdir", "devnull", "extsep", "fsdecode", "fsencode", "fspath", "linesep", "name"),
        *("pardir", "path", "pathsep", "register_at_fork", "sep", "strerror"),
        *(f"path.{name}" for name in ("basename", "commonpath", "dirname", "isabs", "join", "normcase", "normpath")),
        *(f"path.{name}" for name in ("split", "splitdrive", "splitext")),
    )
)
_MODULES = {
    "ctypes.util": "finds libraries",
    "glob": "lists folders",
    "importlib_metadata": "reads metadata",
    "importlib.metadata": "reads metadata",
    "mmap": "reads files",
    "multiprocessing": "starts processes",
    "pathlib": "reads files",
    "platform": "asks the system",
    "pty": "starts programs",
    "pwd": "asks the system",
    "resource": "asks the system",
    "shutil": "reads files and looks for tools",
    "socket": "asks the network",
    "subprocess": "runs tools",
    "tempfile": "reads the environment, writes files",
    "urllib.request": "asks the network",
}
_HARMLESS = frozenset(f"subprocess.{name}" for name in ("CalledProcessError", "SubprocessError", "TimeoutExpired"))
"""Errors that somebody else's call raises."""
_LOADERS = frozenset(("CDLL", "PyDLL", "WinDLL", "OleDLL", "LibraryLoader", "cdll", "pydll", "windll", "oledll"))


def looks(source: str) -> set[str]:
    """What a module's source looks at past the machine, such as ``os.environ``, ``open``, ``subprocess``."""
    return set(_looks(ast.parse(source)))


def _looks(tree: ast.Module) -> Iterator[str]:
    aliases: dict[str, str] = {}
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for branch in node.body
        for inner in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            for item in node.names:
                first = item.name.partition(".")[0]
                aliases[item.asname or first] = item.name if item.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for item in node.names:
                whole = f"{node.module}.{item.name}"
                aliases[item.asname or item.name] = whole
                if _is_look(whole):
                    yield whole
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            dotted = _dotted(node, aliases)
            if dotted is not None and _is_look(dotted):
                yield dotted
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and _is_look_of_a_builtin(node):
            yield node.func.id


def _dotted(node: ast.expr, aliases: dict[str, str]) -> str | None:
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, aliases)
        return None if owner is None else f"{owner}.{node.attr}"
    return aliases.get(node.id) if isinstance(node, ast.Name) else None


def _is_look(whole: str) -> bool:
    owner, _, name = whole.rpartition(".")
    whole = whole.replace("posixpath.", "os.path.", 1) if owner == "posixpath" else whole
    if whole.startswith("os."):
        member = whole.removeprefix("os.")
        # What hangs on something that only computes computes too: os.path.join.__doc__.
        return not any(member == pure or (pure != "path" and member.startswith(f"{pure}.")) for pure in _PURE)
    if whole in _HARMLESS:
        return False
    return (
        any(f"{whole}.".startswith(f"{module}.") for module in _MODULES)
        or whole == "io.open"
        or (owner.endswith("ctypes") and name in _LOADERS)
        or whole == "sys.stdin"
    )


def _is_look_of_a_builtin(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    looked = {*_MODULES, "os", "ctypes"}
    return name == "open" or (
        name == "__import__" and any(isinstance(item, ast.Constant) and item.value in looked for item in call.args)
    )


def modules() -> dict[str, Path]:
    """Every module of every distribution here, by name."""
    return {
        ".".join(file.relative_to(folder).with_suffix("").parts): file
        for folder in SOURCES
        for file in sorted(folder.rglob("*.py"))
    }


def probed(trees: dict[str, ast.Module]) -> set[str]:
    """The modules whose functions are given to `Machine.probe`, by a text or a constant, and what only they import."""
    constants = {
        target.id: node.value.value
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    found = set()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "probe":
                for item in node.args[1:2]:
                    values = [part for part in ast.walk(item) if isinstance(part, ast.Constant)]
                    texts = [str(part.value) for part in values]
                    if isinstance(item, ast.Name):
                        texts.append(constants.get(item.id, ""))
                    found |= {text.partition(":")[0] for text in texts if ":" in text}
    imports = {name: _imported(tree) for name, tree in trees.items()}
    while True:
        more = {
            name
            for name in trees.keys() - found
            if (importers := {other for other, names in imports.items() if name in names and other != name})
            and importers <= found
        }
        if not more:
            return found
        found |= more


def _imported(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {item.name for item in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{item.name}" for item in node.names)}
    return found


def test_only_the_machine_looks() -> None:
    """Every module that looks past the machine is of its layer, is run by a probe, or has its reason here."""
    trees = {name: ast.parse(file.read_text(encoding="utf-8")) for name, file in modules().items()}
    allowed = {*MACHINE, *EXCEPTIONS, *probed(trees)}
    found = {name: sorted(set(_looks(tree))) for name, tree in trees.items() if not name.startswith(COMMAND_LINE)}
    assert {name: what for name, what in found.items() if what and name not in allowed} == {}


def test_no_exception_is_stale() -> None:
    """Whoever is listed is there and still looks."""
    files = modules()
    listed = {*MACHINE, *EXCEPTIONS}
    assert listed - files.keys() == set()
    assert [name for name in sorted(listed) if not looks(files[name].read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import os\nos.environ['X']", "os.environ"),
        ("import os\nos.getenv('X')", "os.getenv"),
        ("import os as system\nsystem.environ.get('X')", "os.environ"),
        ("from os import environ", "os.environ"),
        ("from os import getenv as ask", "os.getenv"),
        ("import os.path\nos.path.exists('/dev/x')", "os.path.exists"),
        ("from os.path import isfile", "os.path.isfile"),
        ("from os import path\npath.isdir('/')", "os.path.isdir"),
        ("import posixpath\nposixpath.exists('/')", "posixpath.exists"),
        ("import os\ndef f():\n    return os.listdir('/dev')", "os.listdir"),
        ("open('/proc/cpuinfo')", "open"),
        ("import io\nio.open('/proc/cpuinfo')", "io.open"),
        ("def f():\n    from pathlib import Path\n    return Path('/dev').exists()", "pathlib.Path"),
        ("import ctypes\nctypes.CDLL('libcuda.so.1')", "ctypes.CDLL"),
        ("from ctypes import cdll", "ctypes.cdll"),
        ("import ctypes.util\nctypes.util.find_library('cuda')", "ctypes.util.find_library"),
        ("from ctypes.util import find_library", "ctypes.util.find_library"),
        ("import subprocess\nsubprocess.run(['nvidia-smi'])", "subprocess.run"),
        ("from subprocess import run", "subprocess.run"),
        ("import os\nos.system('nvidia-smi')", "os.system"),
        ("import shutil\nshutil.which('rocm-smi')", "shutil.which"),
        ("import platform\nplatform.machine()", "platform.machine"),
        ("import importlib.metadata\nimportlib.metadata.version('x')", "importlib.metadata.version"),
        ("from importlib import metadata", "importlib.metadata"),
        ("import os\nos.sched_getaffinity(0)", "os.sched_getaffinity"),
        ("__import__('subprocess').run(['x'])", "__import__"),
    ],
)
def test_rule_can_fail(source: str, what: str) -> None:
    """Each way to look past the machine is found, whatever it is called there."""
    assert what in looks(source)


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.path.join('a', os.fspath('b'))",
        "import posixpath\nposixpath.normpath('/a/..')",
        "machine.open = 3\nmachine.exists('/dev/x')",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pathlib import Path",
        "import ctypes\nctypes.c_int(3)",
        "import subprocess\nisinstance(error, subprocess.CalledProcessError)",
        "from hardpoint import platform\nplatform('cpu')",
        "def open_it(open):\n    return open.value",
    ],
)
def test_rule_lets_the_rest_be(source: str) -> None:
    """What only computes, or asks the machine, is no look."""
    assert looks(source) == set()


def test_targets_of_probes_are_found() -> None:
    """A module is known as a probe's by the text in the call, or by the constant that holds it."""
    source = (
        "TARGET: Final = 'a.b:c'\nmachine.probe('k', TARGET)\nmachine.probe('k', f'd.e:{name}')\nother('k', 'x.y:z')"
    )
    assert probed({"m": ast.parse(source)}) == {"a.b", "d.e"}
