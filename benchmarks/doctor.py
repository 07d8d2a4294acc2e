"""The command line beside a bare interpreter: `hardpoint --help`, and `hardpoint doctor` with isolated probes.

``python benchmarks/doctor.py [--rounds 7]``

Budgets: `--help` within 5 times a bare interpreter, round by round; `doctor` with the in-tree plugins that are
installed in a new environment without torch within 1.5 seconds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from importlib.util import find_spec
from pathlib import Path

HELP_BUDGET = 5.0
DOCTOR_BUDGET_SECONDS = 1.5
ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("pluggy", "packaging", "importlib_metadata", "zipp", "click", "rich", "pygments", "markdown_it", "mdurl")


def build(site: Path) -> list[str]:
    """Put the core, its dependencies and every plugin of this repository there; torch stays out. The plugins."""
    for name in NEEDED:
        found = find_spec(name)
        if found is None or found.origin is None:
            raise SystemExit(f"{name} must be installed")
        copy(Path(found.origin).parent, site / name)
    copy(ROOT / "src" / "hardpoint", site / "hardpoint")
    distribution(site, "hardpoint", "")
    plugins = []
    for project in sorted(ROOT.glob("plugins/*/*/pyproject.toml")):
        import tomllib

        described = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        for source in (project.parent / "src").iterdir():
            copy(source, site / source.name)
        groups = described.get("entry-points", {})
        text = "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
            for group, points in groups.items()
        )
        distribution(site, described["name"], text)
        plugins.append(described["name"])
    return plugins


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)


def distribution(site: Path, name: str, entry_points: str) -> None:
    info = site / f"{name.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n\n", encoding="utf-8")
    if entry_points:
        (info / "entry_points.txt").write_text(entry_points, encoding="utf-8")


def seconds(python: Path, *arguments: str) -> float:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HARDPOINT_", "PYTHON"))}
    started = time.perf_counter()
    done = subprocess.run([python, *arguments], env=kept, capture_output=True, check=False)
    taken = time.perf_counter() - started
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr.decode())
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, symlinks=os.name == "posix", with_pip=False)
        paths = sysconfig.get_paths(vars={"base": folder, "platbase": folder})
        plugins = build(Path(paths["purelib"]))
        python = Path(paths["scripts"], Path(sys.executable).name)
        help_code = "from hardpoint.cli._commands import run; run(['--help'])"
        sides = {
            "bare interpreter": ("-c", "pass"),
            "hardpoint --help": ("-c", help_code),
            "hardpoint doctor": ("-m", "hardpoint.cli", "doctor"),
        }
        # Once before, so that everything is compiled.
        for arguments in sides.values():
            seconds(python, *arguments)
        rounds = [
            {name: seconds(python, *arguments) for name, arguments in sides.items()} for _ in range(options.rounds)
        ]
    print(f"plugins: {', '.join(plugins)}; no torch")
    for name in sides:
        print(f"{name:20}{statistics.median(item[name] for item in rounds) * 1000:9.0f} ms")
    ratio = statistics.median(item["hardpoint --help"] / item["bare interpreter"] for item in rounds)
    print(f"--help / bare {ratio:.2f} of {HELP_BUDGET:g}: {'held' if ratio <= HELP_BUDGET else 'MISSED'}")
    taken = statistics.median(item["hardpoint doctor"] for item in rounds)
    held = "held" if taken <= DOCTOR_BUDGET_SECONDS else "MISSED"
    print(f"doctor {taken:.2f} s of {DOCTOR_BUDGET_SECONDS:g} s: {held}")


if __name__ == "__main__":
    main()
