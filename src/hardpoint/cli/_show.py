"""From data to blocks: the parts that several commands show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hardpoint._reasons import own_words
from hardpoint._report_text import kernels_state
from hardpoint.cli._document import Cell, Heading, Hint, Paragraph, Table, outcome_cell

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hardpoint.cli._document import Block

    Json = Any  # what JSON can hold

_SHOWN_CHARACTERS: Final = 160


def head(data: Mapping[str, Json], report: Mapping[str, Json]) -> Iterator[Block]:
    """What is wrong, then which machine this is about."""
    yield from hints(report["hints"])
    if not report["hints"]:
        yield Paragraph("Nothing is wrong.", "good")
    if data["source"]["kind"] != "live":
        yield Heading(data["source"]["text"])
    yield Heading(machine_line(report))


def hints(items: Sequence[Mapping[str, Json]]) -> Iterator[Block]:
    """What is wrong, first."""
    for item in items:
        yield Hint(item["severity"], item["message"], item["remedy"])


def machine_line(report: Mapping[str, Json]) -> str:
    """The machine in one sentence."""
    machine = report["machine"]
    memory = machine["total_memory_bytes"]
    system = f"{machine['system']} {machine['kernel']}".strip()
    return (
        f"Hardpoint {report['hardpoint']} on {system} {machine['architecture'] or '(unknown architecture)'}, "
        f"Python {machine['python']}, {machine['cpu_count'] or '?'} CPUs, "
        f"{'?' if memory is None else f'{memory / 2**30:.1f}'} GiB"
    )


def candidate_rows(candidates: Sequence[Mapping[str, Json]]) -> tuple[tuple[Cell, ...], ...]:
    """A row per candidate: name, outcome, and why, each reason with its remedy below it."""
    return tuple(
        (
            Cell(item["name"], "strong" if item["outcome"] == "chosen" else ""),
            outcome_cell(item["outcome"]),
            Cell(why(item)),
        )
        for item in candidates
    )


def why(item: Mapping[str, Json]) -> str:
    """The reasons of a candidate or plugin, a line each, with remedies; of a candidate without any its rank's."""
    lines: list[str] = []
    whose = item.get("provenance") or item
    for reason in item["reasons"]:
        # Which plugin it is stands beside it.
        lines += own_words(reason["message"], plugin_label(whose)).splitlines() or [reason["code"]]
        if reason.get("remedy"):
            lines.append(f"-> {reason['remedy']}")
    if not lines and item.get("rank_reason"):
        lines.append(str(item["rank_reason"]))
    return "\n".join(lines)


def plugin_label(whose: Mapping[str, Json]) -> str:
    """As the core writes a plugin at the head of its messages; nothing of what is none."""
    if "plugin" not in whose:
        return ""
    brought = f"{whose['distribution']} {whose['version'] or 'of unknown version'}" if whose["distribution"] else ""
    return f"{whose['plugin']} ({brought or 'unknown distribution'})"


def change_blocks(data: Mapping[str, Json]) -> Iterator[Block]:
    """What came out differently when the decisions were made anew; nothing where they were not."""
    if data["source"]["kind"] != "recomputed":
        return
    changes = data["changes"]
    yield Heading(f"Changed against the recorded report: {len(changes) or 'nothing'}")
    if changes:
        yield Table(
            tuple(
                (
                    Cell(item["where"]),
                    Cell(f"{item['recorded'] or '(not there)'}\n-> {item['recomputed'] or '(not there)'}"),
                )
                for item in changes
            )
        )
    if data.get("uncompared"):
        yield Paragraph(
            f"not compared, as the snapshot has no decision about it: {'; '.join(data['uncompared'])}", "", 2
        )


def platform_blocks(report: Mapping[str, Json]) -> Iterator[Block]:
    """Which platform, why, and its devices."""
    resolution, platform = report["resolution"], report["platform"]
    if resolution is None:
        yield Heading("Platform: not resolved")
        return
    how = "" if resolution["source"] == "automatic" else f", asked for by {resolution['source']}"
    fallback = ", as a fallback" if resolution["is_fallback"] else ""
    yield Heading(f"Platform: {resolution['platform'] or 'NONE'}{how}{fallback}")
    if resolution["candidates"]:
        yield Table(candidate_rows(resolution["candidates"]))
    if platform is not None:
        if platform.get("error"):
            yield Paragraph(f"its own description cannot be had: {platform['error']}", "bad", 2)
        yield Table(tuple(_device_row(device) for device in platform["devices"]))


def _device_row(device: Mapping[str, Json]) -> tuple[Cell, ...]:
    capability = device["capability"]
    arch = "capability unknown" if capability is None else f"{capability['runtime']} {capability['arch']}"
    memory = device["total_memory_bytes"]
    size = "memory unknown" if memory is None else f"{memory / 2**30:.1f} GiB"
    return (Cell(f"device {device['index']}", "dim"), Cell(device["name"]), Cell(arch), Cell(size))


def kernel_blocks(report: Mapping[str, Json]) -> Iterator[Block]:
    """What became of the kernel modules."""
    kernels = report["kernels"]
    if kernels is None:
        return
    yield Heading(f"Kernels: {kernels_state(kernels)}")
    rows: list[tuple[Cell, Cell, Cell]] = []
    for module in kernels["modules"]:
        reason = module["reason"]
        outcome = outcome_cell("bug" if module["bug"] else module["outcome"])
        row = (Cell(module["name"]), outcome, Cell("" if reason is None else why({"reasons": [reason]})))
        if rows and rows[-1][1:] == row[1:]:
            # Alternatives of one distribution are missing together.
            row = (Cell(f"{rows.pop()[0].text}\n{module['name']}"), *row[1:])
        rows.append(row)
    if rows:
        yield Table(tuple(rows))


def selection_blocks(selection: Mapping[str, Json], label: str) -> Iterator[Block]:
    """The backend for one kind of layer, and every candidate."""
    yield Heading(f"{label}: {selection['backend'] or 'NO BACKEND'}")
    yield Paragraph(describe_selection(selection), "dim", 2)
    if selection["candidates"]:
        yield Table(candidate_rows(selection["candidates"]))


def describe_selection(selection: Mapping[str, Json]) -> str:
    """Who asked, how deep, and for what."""
    how = "automatic" if selection["source"] == "automatic" else f"asked for by {selection['source']}"
    fallback = ", as a fallback" if selection["is_fallback"] else ""
    note = f"; {selection['note']}" if selection["note"] else ""
    return f"{how}{fallback}, depth {selection['depth']}: {describe_config(selection['config'])}{note}"


def describe_config(config: Mapping[str, Json]) -> str:
    """The fields that say something."""
    shown = {name: value for name, value in config.items() if value not in (None, False, "auto")}
    if shown.get("v_head_size") == shown.get("head_size"):
        shown.pop("v_head_size", None)
    return ", ".join(name if value is True else f"{name} {value}" for name, value in shown.items())


def plugin_blocks(report: Mapping[str, Json], prefix: str = "") -> Iterator[Block]:
    """The installed plugins and what became of each."""
    plugins = [item for item in report["plugins"] if item["plugin"].startswith(prefix)]
    yield Heading(f"Plugins: {len(plugins)}")
    rows = []
    for item in plugins:
        brought = f"{item['distribution'] or 'unknown distribution'} {item['version'] or ''}".strip()
        rows.append((Cell(item["plugin"]), Cell(brought), outcome_cell(item["outcome"]), Cell(why(item))))
    if rows:
        yield Table(tuple(rows))


def section_blocks(report: Mapping[str, Json], *, whole: bool) -> Iterator[Block]:
    """What plugins add. Long values are cut, unless the whole is wanted."""
    for section in report["sections"]:
        yield Heading(f"{section['title']} ({section['plugin']})")
        if section["error"]:
            yield Paragraph(f"this section failed: {section['error']}", "bad", 2)
        if section["lines"]:
            yield Table(tuple((Cell(label, "dim"), Cell(_cut(value, whole))) for label, value in section["lines"]))


def _cut(text: str, whole: bool) -> str:  # noqa: FBT001  # private
    return text if whole or len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 2]} …"


def variable_rows(variables: Sequence[Mapping[str, Json]], *, only_set: bool = False) -> tuple[tuple[Cell, ...], ...]:
    """A row per variable: name, value, where it came from, meaning."""
    rows = []
    for item in variables:
        if only_set and item["source"] in ("default", "unknown"):
            continue
        if item["source"] == "private":
            value = Cell("(set; not shown)", "dim")
        elif item["source"] == "unknown":
            value = Cell("(not recorded)", "dim")
        elif item["value"] is not None:
            value = Cell(item["value"], "strong")
        else:
            value = Cell(item["default"] or "not set", "dim")
        owner = Cell(item["owner"] or "unknown", "" if item["owner"] else "warn")
        rows.append((Cell(item["name"]), value, Cell(item["source"], "dim"), owner, Cell(item["description"])))
    return tuple(rows)
