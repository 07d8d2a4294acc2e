"""Hints about backends: the better one that was lost, and the one thing that brings it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hardpoint._hint_remedies import reason_of, remedy_for
from hardpoint._requests import AUTO
from hardpoint._selection import NOTHING_VALID

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Json = Any  # what JSON can hold

_ENVIRONMENT: Final = ("failed", "contract", "untrusted")
_FREE: Final = frozenset(("block_size", "kv_cache_dtype", "dtype"))
"""Fields of a request that an engine may often choose otherwise."""
_FIXABLE: Final = (*_ENVIRONMENT, "not_installed")


def backend_hints(data: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    """A hint for each backend that is lost before the chosen one, and one for each layer without any.

    Of those that are merely not installed the best one is enough: the tables have the others.
    """
    told: set[str] = set()
    for selection in data["selections"]:
        chosen = selection["backend"]
        if chosen is None and not selection["candidates"] and selection["note"] not in (None, NOTHING_VALID):
            # Attention lives inside a compiled graph: a proper answer.
            continue
        if chosen is None:
            yield _no_backend(selection)
            # Its remedy is that of the first one.
            told.update(item["name"] for item in _fixable(selection)[:1])
        is_advised = False
        for item in selection["candidates"]:
            if item["name"] == chosen:
                break
            if chosen is not None and not is_advised and item["name"] not in told:
                hint = _with_another_value(selection, item)
                if hint is not None:
                    is_advised = True
                    told.add(item["name"])
                    yield hint
            if item["outcome"] not in _FIXABLE or not item["reasons"]:
                continue
            is_lost = item["outcome"] in _ENVIRONMENT or item["name"] in selection["requested"]
            if (is_lost or (not is_advised and chosen is not None)) and item["name"] not in told:
                told.add(item["name"])
                yield _lost(selection, item)
            is_advised = is_advised or not is_lost


def _no_backend(selection: Mapping[str, Json]) -> dict[str, Json]:
    kind, platform, requested = selection["kind"], selection["platform"], selection["requested"]
    binds = bool(requested) and requested[-1] != AUTO
    considered = [item for item in selection["candidates"] if not binds or item["name"] in requested]
    helps: list[str | None] = [
        remedy_for(reason_of(item), item["provenance"]) for item in _fixable(selection)[:1] if item in considered
    ]
    if binds:
        # What was asked for says why not, all of it; what would do is the other way out.
        refused = [
            f"{item['name']}: {' and '.join(reason['message'].partition(chr(10))[0] for reason in item['reasons'])}"
            for item in considered
            if item["reasons"]
        ]
        helps += (
            remedy_for(reason_of(item), item["provenance"])
            for item in considered
            if item["reasons"] and item["outcome"] != "rejected"
        )
        others = [item["name"] for item in selection["candidates"] if item["outcome"] in ("valid", "chosen")]
        if others:
            how = "ask for" if selection["source"] == "argument" else f"set {selection['source']} to"
            helps.append(f"{how} {'one of: ' if len(others) > 1 else ''}{', '.join(others)}")
    else:
        refused = [f"{item['name']}: {reason_of(item)['message']}" for item in considered if item["reasons"]][:2]
        if not selection["candidates"]:
            helps.append("pip install hardpoint-torch-sdpa (or another backend)")
    why = f" ({'; '.join(refused)})" if refused else " (no backend plugin of this kind is installed)"
    asked = f"{', '.join(requested)}: " if requested else ""
    message = f"no {kind} backend is valid on {platform}: {asked}{_layer(selection)}{why}"
    remedy = "; or ".join(dict.fromkeys(filter(None, helps))) or None
    return {"severity": "error", "code": "other", "subject": kind, "message": message, "remedy": remedy}


def _fixable(selection: Mapping[str, Json]) -> list[Json]:
    return [item for item in selection["candidates"] if item["outcome"] in _FIXABLE and item["reasons"]]


def _with_another_value(selection: Mapping[str, Json], item: Mapping[str, Json]) -> dict[str, Json] | None:
    """The better backend that would be taken if one field that an engine is free in had another value."""
    fields = {reason["code"] for reason in item["reasons"]}
    accepted = {reason.get("accepted") for reason in item["reasons"]}
    if (
        item["outcome"] != "rejected"
        or len(fields) != 1
        or not fields <= _FREE
        or len(accepted) != 1
        or None in accepted
    ):
        return None
    field, value = fields.pop(), selection["config"][item["reasons"][0]["code"]]
    message = f"backend {item['name']} stands before {selection['backend']} and refuses {field}={value}"
    remedy = f"{field}: {accepted.pop()}"
    return {"severity": "advice", "code": field, "subject": item["name"], "message": message, "remedy": remedy}


def _lost(selection: Mapping[str, Json], item: Mapping[str, Json]) -> dict[str, Json]:
    reason = reason_of(item)
    asked = item["name"] in selection["requested"]
    severity = "warning" if item["outcome"] in _ENVIRONMENT or asked else "advice"
    instead = f"; {selection['backend']} is used instead" if selection["backend"] else ""
    state = {"not_installed": "is not installed", "contract": "breaks the plugin contract"}
    became = state.get(item["outcome"], f"is lost ({item['phase']})")
    provenance = item["provenance"] or {}
    whose = f"{provenance.get('plugin')} ({provenance.get('distribution')} {provenance.get('version')})"
    told = reason["message"].partition("\n")[0]
    # A contract error begins with its plugin itself.
    sentence = told if told.startswith(whose) else f"backend {item['name']} {became}: {told}"
    message = f"{sentence}{instead}"
    remedy = remedy_for(reason, item["provenance"])
    return {"severity": severity, "code": reason["code"], "subject": item["name"], "message": message, "remedy": remedy}


def _layer(selection: Mapping[str, Json]) -> str:
    config = selection["config"]
    return f"head size {config['head_size']}, {config['num_heads']} heads, {config['dtype']}"
