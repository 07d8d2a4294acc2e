"""Hints about backends: the better one that was lost, and the one thing that brings it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hardpoint._hint_remedies import reason_of, remedy_for
from hardpoint._selection import NOTHING_VALID

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Json = Any  # what JSON can hold

_ENVIRONMENT: Final = ("failed", "contract", "untrusted")
_FIXABLE: Final = (*_ENVIRONMENT, "not_installed", "blocked")


def backend_hints(data: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    """One hint for each backend that stood before a chosen one and is lost, and one for each layer without any."""
    told = set()
    for selection in data["selections"]:
        chosen = selection["backend"]
        if chosen is None and not selection["candidates"] and selection["note"] not in (None, NOTHING_VALID):
            # Attention lives inside a compiled graph: a proper answer.
            continue
        if chosen is None:
            yield _no_backend(selection)
        for item in selection["candidates"]:
            if item["name"] == chosen:
                break
            if item["outcome"] not in _FIXABLE or not item["reasons"] or item["name"] in told:
                continue
            told.add(item["name"])
            yield _lost(selection, item)


def _no_backend(selection: Mapping[str, Json]) -> dict[str, Json]:
    kind, platform = selection["kind"], selection["platform"]
    fixable = [item for item in selection["candidates"] if item["outcome"] in _FIXABLE and item["reasons"]]
    remedy = None
    if fixable:
        remedy = remedy_for(reason_of(fixable[0]), fixable[0]["provenance"])
    elif not selection["candidates"]:
        remedy = "pip install hardpoint-torch-sdpa (or another backend)"
    refused = [f"{item['name']}: {reason_of(item)['message']}" for item in selection["candidates"] if item["reasons"]]
    why = f" ({'; '.join(refused[:2])})" if refused else " (no backend plugin of this kind is installed)"
    asked = f"{', '.join(selection['requested'])}: " if selection["requested"] else ""
    message = f"no {kind} backend is valid on {platform}: {asked}{_layer(selection)}{why}"
    return {"severity": "error", "code": "other", "subject": kind, "message": message, "remedy": remedy}


def _lost(selection: Mapping[str, Json], item: Mapping[str, Json]) -> dict[str, Json]:
    reason = reason_of(item)
    asked = item["name"] in selection["requested"]
    severity = "warning" if item["outcome"] in _ENVIRONMENT or asked else "advice"
    instead = f"; {selection['backend']} is used instead" if selection["backend"] else ""
    state = {"not_installed": "is not installed", "blocked": "is left out", "contract": "breaks the plugin contract"}
    became = state.get(item["outcome"], f"is lost ({item['phase']})")
    first = reason["message"].partition("\n")[0]
    message = f"backend {item['name']} {became}: {first}{instead}"
    remedy = remedy_for(reason, item["provenance"])
    return {"severity": severity, "code": reason["code"], "subject": item["name"], "message": message, "remedy": remedy}


def _layer(selection: Mapping[str, Json]) -> str:
    config = selection["config"]
    return f"head size {config['head_size']}, {config['num_heads']} heads, {config['dtype']}"
