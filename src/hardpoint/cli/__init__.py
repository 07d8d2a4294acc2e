"""The command line: ``hardpoint doctor`` and its kin. Needs the extra ``cli`` (click and rich).

Exit codes: 0 fine; 1 something asked for is not available; 2 wrong use; 3 a plugin has a bug. Every command looks at
this machine in a child process, so that a plugin which crashes, hangs or exits is survived and named. What a command
prints for people, as Markdown and as JSON are views of one data object; the JSON's schemas lie in ``schemas/``.
"""

from __future__ import annotations

import sys


def main() -> None:
    """The console script. Ends the process with the exit code."""
    try:
        from hardpoint.cli._commands import run
    except ModuleNotFoundError as error:
        _end_without(error)
    try:
        code = run(sys.argv[1:])
    except ModuleNotFoundError as error:
        _end_without(error)
    sys.exit(code)


def _end_without(error: ModuleNotFoundError) -> None:
    if (error.name or "").partition(".")[0] not in ("click", "rich"):
        raise error
    text = f"hardpoint: the command line needs {error.name}, which is not installed: pip install 'hardpoint[cli]'\n"
    sys.stderr.write(text)
    sys.exit(1)
