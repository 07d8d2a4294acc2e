"""Refuse a coverage report in which fewer branches ran than the first argument (percent) asks for."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> int:
    """Read the second argument, coverage's report in JSON, and compare."""
    floor, report = float(sys.argv[1]), Path(sys.argv[2])
    if not report.is_file():
        print(f"branches: NOT enough: there is no {report.name}; no line of the core ran")
        return 1
    totals = json.loads(report.read_text(encoding="utf-8"))["totals"]
    covered, branches = totals["covered_branches"], totals["num_branches"]
    percent = 100 * covered / branches if branches else 100.0
    enough = percent >= floor
    print(f"branches: {covered} of {branches} ran, {percent:.1f} %; {'' if enough else 'NOT '}enough ({floor:g} %)")
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
