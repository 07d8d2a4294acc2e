"""``hardpoint doctor``, ``platforms``, ``backends`` and ``settings``: views of one report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hardpoint.cli import _show
from hardpoint.cli._document import Heading, Paragraph, Table
from hardpoint.cli._question import LIVE, Source, envelope, examine, exit_code_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hardpoint.cli._document import Block

    Json = Any  # what JSON can hold

TYPICAL: Final = {"head_size": 128, "num_heads": 32, "num_kv_heads": 8, "block_size": 16}
"""A layer of a common decoder of eight billion parameters."""

TYPICAL_LABEL: Final = "A typical decoder layer"


def doctor_data(source: Source = LIVE, **options: Any) -> dict[str, Json]:  # noqa: ANN401  # those of examine
    """The doctor's data: the report for a typical decoder layer."""
    configs = [{"label": TYPICAL_LABEL, "fields": TYPICAL}]
    report, labels = examine(source, configs=configs, **options)
    return envelope("doctor", 1, source, exit_code_of(report), report=report, labels=labels)


def doctor_blocks(data: Mapping[str, Json], *, verbose: bool = False) -> Iterator[Block]:
    """What the doctor shows of its data."""
    report = data["report"]
    yield from _show.hints(report["hints"])
    if not report["hints"]:
        yield Paragraph("Nothing is wrong.", "good")
    if data["source"]["kind"] != "live":
        yield Heading(data["source"]["text"])
    yield Heading(_show.machine_line(report))
    hardware = [f"{item['count'] or ''} {item['name']}".strip() for item in report["hardware"]]
    if hardware:
        yield Paragraph(f"  seen: {', '.join(hardware)}")
    yield from _show.platform_blocks(report)
    yield from _show.kernel_blocks(report)
    for label, selection in zip(data["labels"], report["selections"], strict=False):
        yield from _show.selection_blocks(selection, label)
    yield from _show.plugin_blocks(report)
    rows = _show.variable_rows(report["variables"], only_set=True)
    if rows:
        yield Heading("Settings")
        yield Table(rows)
    yield from _show.section_blocks(report, whole=verbose)
    if report["fingerprint"] is not None:
        yield Paragraph(f"fingerprint {report['fingerprint']['digest']}", "dim")
