"""Discovery beside a minimal raw scan and the public loaders, as the environment grows.

``python benchmarks/discovery.py [--plugins 20] [--rounds 15] [--sizes 10 100 500 1000 2000]``

The minimal scan is the floor: it lists the folder and reads the ``entry_points.txt`` that contain the group, and knows
nothing of copies, names, versions, faults or trust. Budget: `discover` within 1.3 times of it, in process and as a
whole process. All sides run interleaved on the same files; the figures are medians, and only the ratios travel.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GROUP = "hardpoint.backends"
BUDGET = 1.3

# Told apart as text, so that it runs alone in a process too.
MINIMAL = """
import os

def minimal(path, group):
    found = []
    mark = group.encode()
    for folder in path:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            if not name.endswith((".dist-info", ".egg-info")):
                continue
            try:
                file = os.open(f"{folder}/{name}/entry_points.txt", os.O_RDONLY)
            except OSError:
                continue
            data = os.read(file, 65536)
            os.close(file)
            if mark not in data:
                continue
            section = None
            for line in data.decode().splitlines():
                line = line.strip()
                if line.startswith("["):
                    section = line[1:-1]
                elif section == group and "=" in line:
                    key, _, value = line.partition("=")
                    found.append((key.strip(), value.strip()))
    return found
"""


def build(root: Path, others: int, plugins: int) -> Path:
    """Lay out a site-packages: every second one of the others has console scripts, as in a real environment."""
    site = root / f"site-{others}"
    for index in range(others + plugins):
        name = f"package_{index}"
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").touch()
        info = site / f"{name}-1.{index}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: package-{index}\nVersion: 1.{index}\n\nText.\n")
        (info / "RECORD").write_text(f"{name}/__init__.py,,\n")
        (info / "WHEEL").write_text("Wheel-Version: 1.0\n")
        if index >= others:
            (info / "entry_points.txt").write_text(f"[{GROUP}]\nplugin-{index} = {name}:plugin\n")
        elif index % 2:
            (info / "entry_points.txt").write_text(
                f"[console_scripts]\ntool-{index} = {name}.__main__:main\nother-{index} = {name}.other:main\n"
            )
    return site


def measure(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds per side and round, the sides interleaved."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            start = time.perf_counter()
            side()
            taken[name].append((time.perf_counter() - start) * 1000)
    return taken


def in_process(site: Path, plugins: int, rounds: int) -> dict[str, list[float]]:
    import importlib.metadata as stdlib

    import importlib_metadata
    import pluggy

    from hardpoint._discovery import discover

    namespace: dict[str, Callable[[list[str], str], list[object]]] = {}
    exec(MINIMAL, namespace)  # the text above, which the other half runs with -c
    path = [str(site)]

    def fresh(finder: stdlib.MetadataPathFinder | importlib_metadata.MetadataPathFinder) -> None:
        # On an instance: in 3.11 it is no class method.
        finder.invalidate_caches()

    def with_stdlib() -> int:
        fresh(stdlib.MetadataPathFinder())
        unique = {dist.name: dist for dist in stdlib.distributions(path=path)}
        return len([point for dist in unique.values() for point in dist.entry_points if point.group == GROUP])

    def with_backport() -> int:
        fresh(importlib_metadata.MetadataPathFinder())
        return len(importlib_metadata.entry_points(group=GROUP))

    def with_pluggy() -> int:
        fresh(importlib_metadata.MetadataPathFinder())
        return pluggy.PluginManager("benchmark").load_setuptools_entrypoints("no.such.group")

    assert len(namespace["minimal"](path, GROUP)) == plugins  # both sides must do the work
    assert len(discover(path).entries) == plugins
    before = sys.path[:]
    sys.path[:] = path
    try:
        return measure(
            {
                "minimal scan": lambda: namespace["minimal"](path, GROUP),
                "hardpoint": lambda: discover(path),
                "importlib.metadata": with_stdlib,
                "importlib_metadata": with_backport,
                "pluggy's loader": with_pluggy,
            },
            rounds,
        )
    finally:
        sys.path[:] = before


def whole_process(site: Path, rounds: int) -> dict[str, list[float]]:
    source = str(Path(__file__).resolve().parent.parent / "src")
    environment = {**os.environ, "PYTHONPATH": source}
    # What the core has imported anyway by the time it discovers is on both sides.
    core = "import dataclasses, enum, re, typing, hardpoint._reasons, hardpoint.errors\n"
    programs = {
        "bare": "pass",
        "core alone": core,
        "minimal scan": f"{core}{MINIMAL}\nminimal([{str(site)!r}], {GROUP!r})",
        "hardpoint": f"{core}from hardpoint._discovery import discover\ndiscover([{str(site)!r}])",
        "importlib.metadata": f"{core}import importlib.metadata as m, sys\nsys.path.append({str(site)!r})\n"
        f"m.entry_points(group={GROUP!r})",
        "importlib_metadata": f"{core}import importlib_metadata as m, sys\nsys.path.append({str(site)!r})\n"
        f"m.entry_points(group={GROUP!r})",
        "pluggy's loader": f"{core}import pluggy, sys\nsys.path.append({str(site)!r})\n"
        "pluggy.PluginManager('x').load_setuptools_entrypoints('no.such.group')",
    }

    def run(program: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", program], check=True, env=environment)

    return measure({name: run(program) for name, program in programs.items()}, rounds)


def show(title: str, sizes: Sequence[int], results: Sequence[dict[str, list[float]]]) -> None:
    print(f"\n{title}, ms by number of other distributions")
    print(f"{'':22}" + "".join(f"{size:>9}" for size in sizes))
    for name in results[0]:
        print(f"{name:22}" + "".join(f"{statistics.median(result[name]):9.2f}" for result in results))
    # Round by round, for a shared machine drifts from one to the next.
    ratios = [
        statistics.median(ours / floor for ours, floor in zip(result["hardpoint"], result["minimal scan"], strict=True))
        for result in results
    ]
    print(f"{'hardpoint / minimal':22}" + "".join(f"{ratio:9.2f}" for ratio in ratios))
    print(f"budget of {BUDGET} at {sizes[-1]}: {'held' if ratios[-1] <= BUDGET else 'MISSED'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plugins", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 500, 1000, 2000])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sites = [build(Path(folder), size, options.plugins) for size in options.sizes]
        show("in process", options.sizes, [in_process(site, options.plugins, options.rounds) for site in sites])
        show("whole process", options.sizes, [whole_process(site, options.rounds) for site in sites])


if __name__ == "__main__":
    main()
