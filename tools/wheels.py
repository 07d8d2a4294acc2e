"""Build every distribution, install the wheels alone outside the checkout, and run the tests on what was installed.

Wheels are built from the source distributions, so a file that only the checkout has is missed here.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import environment
import layout


def build(folder: Path, out: Path) -> Path:
    """Build one distribution's source archive, and its wheel from that; returns the wheel."""
    environment.call([sys.executable, "-m", "build", "--no-isolation", "--outdir", out, folder])
    name = layout.project(folder)["project"]["name"].replace("-", "_")
    (wheel,) = out.glob(f"{name}-[0-9]*.whl")
    return wheel


def buildable(folder: Path) -> bool:
    """Whether a distribution needs no compiler, or there is one."""
    if layout.is_compiled(folder) and environment.compiler() is None:
        environment.say(f"{folder.name} is left out: no C++ compiler was found to build it with")
        return False
    return True


def faults(wheel: Path, folder: Path) -> list[str]:
    """What is wrong with a wheel's list of files."""
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    package = next((folder / "src").iterdir()).name
    sources = {
        file.relative_to(folder / "src").as_posix()
        for file in (folder / "src").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and file.suffix not in {".so", ".o"}
    }
    found = [f"{name} is missing" for name in sorted(sources - inside)]
    if f"{package}/py.typed" not in inside:
        found.append("py.typed is missing")
    if not any(name.endswith("/licenses/LICENSE") for name in inside):
        found.append("the licence is missing")
    found += [
        f"{name} does not belong there"
        for name in sorted(inside)
        if not name.startswith((f"{package}/", wheel.name.split("-")[0]))
    ]
    return [f"{wheel.name}: {fault}" for fault in found]


def copy_tests(outside: Path) -> None:
    """Copy the tests, the examples and pytest's configuration, and none of the sources."""
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in layout.folders(["all"]):
        inside = folder.relative_to(layout.ROOT)
        shutil.copytree(folder / "tests", outside / inside / "tests", ignore=ignored)
    if (layout.ROOT / "examples").is_dir():
        shutil.copytree(layout.ROOT / "examples", outside / "examples", ignore=ignored)
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(layout.ROOT / name, outside)


def main(options: list[str]) -> int:
    """Build, check, install and test."""
    with tempfile.TemporaryDirectory(prefix="wheels of hardpoint ") as temporary:
        outside = Path(temporary)
        folders = [folder for folder in layout.folders(["all"]) if buildable(folder)]
        wheels = {build(folder, outside / "dist"): folder for folder in folders}
        found = [fault for wheel, folder in wheels.items() for fault in faults(wheel, folder)]
        print(*found, sep="\n", flush=True)
        with environment.lock() as keep:
            python = environment.create(outside / "environment", keep)
            environment.install(python, [], ["torch", "engine", "weights", "test", "reference"], keep=keep)
            environment.pip(python, *wheels, keep=keep)
        checkout = outside / "checkout"
        checkout.mkdir()
        copy_tests(checkout)
        command = [str(python), "-m", "pytest", "-m", "not checkout and not long", *layout.PARALLEL, *options]
        code = subprocess.run(command, cwd=checkout, env=environment.clean_environ(), check=False).returncode
    return code or bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
