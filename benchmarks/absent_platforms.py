"""What a platform plugin costs a process on a machine without its hardware, beyond the CPU platform alone.

    python benchmarks/absent_platforms.py [--rounds 61]

Whole processes, each side in a virtual environment of its own: pluggy, the core and the CPU platform; the same with one
more platform plugin; the same with all. All are byte-compiled, and run interleaved. Each process takes the CPU time and
the wall time from before it imports hardpoint until it has its platform: what the interpreter's own start takes, twice
as much, would only add noise. What a plugin costs is the median, over the rounds, of the CPU time that its side took
more than the CPU alone in that very round: what slows the machine down for a while slows down both. On a machine with
the hardware the figures mean something else.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import os
import statistics
import sysconfig
import tempfile
import venv
from pathlib import Path

from cold_start import copy_package, distribution, run

BUDGET_MS = 2.0
PLATFORMS = ("cuda", "rocm", "neuron")
ALONE = "CPU alone"
RESOLVE = """
import time
cpu, wall = time.process_time(), time.perf_counter()
import hardpoint
name = hardpoint.current_platform().name
print(1000 * (time.process_time() - cpu), 1000 * (time.perf_counter() - wall))
"""
QUESTIONS = """
import hardpoint
from hardpoint import InMemoryMachine
machine = InMemoryMachine()
hardpoint.resolve(machine=machine)
print(sum(machine.questions.values()))
"""


def build(folder: Path, platforms: list[str]) -> Path:
    """A virtual environment with these platform plugins; the path of its interpreter."""
    venv.create(folder, symlinks=os.name == "posix", with_pip=False)
    paths = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})
    site = Path(paths["purelib"])
    for package in ("pluggy", "hardpoint"):
        copy_package(site, package)
        distribution(site, package, "1.0")
    for name in ("cpu", *platforms):
        copy_package(site, f"hardpoint_{name}")
        entry_point = f"[hardpoint.platforms]\n{name} = hardpoint_{name}.plugin:plugin\n"
        distribution(site, f"hardpoint-{name}", "0.1.0", entry_point)
    compileall.compile_dir(str(site), quiet=1)
    return Path(paths["scripts"], "python")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=61)
    options = parser.parse_args()
    there = [name for name in PLATFORMS if importlib.util.find_spec(f"hardpoint_{name}")]
    sides = {ALONE: [], **{f"and {name}": [name] for name in there}, "and all": there}
    with tempfile.TemporaryDirectory() as temporary:
        pythons = {side: build(Path(temporary, str(place)), sides[side]) for place, side in enumerate(sides)}
        taken: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
        for _ in range(options.rounds):
            for side, python in pythons.items():
                cpu, wall = map(float, run(python, RESOLVE)[2].split())
                taken[side].append((wall, cpu))
        questions = {side: int(run(python, QUESTIONS)[2]) for side, python in pythons.items()}
    least = {side: min(cpu for _, cpu in values) for side, values in taken.items()}
    median = {side: statistics.median(wall for wall, _ in values) for side, values in taken.items()}
    costs = {
        side: statistics.median(ours[1] - alone[1] for ours, alone in zip(values, taken[ALONE], strict=True))
        for side, values in taken.items()
    }
    print(f"{'':14}{'CPU ms':>8}{'wall ms':>9}{'more':>7}{'/ CPU alone':>13}   more questions to the machine")
    for side, names in sides.items():
        more = costs[side]
        verdict = "" if not names else "held" if more <= BUDGET_MS * len(names) else "MISSED"
        print(
            f"{side:14}{least[side]:8.1f}{median[side]:9.1f}{more:7.2f}{least[side] / least[ALONE]:13.3f}"
            f"   {questions[side] - questions[ALONE]} {verdict}"
        )
    print(f"budget: {BUDGET_MS:g} ms more for each plugin")


if __name__ == "__main__":
    main()
