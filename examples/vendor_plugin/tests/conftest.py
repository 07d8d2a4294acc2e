"""The driver, compiled; a folder in which it is installed; the distribution on a temporary path; a fresh Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

import hardpoint
from tests.distributions import add

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parents[1]
ROOT = HERE.parents[1]
MEBIBYTE = 1 << 20

if find_spec("wherrow") is None:
    sys.path.insert(0, str(HERE / "src"))


class MakeRoot(Protocol):
    """See `make_root`."""

    def __call__(self, count: int = 1, *, kept: int | None = None, arch: str = "w1", memory: int = ...) -> Path: ...


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver's library, as the compiler makes it. Tests that want it are marked ``compiler``."""
    target = tmp_path_factory.mktemp("driver") / "libwherrow.so.1"
    command = ["cc", "-shared", "-fPIC", "-O2", "-pthread", "-o", str(target)]
    subprocess.run([*command, str(HERE / "driver" / "wherrow.c")], check=True)
    return target


@pytest.fixture(scope="session")
def make_root(library: Path, tmp_path_factory: pytest.TempPathFactory) -> MakeRoot:
    """Install the driver into a folder, with so many device nodes; `kept`: bytes that are left of the library."""

    def make(
        count: int = 1, *, kept: int | None = None, arch: str = "w1", memory: int = 64 * MEBIBYTE
    ) -> Path:  # fmt: skip
        root = tmp_path_factory.mktemp("root")
        for name in ("dev", "lib"):
            (root / name).mkdir()
        for number in range(count):
            text = f"name=Wherrow W1\narch={arch}\nuuid=WHR-{number}\nmemory_bytes={memory}\n"
            (root / "dev" / f"wherrow{number}").write_text(text)
        (root / "lib" / library.name).write_bytes(library.read_bytes()[:kept])
        return root

    return make


def install(folder: Path) -> Path:
    """Put the distribution into a folder, as an installation leaves it."""
    site = folder / "site"
    shutil.copytree(HERE / "src", site, ignore=shutil.ignore_patterns("__pycache__"))
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items())]
    name, version = project["name"], project["version"]
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    add(site, f"{name.replace('-', '_')}-{version}.dist-info", "\n".join(lines), metadata=metadata)
    return site


def run(site: Path, command: list[str], **variables: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a fresh Python in which the distribution is installed, beside what is installed here."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HARDPOINT_", "WHERROW_"))}
    changed = {name: str(value) for name, value in variables.items()}
    path = os.pathsep.join(map(str, (site, ROOT)))
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        encoding="utf-8",
        check=False,
        cwd=site.parent,
        env={**inherited, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **changed},
    )


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder that holds the distribution."""
    return install(tmp_path)


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("WHERROW_ROOT", "WHERROW_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    hardpoint.reset()
    yield
    hardpoint.reset()
