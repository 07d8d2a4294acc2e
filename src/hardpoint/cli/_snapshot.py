"""``hardpoint snapshot``: this machine's facts and report in one file, with nothing private in it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from hardpoint._recomputation import ALL_PARTS
from hardpoint._snapshot import Snapshot
from hardpoint.cli import _show
from hardpoint.cli._doctor import TITLE, TYPICAL_CONFIGS, doctor_blocks, doctor_envelope
from hardpoint.cli._document import Heading, Paragraph
from hardpoint.cli._options import Look, common_options
from hardpoint.cli._question import Source, envelope, exit_code_of, label_of, put_question, with_observed
from hardpoint.cli._view import VIEWS, show

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hardpoint.cli._document import Block

    Json = Any  # what JSON can hold

WIDTH = 80


@click.command()
@common_options()
@click.option(
    "-o", "--output", metavar="FILE", required=True, type=click.Path(), help="The file to write; - for standard output."
)
def snapshot(look: Look, *, output: str) -> int:
    """Record the machine's facts and its report in one file, redacted, to be looked at elsewhere with --snapshot."""
    if look.source.kind == "snapshot":
        raise click.UsageError("--snapshot: it is one already")
    if output != "-":
        return show(look.view, "Hardpoint snapshot", lambda: snapshot_data(look, output), snapshot_blocks)
    from hardpoint.cli._ask import AskError
    from hardpoint.cli._view import show_error, write

    try:
        taken, _ = take(look)
    except AskError as error:
        return show_error(look.view, error)
    write(taken.to_json(), sys.stdout)
    return exit_code_of(taken.data["report"])


def take(look: Look) -> tuple[Snapshot, list[Json]]:
    """A snapshot with the views that are shown elsewhere, and what has changed. Errors: `AskError`."""
    question = {
        "what": "snapshot",
        "machine": dict(look.source.machine),
        "configs": list(TYPICAL_CONFIGS),
        "depth": look.depth,
        "parts": list(ALL_PARTS),
    }
    value, observations = put_question(question)
    data = value["data"]
    report = with_observed(data["report"], observations)
    from hardpoint.cli import _markdown, _text

    labels = [label_of(item["config"]) for item in report["selections"]]
    shown = doctor_envelope(Source("snapshot", "Recorded machine", {}), report, labels, [])
    blocks = list(doctor_blocks(shown))
    views = {
        **data["views"],
        VIEWS["text"]: _text.render(blocks, width=WIDTH, colour=False),
        VIEWS["markdown"]: _markdown.render(TITLE, blocks),
    }
    return Snapshot(data={**data, "report": report, "views": views}), value["changes"]


def snapshot_data(look: Look, output: str) -> dict[str, Json]:
    """Write the file, and say what is in it."""
    taken, changes = take(look)
    try:
        taken.write(output)
    except OSError as error:
        raise click.FileError(output, str(error)) from None
    report = taken.data["report"]
    return envelope(
        "snapshot",
        2,
        look.source,
        exit_code_of(report),
        changes=changes,
        file=output,
        size_bytes=os.path.getsize(output),
        hints=report["hints"],
        platform=None if report["resolution"] is None else report["resolution"]["platform"],
        fingerprint=None if report["fingerprint"] is None else report["fingerprint"]["digest"],
    )


def snapshot_blocks(data: Mapping[str, Json]) -> Iterator[Block]:
    """What is shown of it."""
    yield from _show.hints(data["hints"])
    yield from _show.change_blocks(data)
    yield Heading(f"Written: {data['file']} ({data['size_bytes'] / 1024:.0f} KiB)")
    text = (
        "Names of user and host, folders, addresses, serial numbers and what looks like a secret are replaced in it. "
        f"Elsewhere: hardpoint doctor --snapshot {os.path.basename(data['file'])} (--recompute decides anew there)."
    )
    yield Paragraph(text, "", 2)
