"""Run the tests of distributions by name: `core`, a plugin's name, or `all` (with the examples' and the tools')."""

from __future__ import annotations

import subprocess
import sys

import layout


def paths(names: list[str]) -> list[str]:
    """The test folders of the distributions named."""
    found = [folder / "tests" for folder in layout.folders(names)]
    if "all" in names:
        found += [layout.ROOT / "examples", layout.ROOT / "tools"]
    return [str(path.relative_to(layout.ROOT)) for path in found if path.is_dir()]


def main(arguments: list[str]) -> int:
    """Run pytest on the folders of the leading names, with the options that follow them; many tests in parallel."""
    options = next((place for place, text in enumerate(arguments) if text.startswith("-")), len(arguments))
    names = arguments[:options]
    parallel = layout.PARALLEL if {"core", "all"} & {*names} and "-n" not in arguments else ()
    command = [sys.executable, "-m", "pytest", *paths(names), *parallel, *arguments[options:]]
    return subprocess.run(command, cwd=layout.ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
