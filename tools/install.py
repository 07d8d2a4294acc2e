"""Install distributions of this repository into the environment that runs this: `install.py core cpu --groups test`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import environment
import layout


def main() -> None:
    """Install what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("distributions", nargs="*", help="core, a plugin's name, or all")
    parser.add_argument("--groups", nargs="*", default=[], help="dependency groups; torch means the shared one")
    parser.add_argument("--oldest", action="store_true", help="with the oldest dependencies that are allowed")
    options = parser.parse_args()
    if sys.prefix == sys.base_prefix:
        raise SystemExit("install.py changes the environment that runs it, so it wants a virtual one")
    with environment.lock() as keep:
        environment.install(
            Path(sys.executable),
            layout.folders(options.distributions),
            options.groups,
            keep=keep,
            oldest=options.oldest,
        )


if __name__ == "__main__":
    main()
