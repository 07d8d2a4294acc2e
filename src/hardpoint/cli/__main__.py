"""``python -m hardpoint.cli``."""

from __future__ import annotations

from hardpoint.cli import main

main()
