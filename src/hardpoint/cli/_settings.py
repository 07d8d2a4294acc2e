"""``hardpoint settings``: every variable, ours and the plugins', its value and where it came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hardpoint._recomputation import SETTINGS
from hardpoint.cli import _show
from hardpoint.cli._document import Cell, Heading, Table
from hardpoint.cli._options import Look, common_options
from hardpoint.cli._question import PLUGIN_BUG, envelope, examine
from hardpoint.cli._view import show

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hardpoint.cli._document import Block

    Json = Any  # what JSON can hold


@click.command()
@common_options(depth=False)
def settings(look: Look) -> int:
    """Every variable, ours and the plugins': its value, where it came from, and the ones that nobody knows."""
    return show(look.view, "Hardpoint settings", lambda: settings_data(look), settings_blocks, recorded=look.no_views)


def settings_data(look: Look) -> dict[str, Json]:
    """The variables of a report."""
    found = examine(look.source, parts=[SETTINGS], platform=look.platform, kernels=False)
    report = found.report
    variables = report["variables"]
    names = {item["name"] for item in variables}
    hints = [hint for hint in report["hints"] if hint["subject"] in names or hint["severity"] == "bug"]
    code = PLUGIN_BUG if report["bugs"] else 0
    return envelope("settings", 2, look.source, code, changes=found.changes, hints=hints, variables=variables)


def settings_blocks(data: Mapping[str, Json]) -> Iterator[Block]:
    """A table for each owner."""
    yield from _show.hints(data["hints"])
    yield from _show.change_blocks(data)
    for owner in dict.fromkeys(item["owner"] for item in data["variables"]):
        yield Heading(f"Of {owner}" if owner else "Unknown, without effect")
        rows = _show.variable_rows([item for item in data["variables"] if item["owner"] == owner])
        yield Table(
            tuple(
                (name, Cell(f"{value.text}  [{source.text}]\n{text.text}", value.meaning))
                for name, value, source, _, text in rows
            )
        )
