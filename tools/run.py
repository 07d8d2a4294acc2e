"""`make demo`, `make test` and what `.ci/run` needs: set up, run, and end with a line that says what happened.

Standard library only: this runs on a machine that has Python, pip, venv and make, and nothing else.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NoReturn

import environment
import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

ENGINE = ("torch", "engine", "weights")


class Failed(Exception):
    """A step failed; the text is for the closing line."""


def run(python: Path, arguments: Sequence[str], failure: str, *, settings: bool = True) -> None:
    """Run a program of the checkout in an environment; the user's `HARDPOINT_` settings reach it where `settings`."""
    variables = environment.clean_environ()
    if not settings:
        variables = {name: value for name, value in variables.items() if not name.startswith("HARDPOINT_")}
    code = subprocess.run([str(python), *arguments], cwd=layout.ROOT, env=variables, check=False).returncode
    if code:
        raise Failed(f"{failure} (exit status {code})")


def demo(arguments: list[str]) -> str:
    """Generate text with a real model."""
    python = environment.ensure("demo", layout.folders(["all"]), ENGINE)
    run(python, ["examples/demo.py", *arguments], "the demo did not get to its end")
    return "a model generated text through Hardpoint"


def test(arguments: list[str]) -> str:
    """Run every test: core, plugins, examples."""
    python = environment.ensure("test", layout.folders(["all"]), (*ENGINE, "test", "reference"))
    run(python, ["tools/test.py", "all", *arguments], "tests failed", settings=False)
    return "the tests passed"


def torch_free(arguments: list[str]) -> str:
    """Run the tests that need no torch, on whichever Python runs this."""
    name = f"torch-free-{sys.implementation.cache_tag}"
    needless = [folder for folder in layout.folders(["all"]) if not layout.needs_torch(folder)]
    python = environment.ensure(name, needless, ("test",))
    names = ["core", *(folder.name for folder in needless if folder != layout.ROOT)]
    run(python, ["tools/test.py", *names, "-m", "not long", *arguments], "tests failed", settings=False)
    return f"the tests that need no torch passed on Python {sys.version.split()[0]}"


def matrix(arguments: list[str]) -> str:
    """Run tox, installing it first."""
    python = environment.ensure("matrix", [], ("matrix",))
    run(python, ["-m", "tox", *arguments], "tox failed")
    return f"tox {' '.join(arguments)} passed"


COMMANDS: dict[str, Callable[[list[str]], str]] = {
    "demo": demo,
    "test": test,
    "torch-free": torch_free,
    "tox": matrix,
}


def end(label: str, outcome: str, status: int) -> NoReturn:
    """Print the closing line and leave."""
    sys.stdout.flush()
    print(f"{label}: {outcome}", flush=True)
    sys.exit(status)


def main(arguments: list[str]) -> NoReturn:
    """Run the command that the first argument names."""
    name = arguments[0] if arguments else ""
    label = f"make {name}"
    if name not in COMMANDS:
        end(label, f"FAILED: there is no such command; there are: {', '.join(COMMANDS)}", 2)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.monotonic()
    try:
        outcome = COMMANDS[name](arguments[1:])
    except KeyboardInterrupt:
        end(label, "interrupted; run it again, what is half made will be remade", 130)
    except Failed as failure:
        end(label, f"FAILED: {failure}", 1)
    except subprocess.CalledProcessError as error:
        said = " ".join(map(str, error.cmd[:6]))
        end(label, f"FAILED: setting up ({said} ... ended with status {error.returncode}); the reason is above", 1)
    except OSError as error:
        end(label, f"FAILED: {error.strerror or error}: {error.filename or os.getcwd()}", 1)
    end(label, f"ok: {outcome}, in {time.monotonic() - started:.0f} s", 0)


if __name__ == "__main__":
    main(sys.argv[1:])
