"""Real breakage: each module damaged on disk, in a fresh process; the next narrower one works and nothing is left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import hardpoint
from tests.processes import open_to_all, others_may_read

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the modules here are those of x86-64"),
]

SUFFIX = EXTENSION_SUFFIXES[0]
ORDER = ("_amx", "_avx512_bf16", "_avx512", "_avx2")

# Imports the kernels on a machine whose features are those that the module `first` needs and no more.
IMPORT = """
import json, logging, os, sys
from hardpoint import Device, DeviceCapability, LiveMachine
from hardpoint_cpu.platform import CpuPlatform
from hardpoint_cpu._kernel_modules import BUILDS
first, user = sys.argv[1], int(sys.argv[2])
if user:  # who may not be allowed to read the standard library
    import ctypes, errno, importlib._abc, importlib.util, struct, traceback
    import hardpoint._kernels, hardpoint._kernel_import, hardpoint._shared_object, hardpoint_cpu._amx
    os.setuid(user)
class Kept(logging.Handler):
    texts = []
    def emit(self, record):
        if record.levelno >= logging.WARNING:
            self.texts.append(record.getMessage())
logging.getLogger("hardpoint").addHandler(Kept())
features = next(frozenset(build.features) for build in BUILDS if build.name.endswith("." + first))
capability = DeviceCapability(runtime="cpu", arch="x86-64-v4", features=features)
device = Device(index=0, name="CPU", capability=capability, properties={"family": "x86_64"})
opened = len(os.listdir("/proc/self/fd"))
platform = CpuPlatform(LiveMachine(), [device])
report = platform.import_kernels()
opened = len(os.listdir("/proc/self/fd")) - opened
with open("/proc/self/maps") as maps:
    text = maps.read()
records = {item.name.rpartition(".")[2]: item for item in report.modules}
taken = [name for name, item in records.items() if item.outcome == "imported"]
print(json.dumps({
    "outcomes": {name: str(item.outcome) for name, item in records.items()},
    "reasons": {name: str(item.reason) for name, item in records.items()},
    "warnings": Kept.texts,
    "opened": opened,
    "mapped": [name for name in records if f"/{name}.cpython" in text],
    "loaded": [name for name in records if f"hardpoint_cpu_native.{name}" in sys.modules],
    "works": [platform.get_operator("cpu_native", "attention").__module__ for _ in taken],
}))
"""


def machine_features() -> set[str]:
    """The flags of this machine's first CPU."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()


def runnable() -> list[str]:
    """The modules whose instructions this machine has, widest first."""
    from hardpoint_cpu._kernel_modules import BUILDS

    here = machine_features()
    return [
        name
        for name in ORDER
        if any(build.name.endswith(f".{name}") and here.issuperset(build.features) for build in BUILDS)
    ]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a copy of the installed package."""
    spec = find_spec("hardpoint_cpu_native")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(spec.submodule_search_locations[0], tmp_path / "site" / "hardpoint_cpu_native", ignore=ignored)
    return tmp_path / "site"


def run_python(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A fresh process that finds the copy first."""
    search = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": search, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)


def run(site: Path, first: str, user: int = 0) -> Any:
    """What importing the kernels comes to, in a fresh process, with `first` as the widest module it may take."""
    done = run_python(site, "-c", IMPORT, first, str(user))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def stub(file: Path, source: str) -> None:
    """A compiled module in that file's place."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))))
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(file)]
    subprocess.run(command, input=source, text=True, check=True)


def break_it(file: Path, how: str) -> str:
    """Damage a module; gives what the reason has to say."""
    if how == "empty":
        file.write_bytes(b"")
        return "file too short"
    if how == "cut off after its header":
        file.write_bytes(file.read_bytes()[:4])
        return "file too short"
    if how == "half copied":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        return str(file)
    if how == "another machine's":
        data = bytearray(file.read_bytes())
        data[18:20] = (0xF3).to_bytes(2, "little")  # e_machine: RISC-V
        file.write_bytes(data)
        return str(file)
    if how == "a symbol of another Python's":
        name = file.name.partition(".")[0]
        stub(file, f"void *_PyOnlyElsewhere(void);\nvoid *PyInit_{name}(void) {{ return _PyOnlyElsewhere(); }}\n")
        return "undefined symbol: _PyOnlyElsewhere"
    stub(file, "int nothing;\n")
    return "PyInit_"


@pytest.mark.compiler
@pytest.mark.parametrize(
    "how",
    [
        "empty",
        "cut off after its header",
        "half copied",
        "another machine's",
        "a symbol of another Python's",
        "no module at all",
    ],
)
@pytest.mark.parametrize("name", ORDER[:-1])
def test_a_broken_module_is_recorded_and_the_next_one_taken(site: Path, name: str, how: str) -> None:
    """One warning names the file's fault and what is used instead; no descriptor and no mapping of it stays."""
    if name not in runnable():
        pytest.skip(f"this machine has no {name}")
    expected = break_it(site / "hardpoint_cpu_native" / f"{name}{SUFFIX}", how)
    found = run(site, name)
    following = ORDER[ORDER.index(name) + 1]
    assert found["outcomes"][name] == "broken"
    assert found["outcomes"][following] == "imported"
    assert found["works"] == [f"hardpoint_cpu_native.{following}"]
    assert expected in found["reasons"][name]
    assert len(found["warnings"]) == 1
    assert f"using hardpoint_cpu_native.{following} instead" in found["warnings"][0]
    assert found["opened"] == 0
    assert found["loaded"] == [following]
    # What the loader has opened, it keeps, though Python finds no module in it.
    assert found["mapped"] == ([name, following] if how == "no module at all" else [following])


@pytest.mark.parametrize("name", ORDER)
def test_modules_of_another_python_are_absent(site: Path, name: str) -> None:
    """A tag of another Python in the file's name: this one does not see the module, quietly."""
    for file in (site / "hardpoint_cpu_native").glob(f"*{SUFFIX}"):
        file.rename(file.with_name(file.name.replace("cpython-3", "cpython-2")))
    found = run(site, name)
    assert found["outcomes"][name] == "absent"
    assert found["warnings"] == []
    assert found["mapped"] == []


@pytest.mark.parametrize("name", ORDER)
def test_a_module_for_instructions_that_are_not_there_is_never_loaded(site: Path, name: str) -> None:
    """The wider ones are listed with what they need, and their files are not even opened."""
    if name not in runnable():
        pytest.skip(f"this machine has no {name}")
    wider = ORDER[: ORDER.index(name)]
    for each in wider:
        break_it(site / "hardpoint_cpu_native" / f"{each}{SUFFIX}", "empty")
    found = run(site, name)
    assert found["mapped"] == [name]
    assert found["warnings"] == []
    assert {found["outcomes"][each] for each in wider} <= {"not_run"}
    assert all(" needs " in found["reasons"][each] for each in wider)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_takes_what_it_can_read(site: Path) -> None:
    """In a tree that it may not write, a module that it may not read is a permission, and the next one is taken."""
    if not others_may_read(hardpoint.__file__):
        pytest.skip("another user cannot read this installation")
    first, second = runnable()[:2]
    open_to_all(site)
    for path in (site, *site.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    found = run(site, first, user=65534)
    assert found["outcomes"][first] == "imported"
    (site / "hardpoint_cpu_native" / f"{first}{SUFFIX}").chmod(0)
    found = run(site, first, user=65534)
    assert found["outcomes"][first] == "broken"
    assert "Permission denied" in found["reasons"][first]
    assert found["outcomes"][second] == "imported"


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("how", "remedy"),
    [
        ("half copied", "-> install again what it came with"),
        ("a symbol of another Python's", "-> it was built for another Python"),
        ("for another Python", "-> pip install --force-reinstall --no-deps hardpoint-cpu-native"),
    ],
)
def test_the_doctors_first_lines_name_the_broken_module(site: Path, how: str, remedy: str) -> None:
    """And its file, and what to do; what is used in its place stands below."""
    pytest.importorskip("click")
    pytest.importorskip("rich")
    first, *others = runnable()
    file = site / "hardpoint_cpu_native" / f"{first}{SUFFIX}"
    if how == "for another Python":
        file = file.rename(file.with_name(file.name.replace("cpython-3", "cpython-2")))
    else:
        break_it(file, how)
    done = run_python(site, "-c", "from hardpoint.cli import main; main()", "doctor")
    assert done.returncode == 0, done.stderr
    # The layout breaks lines anywhere.
    shown, _, below = "".join(done.stdout.split()).partition("Hardpoint0.")
    state = "absent" if how == "for another Python" else "broken"
    assert shown.startswith(f"WARNINGkernelmodulehardpoint_cpu_native.{first}is{state}:")
    assert str(file) in shown
    assert "".join(remedy.split()) in shown
    assert [name for name in others if f"hardpoint_cpu_native.{name}imported" in below] == others[:1]
