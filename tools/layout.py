"""What the repository consists of, read from the files that say so."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
CONSTRAINTS = ROOT / "constraints.txt"
# pytest's options for many tests. They mostly wait for processes of their own: few workers are enough, and each costs.
PARALLEL = ("-n", "auto", "--maxprocesses", "8", "--dist", "worksteal")


def plugin_folders() -> dict[str, Path]:
    """The folder of each plugin, by its name, which is also the name of its tox environment."""
    return {file.parent.name: file.parent for file in sorted(ROOT.glob("plugins/*/*/pyproject.toml"))}


def folders(names: list[str]) -> list[Path]:
    """The distributions' folders: `core`, a plugin's name, or `all`."""
    known = {"core": ROOT, **plugin_folders()}
    wanted = list(known) if "all" in names else names
    for name in wanted:
        if name not in known:
            raise SystemExit(f"there is no distribution {name!r} here; there are: all, {', '.join(known)}")
    return [known[name] for name in wanted]


@cache
def project(folder: Path) -> dict[str, Any]:
    """The whole `pyproject.toml` of one distribution."""
    with (folder / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


def dependencies(folder: Path) -> list[str]:
    """The run-time requirements that a distribution declares."""
    declared: list[str] = project(folder)["project"].get("dependencies", [])
    return declared


def with_needed(chosen: Sequence[Path]) -> list[Path]:
    """These distributions, and before them the others of this repository that they declare."""
    ours = {requirement_name(project(folder)["project"]["name"]): folder for folder in plugin_folders().values()}
    declared = (requirement_name(item) for folder in chosen for item in dependencies(folder))
    return list(dict.fromkeys([*(ours[name] for name in declared if name in ours), *chosen]))


def needs_torch(folder: Path) -> bool:
    """Whether a distribution declares torch."""
    return "torch" in map(requirement_name, dependencies(folder))


def is_compiled(folder: Path) -> bool:
    """Whether a distribution's build needs a compiler: those of one that hatchling builds do not."""
    return not str(project(folder)["build-system"]["build-backend"]).startswith("hatchling")


def sources(folder: Path) -> list[Path]:
    """The files that a compiled distribution is built from."""
    found = sorted(file for part in ("src", "native") for file in (folder / part).rglob("*") if file.is_file())
    kept = [file for file in found if "__pycache__" not in file.parts and file.suffix not in {".so", ".pyc"}]
    return [*kept, *sorted(file for file in folder.iterdir() if file.is_file())]


def group(name: str, folder: Path = ROOT) -> list[str]:
    """The requirements of a dependency group: the root's, or what one distribution needs beside it."""
    groups: dict[str, list[str]] = project(folder).get("dependency-groups", {})
    return groups[name] if folder == ROOT else groups.get(name, [])


def requirement_name(requirement: str) -> str:
    """The normalised name of the distribution that a requirement asks for."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    if found is None:
        raise ValueError(f"not a requirement: {requirement!r}")
    return re.sub(r"[-_.]+", "-", found.group()).lower()


def pinned(name: str) -> str:
    """The version that `constraints.txt` gives a distribution."""
    for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines():
        pin, _, version = line.partition("==")
        if pin.strip() == name:
            return version.strip()
    raise SystemExit(f"{CONSTRAINTS.name} does not pin {name}")


def lower_bounds(folder: Path) -> list[str]:
    """Each declared requirement that has a floor, pinned to it. Torch is left out: old ones have no wheel here."""
    pins = []
    for requirement in dependencies(folder):
        floor = re.search(r">=\s*([0-9][0-9a-z.]*)", requirement)
        name = requirement_name(requirement)
        if floor is not None and name != "torch" and not name.startswith("hardpoint"):
            pins.append(f"{name}=={floor.group(1)}")
    return pins
