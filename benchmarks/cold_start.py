"""A new process until it knows its platform, beside the bare interpreter, pluggy and torch.

    python benchmarks/cold_start.py [--rounds 15]

Whole processes in a virtual environment of their own: the core, the CPU platform, pluggy, three platform plugins that
find nothing, one backend, and 100 distributions that are no plugins, all byte-compiled. torch alone is taken from where
it is installed. The sides run interleaved: medians of the wall time, and minima of the CPU time, which a busy machine
disturbs less. Only the ratios travel, and what is counted.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import os
import resource
import shutil
import statistics
import subprocess
import sysconfig
import tempfile
import time
import venv
from pathlib import Path

OTHERS = 100
BUDGET_OF_PLUGGY = 2.0
AIM_OF_BARE = 4.0
WATCHED = (
    "torch",
    "numpy",
    "json",
    "packaging",
    "subprocess",
    "importlib_metadata",
    "importlib.metadata",
    "logging",
    "re",
    "typing",
    "dataclasses",
    "enum",
    "inspect",
)

ABSENT_PLUGIN = """
from hardpoint.hookspecs import Detection, PlatformSpec, Rank, hookimpl

class Plugin:
    @hookimpl
    def hardpoint_platform(self):
        return PlatformSpec(api=(1, 0), target="{name}.platform:NoPlatform", rank=Rank.VENDOR)

    @hookimpl
    def hardpoint_detect(self, machine):
        return Detection.absent("nothing of it here")

plugin = Plugin()
"""

RESOLVE = "import hardpoint\nplatform = hardpoint.current_platform()\n"
SELECT = f"""{RESOLVE}
config = hardpoint.AttentionConfig(head_size=64, num_heads=9, num_kv_heads=3, dtype="bfloat16", block_size=16)
platform.get_valid_backends(platform.get_device_capability(), config, depth="static")
"""
PROGRAMS = {
    "bare interpreter": "",
    "import pluggy": "import pluggy",
    "import hardpoint": "import hardpoint",
    "resolve the platform": RESOLVE,
    "resolve and select, static": SELECT,
}
COUNT = "import sys; print(len(sys.modules), *(name for name in {watched!r} if name in sys.modules))"


def distribution(site: Path, name: str, version: str, entry_points: str = "") -> None:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nText.\n")
    (info / "RECORD").write_text("")
    if entry_points:
        (info / "entry_points.txt").write_text(entry_points)


def copy_package(site: Path, package: str) -> None:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise SystemExit(f"{package} must be installed")
    source = Path(found.origin).parent
    shutil.copytree(source, site / package, ignore=shutil.ignore_patterns("__pycache__"))


def build(site: Path) -> None:
    for package in ("hardpoint", "hardpoint_cpu", "hardpoint_torch_sdpa", "pluggy"):
        copy_package(site, package)
    distribution(site, "hardpoint", "0.1.0")
    distribution(site, "pluggy", "1.7.0")
    distribution(site, "hardpoint-cpu", "0.1.0", "[hardpoint.platforms]\ncpu = hardpoint_cpu.plugin:plugin\n")
    distribution(
        site,
        "hardpoint-torch-sdpa",
        "0.1.0",
        "[hardpoint.backends]\ntorch_sdpa = hardpoint_torch_sdpa.plugin:plugin\n",
    )
    for number in range(3):
        name = f"absent_{number}"
        (site / name).mkdir()
        (site / name / "__init__.py").touch()
        (site / name / "plugin.py").write_text(ABSENT_PLUGIN.format(name=name))
        distribution(site, name, "1.0", f"[hardpoint.platforms]\n{name} = {name}.plugin:plugin\n")
    for number in range(OTHERS):
        scripts = f"[console_scripts]\ntool-{number} = package_{number}:main\n" if number % 2 else ""
        distribution(site, f"package-{number}", f"1.{number}", scripts)
    # Python would compile at the first run, unless PYTHONDONTWRITEBYTECODE is set.
    compileall.compile_dir(str(site), quiet=1)


def environment(path: Path | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HARDPOINT_", "PYTHON"))}
    return kept if path is None else {**kept, "PYTHONPATH": str(path)}


def run(python: Path, program: str, path: Path | None = None) -> tuple[float, float, str]:
    """Wall and CPU milliseconds of a new process, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    done = subprocess.run([python, "-c", program], check=True, env=environment(path), stdout=subprocess.PIPE, text=True)
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall * 1000, cpu * 1000, done.stdout


def measure(python: Path, rounds: int) -> dict[str, tuple[float, float]]:
    """Median wall and least CPU milliseconds of each side."""
    programs: dict[str, tuple[str, Path | None]] = {name: (program, None) for name, program in PROGRAMS.items()}
    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.origin is not None:
        programs["import torch"] = ("import torch", Path(torch.origin).parent.parent)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for number in range(rounds):
        for name, (program, path) in programs.items():
            # It takes as long as all the others together, many times over.
            if name != "import torch" or number < 3:
                wall, cpu, _ = run(python, program, path)
                taken[name].append((wall, cpu))
    return {
        name: (statistics.median(wall for wall, _ in values), min(cpu for _, cpu in values))
        for name, values in taken.items()
    }


def show_ratios(figures: dict[str, tuple[float, float]]) -> None:
    print(f"{'':30}{'wall ms':>10}{'CPU ms':>10}{'/ bare':>8}{'/ pluggy':>10}   (ratios of the CPU time)")
    bare, pluggy = figures["bare interpreter"][1], figures["import pluggy"][1]
    for name, (wall, cpu) in figures.items():
        print(f"{name:30}{wall:10.1f}{cpu:10.1f}{cpu / bare:8.2f}{cpu / pluggy:10.2f}")
    for kind, index in (("wall", 0), ("CPU", 1)):
        resolved = figures["resolve the platform"][index]
        of_pluggy, of_bare = resolved / figures["import pluggy"][index], resolved / figures["bare interpreter"][index]
        print(
            f"{kind}: resolve / import pluggy {of_pluggy:.2f} of {BUDGET_OF_PLUGGY:g}, "
            f"{'held' if of_pluggy <= BUDGET_OF_PLUGGY else 'MISSED'}; "
            f"resolve / bare {of_bare:.2f}, aim {AIM_OF_BARE:g}"
        )
        if "import torch" in figures:
            print(f"{kind}: import torch / resolve {figures['import torch'][index] / resolved:.1f}")


def show_counts(python: Path) -> None:
    for name, program in PROGRAMS.items():
        count, *found = run(python, program + "\n" + COUNT.format(watched=WATCHED))[2].split()
        print(f"{name}: {count} modules; of those watched: {', '.join(found) or 'none'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, symlinks=os.name == "posix", with_pip=False)
        paths = sysconfig.get_paths(vars={"base": folder, "platbase": folder})
        build(Path(paths["purelib"]))
        python = Path(paths["scripts"], "python")
        show_ratios(measure(python, options.rounds))
        show_counts(python)


if __name__ == "__main__":
    main()
