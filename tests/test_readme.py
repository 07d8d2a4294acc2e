"""The README cannot rot: its program runs, its output is what the program prints, its settings are the settings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from hardpoint._settings import DESCRIPTIONS

README = Path(__file__).parent.parent / "README.md"

pytestmark = pytest.mark.checkout


def block(language: str) -> str:
    """The README's block of a language."""
    found = re.search(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    return found[1]


SHOWN = ("hardpoint", "hardpoint_cpu", "hardpoint_torch_sdpa")


def hide_the_others(folder: Path) -> None:
    """Link everything that is importable here into a folder, but for plugins that the README does not install."""
    standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    for entry in sys.path:
        if entry in standard or entry.endswith("lib-dynload") or not Path(entry).is_dir():
            continue
        for child in Path(entry).iterdir():
            ours = child.name.startswith("hardpoint")
            if not (ours and child.name.partition("-")[0] not in SHOWN) and not (folder / child.name).is_symlink():
                (folder / child.name).symlink_to(child)


@pytest.mark.torch
@pytest.mark.plugins
def test_the_program_prints_what_the_readme_shows(tmp_path: Path) -> None:
    """Line by line, with the distributions that the README names and no other."""
    hide_the_others(tmp_path)
    start = f"import sys; sys.path.append({str(tmp_path)!r}); exec(compile({block('python')!r}, 'README', 'exec'))"
    variables = {name: text for name, text in os.environ.items() if not name.startswith(("HARDPOINT_", "PYTHONPATH"))}
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", start], capture_output=True, text=True, check=False, env=variables
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == block("text").splitlines()


def test_every_setting_is_documented() -> None:
    """The table names each variable, and no other."""
    named = set(re.findall(r"`(HARDPOINT_[A-Z_]+)`", README.read_text(encoding="utf-8")))
    assert named == set(DESCRIPTIONS)


def test_what_the_readme_links_to_is_there() -> None:
    """No link leads nowhere."""
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (README.parent / target).exists(), target
