"""What `make demo` runs: a real model on the backend that Hardpoint picks, then the same with a broken one preferred.

Arguments are handed to the engine: ``python examples/demo.py --max-tokens 20``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections import defaultdict
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TextIO

ENGINE = Path(__file__).resolve().parent / "tiny_engine"
PROMPTS = (
    "Why is the sky blue?",
    "I have flour, two eggs, some milk and a hot pan, and friends arrive in half an hour. What can I cook for them?",
)
BROKEN = "broken_attention"
_ANSWER = re.compile(r"\[(\d+)\] ")
_CLOSING = re.compile(r"^(\S+) \(.*, attention by ([^:,\s]+)", re.MULTILINE)

PLUGIN = """
    from hardpoint.attention import ANYTHING, AttentionSupport, AttentionVariant
    from hardpoint.hookspecs import API_VERSION, BackendSpec, Order, hookimpl

    class Plugin:
        @hookimpl
        def hardpoint_backend(self):
            return BackendSpec(
                api=API_VERSION,
                kind="attention",
                platforms=("{platform}",),
                target="{name}.backend:BrokenBackend",
                order=Order(before=("{before}",)),
                support=AttentionSupport((
                    AttentionVariant(head_size=ANYTHING, num_kv_heads=ANYTHING, dtype=ANYTHING, block_size=ANYTHING),
                )),
            )

    plugin = Plugin()
"""
BACKEND = """
    from {name} import _kernel
    from hardpoint.attention import AttentionBackend

    class BrokenBackend(AttentionBackend):
        forward = _kernel.forward
"""
METADATA = """
    Metadata-Version: 2.1
    Name: {distribution}
    Version: 1.0
"""
ENTRY_POINTS = """
    [hardpoint.backends]
    {name} = {name}.plugin:plugin
"""


class DemoError(Exception):
    """The demo did not show what it is there to show."""


def install_broken_backend(site: Path, *, platform: str, before: str) -> None:
    """Install a distribution whose backend wants to stand before another, and whose library was cut short on disk.

    It names the platform, so that it is considered on a vendor's too, whatever features of torch that declares.
    """
    package, distribution = site / BROKEN, BROKEN.replace("_", "-")
    info = site / f"{BROKEN}-1.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    texts = {
        package / "__init__.py": "",
        package / "plugin.py": PLUGIN,
        package / "backend.py": BACKEND,
        info / "METADATA": METADATA,
        info / "entry_points.txt": ENTRY_POINTS,
    }
    for path, text in texts.items():
        filled = (
            textwrap.dedent(text)
            .lstrip()
            .format(name=BROKEN, platform=platform, before=before, distribution=distribution)
        )
        path.write_text(filled, encoding="utf-8")
    # A real extension module, as an interrupted copy leaves it.
    library = package / f"_kernel{EXTENSION_SUFFIXES[0]}"
    shutil.copy(some_extension_module(), library)
    with library.open("r+b") as file:
        file.truncate(40)


def some_extension_module() -> Path:
    """Any extension module of this environment."""
    numpy = find_spec("numpy")
    for folder in (numpy and numpy.submodule_search_locations) or ():
        for path in sorted(Path(folder).rglob(f"*{EXTENSION_SUFFIXES[0]}")):
            return path
    raise DemoError("numpy is not installed, whose extension module was to be broken; `make demo` installs everything")


def run_engine(arguments: list[str], extra_path: Path | None = None) -> tuple[dict[str, str], str]:
    """Run the engine, showing what it writes. Returns the text per prompt, and what it said besides."""
    command = [sys.executable, str(ENGINE), *(part for prompt in PROMPTS for part in ("--prompt", prompt)), *arguments]
    environment = dict(os.environ, PYTHONUNBUFFERED="1")
    if extra_path is not None:
        inherited = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([str(extra_path), *([inherited] if inherited else [])])
        # Either would forbid the very fallback that is shown.
        for name in ("HARDPOINT_STRICT", "HARDPOINT_ATTENTION_BACKEND"):
            environment.pop(name, None)
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", errors="replace"
    ) as process:
        said: list[str] = []
        held: list[str] = []
        listener = threading.Thread(target=_pass_on, args=(process.stderr, sys.stderr, said, held))
        listener.start()
        text: list[str] = []
        _pass_on(process.stdout, sys.stdout, text)
        listener.join()
        # It comes in another pipe than the texts, and would be shown before their last lines.
        sys.stderr.writelines(held)
        sys.stderr.flush()
    if process.returncode:
        raise DemoError(f"the engine ended with exit code {process.returncode}; its message stands above")
    answers: defaultdict[str, str] = defaultdict(str)
    for line in text:
        # Somebody's plugin may print something of its own.
        if found := _ANSWER.match(line):
            answers[found[1]] += line[found.end() :]
    return dict(answers), "".join(said)


def _pass_on(source: IO[str] | None, target: TextIO, kept: list[str], held: list[str] | None = None) -> None:
    for line in source or ():
        kept.append(line)
        if held is not None and _CLOSING.search(line):
            held.append(line)
            continue
        target.write(line)
        target.flush()


def decision_of(said: str) -> tuple[str, str]:
    """The platform and the backend that the engine's closing line names."""
    found = _CLOSING.search(said)
    if found is None:
        raise DemoError("the engine did not say which backend it ran on")
    return found[1], found[2]


def _why_unmentioned() -> str:
    """What may have kept the broken backend out of the race."""
    names = [name for name in ("HARDPOINT_PLUGINS", "HARDPOINT_DISABLED_PLUGINS") if os.environ.get(name, "").strip()]
    return f"; {' or '.join(names)} may leave it out: unset it for the demo" if names else ""


def demo(arguments: list[str]) -> str:
    """Run both parts. Returns what happened; errors: `DemoError`."""
    print("== Two prompts of different length at once, on the platform and backend that Hardpoint picks\n", flush=True)
    expected, said = run_engine(arguments)
    platform, backend = decision_of(said)
    with tempfile.TemporaryDirectory(prefix="hardpoint-demo-") as folder:
        install_broken_backend(Path(folder), platform=platform, before=backend)
        print(f"\n== The same, with {BROKEN} installed and preferred, whose library is cut off on disk\n", flush=True)
        answers, said = run_engine(arguments, Path(folder))
    warnings = [line for line in said.splitlines() if line.startswith("WARNING") and BROKEN in line]
    if not warnings:
        raise DemoError(f"no warning says why {BROKEN} was not used{_why_unmentioned()}")
    if (found := decision_of(said)) != (platform, backend):
        raise DemoError(
            f"the second run was to fall back on {backend} on {platform}, and ran on {' with '.join(found)}"
        )
    if answers != expected:
        raise DemoError("the second run's text differs from the first's")
    return (
        f"{len(expected)} prompts were answered on {backend}; with {BROKEN} preferred and broken on disk, the engine"
        f" said why, started on {backend} and wrote the same text"
    )


def main() -> int:
    """Run the demo; the last line says what happened."""
    try:
        outcome = demo(sys.argv[1:])
    except (DemoError, OSError) as error:
        print(f"\ndemo: FAILED: {error}", flush=True)
        return 1
    print(f"\ndemo: ok: {outcome}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
