"""A recorded machine as a command's source."""

from __future__ import annotations

import click

from hardpoint._snapshot import read_snapshot
from hardpoint.cli._question import Source
from hardpoint.errors import SnapshotError


def snapshot_source(path: str, *, recompute: bool) -> Source:
    """The snapshot in a file: as recorded, or to be decided anew. Errors: click's, for a file that is none."""
    try:
        found = read_snapshot(path)
    except SnapshotError as error:
        raise click.UsageError(str(error)) from None
    if recompute:
        return Source("recomputed", f"Recorded machine, decided anew: {path}", {"kind": "recomputed", "file": path})
    report = dict(found.report.data)
    return Source("snapshot", "Recorded machine", {"kind": "snapshot"}, report, dict(found.data["views"]))
