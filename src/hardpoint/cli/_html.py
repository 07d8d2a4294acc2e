"""The matrix as one self-contained page: no network, readable without scripts, and printable."""

from __future__ import annotations

import json
import pkgutil
from html import escape
from typing import TYPE_CHECKING, Any, Final

from hardpoint._reasons import own_words
from hardpoint.cli._show import plugin_label

if TYPE_CHECKING:
    from collections.abc import Mapping

    Json = Any  # what JSON can hold

_HUES: Final = (215, 28, 145, 275, 345, 185, 52, 110, 310, 245, 5, 75)
"""Far apart, so that neighbours in the legend can be told from each other; colour is never the only sign."""


def render(data: Mapping[str, Json]) -> str:
    """The page of a matrix's data."""
    template = (pkgutil.get_data("hardpoint.cli", "matrix.html") or b"").decode("utf-8")
    names = [cell["selection"]["backend"] for cell in data["cells"]]
    backends = sorted({name for name in names if name})
    hues = {name: _HUES[place % len(_HUES)] for place, name in enumerate(backends)}
    devices, configs = data["devices"], data["configs"]
    parts = {
        "TITLE": "Attention backends by device",
        "INTRODUCTION": escape(
            f"Which backend Hardpoint {data['hardpoint']} gives each device for each kind of layer. "
            f"{_about(data)} A cell opens every candidate with its reasons."
        ),
        "PROBLEMS": _problems(data),
        "CHANGES": _changes(data),
        "CAPTION": escape(f"{len(devices)} devices by {len(configs)} kinds of layers; each cell names the backend"),
        "LEGEND": "\n".join(_legend(name, hues, names) for name in [*backends, *([None] if None in names else [])]),
        "HEAD": "\n".join(
            f'<th scope="col" data-config="{place}">{escape(item["label"])}<small>{escape(item["words"])}</small></th>'
            for place, item in enumerate(configs)
        ),
        "BODY": "\n".join(_row(place, data, hues) for place in range(len(devices))),
        "FOOTER": escape(f"hardpoint {data['hardpoint']} · {data['source']['text']} · depth {data['depth']}"),
        "DATA": _script_data(data),
    }
    for name, text in parts.items():
        template = template.replace(f"@{name}@", text, 1 if name != "TITLE" else -1)
    return template


def _about(data: Mapping[str, Json]) -> str:
    kinds = {
        "live": "Decided on this machine.",
        "simulated": "Decided on simulated machines.",
        "recomputed": "Decided for a recorded machine.",
    }
    return kinds[data["source"]["kind"]]


def _problems(data: Mapping[str, Json]) -> str:
    found = [item for item in data["hints"] if item["severity"] in ("bug", "error", "warning")]
    if not found:
        return ""
    lines = "".join(f"<li>{escape(item['message'])}{_remedy(item)}</li>" for item in found)
    return f'<section class="problems" aria-label="What is wrong"><ul>{lines}</ul></section>'


def _changes(data: Mapping[str, Json]) -> str:
    if data["source"]["kind"] != "recomputed":
        return ""
    changes, uncompared = data["changes"], data["uncompared"]
    values = [
        (item["where"], *(item[name] or "(not there)" for name in ("recorded", "recomputed"))) for item in changes
    ]
    rows = "".join(
        f'<tr><th scope="row">{escape(where)}</th><td>{escape(recorded)}</td><td>{escape(now)}</td></tr>'
        for where, recorded, now in values
    )
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("what", "recorded", "here"))
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>" if changes else ""
    silent = f"<p>Not compared, as the snapshot has no decision about it: {escape('; '.join(uncompared))}</p>"
    return (
        '<details class="changes" open><summary>'
        f"Changed against the recorded report: {len(changes) or 'nothing'}</summary>"
        f"{table}{silent if uncompared else ''}</details>"
    )


def _remedy(item: Mapping[str, Json]) -> str:
    return f" <b>→ {escape(item['remedy'])}</b>" if item["remedy"] else ""


def _legend(name: str | None, hues: Mapping[str, int], names: list[str | None]) -> str:
    style = 'class="none"' if name is None else f'style="--h:{hues[name]}"'
    shown = escape(name or "no backend")
    return (
        f'<li><button type="button" {style} data-backend="{escape(name or "")}">{shown} '
        f"<small>{names.count(name)}</small></button></li>"
    )


def _row(place: int, data: Mapping[str, Json], hues: Mapping[str, int]) -> str:
    device = data["devices"][place]
    is_first = place > 0 and data["devices"][place - 1]["platform"] != device["platform"]
    cells = [(number, cell) for number, cell in enumerate(data["cells"]) if cell["device"] == place]
    body = "".join(
        _cell(number, cell, data, hues) for number, cell in sorted(cells, key=lambda item: item[1]["config"])
    )
    kind = "first" if is_first else "row"
    head = f'<th scope="row">{escape(device["label"])}<small>{escape(device["words"])}</small></th>'
    return f'<tr data-device="{place}" class="{kind}">{head}{body}</tr>'


def _cell(number: int, cell: Mapping[str, Json], data: Mapping[str, Json], hues: Mapping[str, int]) -> str:
    selection = cell["selection"]
    name = selection["backend"]
    valid = sum(1 for item in selection["candidates"] if item["outcome"] == "valid")
    lost = sum(1 for item in selection["candidates"] if item["outcome"] in ("failed", "bug", "contract"))
    more = ", ".join(
        filter(
            None,
            (
                f"{valid} more valid" if valid else "",
                f"{lost} failed" if lost else "",
                "fallback" if selection["is_fallback"] else "",
            ),
        )
    )
    device, config = data["devices"][cell["device"]]["label"], data["configs"][cell["config"]]["label"]
    label = f"{device}, {config}: {name or 'no backend'}{f', {more}' if more else ''}. Opens the candidates."
    style = f'style="--h:{hues[name]}"' if name else 'class="none"'
    small = f"<small>{escape(more)}</small>" if more else ""
    return (
        f'<td><button type="button" {style} data-cell="{number}" data-backend="{escape(name or "")}" '
        f'aria-label="{escape(label)}">{escape(name or "none").replace("_", "_<wbr>")}{small}</button></td>'
    )


def _script_data(data: Mapping[str, Json]) -> str:
    cells = [
        {
            "device": cell["device"],
            "config": cell["config"],
            "backend": cell["selection"]["backend"],
            "note": cell["selection"]["note"],
            "fields": {
                name: value for name, value in cell["selection"]["config"].items() if value not in (None, False, "auto")
            },
            "candidates": [_candidate(item) for item in cell["selection"]["candidates"]],
        }
        for cell in data["cells"]
    ]
    devices = [
        {
            **{name: item[name] for name in ("label", "platform")},
            "words": f"{item['label']} {item['words']} {item['platform']}".lower(),
        }
        for item in data["devices"]
    ]
    configs = [{name: item[name] for name in ("label", "kind", "dtype")} for item in data["configs"]]
    text = json.dumps({"devices": devices, "configs": configs, "cells": cells}, separators=(",", ":"))
    # Nothing in it may end the element that it stands in.
    return text.replace("<", "\\u003c").replace("&", "\\u0026")


def _candidate(item: Mapping[str, Json]) -> dict[str, Json]:
    provenance = item["provenance"] or {}
    # The page shows it beside them.
    whose = plugin_label(provenance)
    brought = " ".join(filter(None, (provenance.get("distribution"), provenance.get("version"))))
    return {
        "name": item["name"],
        "outcome": item["outcome"],
        "from": brought,
        "rank": item["rank_reason"],
        "reasons": [
            {"message": own_words(reason["message"], whose), "remedy": reason.get("remedy")}
            for reason in item["reasons"]
        ],
    }
