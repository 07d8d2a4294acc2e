"""``hardpoint doctor``, ``platforms`` and ``backends``: views of one report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from hardpoint._recomputation import PLATFORMS
from hardpoint.cli import _show
from hardpoint.cli._document import Cell, Heading, Paragraph, Table
from hardpoint.cli._options import Look, common_options
from hardpoint.cli._question import SELECTING, TYPICAL, TYPICAL_LABEL, envelope, examine, exit_code_of
from hardpoint.cli._view import show

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hardpoint.cli._document import Block
    from hardpoint.cli._question import Source

    Json = Any  # what JSON can hold

TITLE: Final = "Hardpoint doctor"
TYPICAL_CONFIGS: Final = ({"label": TYPICAL_LABEL, "fields": TYPICAL},)


@click.command()
@common_options()
@click.option("-v", "--verbose", is_flag=True, help="Show long values whole.")
def doctor(look: Look, *, verbose: bool) -> int:
    """The whole picture: what is wrong and what to do, then machine, platforms, kernels, backends, plugins."""
    return show(
        look.view,
        TITLE,
        lambda: doctor_data(look),
        lambda data: doctor_blocks(data, verbose=verbose),
        recorded=None if verbose else look.source.views,
    )


@click.command()
@common_options(depth=False)
def platforms(look: Look) -> int:
    """The installed platforms, and what became of each."""
    return show(
        look.view, "Hardpoint platforms", lambda: platforms_data(look), platforms_blocks, recorded=look.no_views
    )


@click.command()
@common_options()
def backends(look: Look) -> int:
    """The installed backends, and what became of each for a typical decoder layer."""
    return show(look.view, "Hardpoint backends", lambda: backends_data(look), backends_blocks, recorded=look.no_views)


def doctor_data(look: Look) -> dict[str, Json]:
    """The doctor's data: the report for a typical decoder layer."""
    configs = None if look.source.kind == "recomputed" else TYPICAL_CONFIGS
    found = examine(look.source, configs=configs, depth=look.depth, platform=look.platform)
    return doctor_envelope(look.source, found.report, found.labels, found.changes)


def doctor_envelope(source: Source, report: dict[str, Json], labels: list[str], changes: list[Json]) -> dict[str, Json]:
    """The data of a report. `changes` are against the recorded one, where it was made anew."""
    code = exit_code_of(report)
    return envelope("doctor", 1, source, code, labels=labels, changes=changes, report=report)


def doctor_blocks(data: Mapping[str, Json], *, verbose: bool = False) -> Iterator[Block]:
    """What the doctor shows of its data."""
    report = data["report"]
    yield from _show.head(data, report)
    yield from _show.change_blocks(data)
    hardware = [f"{item['count'] or ''} {item['name']}".strip() for item in report["hardware"]]
    if hardware:
        yield Paragraph(f"seen: {', '.join(hardware)}", "", 2)
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
        yield Heading(f"Fingerprint of these decisions: {report['fingerprint']['digest']}")


_OF_PLATFORMS: Final = ("bugs", "machine", "hardware", "settings", "resolution", "platform", "discovery")


def platforms_data(look: Look) -> dict[str, Json]:
    """The part of a report that is about platforms."""
    found = examine(look.source, parts=[PLATFORMS], platform=look.platform, kernels=False)
    report = found.report
    hints = _about(report, "platform")
    plugins = [item for item in report["plugins"] if item["plugin"].startswith("platform/")]
    part = {name: report[name] for name in _OF_PLATFORMS}
    return envelope(
        "platforms",
        2,
        look.source,
        exit_code_of(report),
        changes=found.changes,
        hints=hints,
        plugins=plugins,
        **part,
    )


def platforms_blocks(data: Mapping[str, Json]) -> Iterator[Block]:
    """What is shown of them."""
    yield from _show.head(data, data)
    yield from _show.change_blocks(data)
    yield from _show.platform_blocks(data)
    yield from _show.plugin_blocks(data)
    for item in data["plugins"]:
        if item.get("unknown_members"):
            names = ", ".join(item["unknown_members"])
            yield Paragraph(f"{item['plugin']} has members that the contract does not know: {names}", "dim", 2)


_OF_BACKENDS: Final = ("bugs", "machine", "settings", "resolution", "kernels", "selections")


def backends_data(look: Look) -> dict[str, Json]:
    """The part of a report that is about backends."""
    found = examine(look.source, parts=SELECTING, configs=TYPICAL_CONFIGS, depth=look.depth, platform=look.platform)
    report = found.report
    hints = _about(report, "backend")
    plugins = [item for item in report["plugins"] if item["plugin"].startswith("backend/")]
    part = {name: report[name] for name in _OF_BACKENDS}
    return envelope(
        "backends",
        2,
        look.source,
        exit_code_of(report),
        changes=found.changes,
        uncompared=found.uncompared,
        hints=hints,
        labels=found.labels,
        plugins=plugins,
        **part,
    )


def backends_blocks(data: Mapping[str, Json]) -> Iterator[Block]:
    """What is shown of them."""
    yield from _show.head(data, data)
    yield from _show.change_blocks(data)
    yield from _show.plugin_blocks(data)
    rows = tuple(
        (
            Cell(item["name"]),
            Cell(item["spec"]["kind"]),
            Cell(" or ".join(item["spec"]["platforms"])),
            Cell(", ".join(item["spec"]["requires"]) or "nothing"),
        )
        for item in data["plugins"]
        if item["spec"] is not None
    )
    if rows:
        yield Heading("What they declare")
        yield Table(rows, ("backend", "kind", "runs on", "requires"))
    yield from _show.kernel_blocks(data)
    for label, selection in zip(data["labels"], data["selections"], strict=False):
        yield from _show.selection_blocks(selection, label)


def _about(report: Mapping[str, Json], kind: str) -> list[Json]:
    """The hints that are not about the other kind of plugin alone; bugs and errors are for everybody."""
    other = "backend" if kind == "platform" else "platform"
    names = {item["name"] for item in report["plugins"] if item["plugin"].startswith(f"{other}/")}
    names |= {item["plugin"] for item in report["plugins"] if item["plugin"].startswith(f"{other}/")}
    if kind == "platform":
        names |= {item["name"] for selection in report["selections"] for item in selection["candidates"]}
    return [hint for hint in report["hints"] if hint["subject"] not in names or hint["severity"] in ("bug", "error")]
