"""``python -m hardpoint``."""

from __future__ import annotations

from hardpoint.cli import main

if __name__ == "__main__":
    main()
