"""Real distributions on a temporary path, for the tests of discovery."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import hardpoint

if TYPE_CHECKING:
    from pathlib import Path

PLUGIN = "[hardpoint.backends]\nfast = vendor.plugin:backend\n"


def add(
    site: Path,
    folder: str,
    entry_points: str | bytes | None = PLUGIN,
    *,
    metadata: str | bytes | None = "",
    file: str = "METADATA",
) -> Path:
    """Write a metadata folder such as ``vendor-1.0.dist-info``.

    Empty `metadata` takes name and version from the folder's name; None writes no such file.
    """
    info = site / folder
    info.mkdir(parents=True)
    if metadata == "":
        name, _, version = folder.rpartition(".")[0].partition("-")
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nText\n"
    for target, content in (("entry_points.txt", entry_points), (file, metadata)):
        if content is not None:
            (info / target).write_bytes(content if isinstance(content, bytes) else content.encode())
    return info


def archive(site: Path, target: Path) -> Path:
    """Pack a folder, so that its distributions are those of a zip archive."""
    with zipfile.ZipFile(target, "w") as file:
        for path in sorted(site.rglob("*")):
            file.write(path, path.relative_to(site))
    return target


def copy_core(target: Path) -> Path:
    """Copy the core, and nothing of the environment that it is installed in, to a folder for the path of a process."""
    shutil.copytree(hardpoint.__path__[0], target / "hardpoint", ignore=shutil.ignore_patterns("__pycache__"))
    return target


def run(*arguments: str, path: Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python afresh with `path` as its PYTHONPATH; a failure is shown by the test that looks at the result."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"},
    )
