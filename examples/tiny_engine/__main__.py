"""``python examples/tiny_engine``, from anywhere; see `cli.py`."""

import os
import sys

if not __package__:
    # Run as a folder, Python puts that folder on the path; the imports here start at the repository's root.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from examples.tiny_engine.cli import main

if __name__ == "__main__":
    sys.exit(main())
