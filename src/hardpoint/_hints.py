"""Hints: what is wrong or could be better, each with the one thing to do. A pure function of a report's data.

What the doctor says first. The order is: bugs of plugins, what stops, what is lost, what is merely better.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from hardpoint._hint_remedies import reason_of, remedy_for
from hardpoint._hints_backends import backend_hints
from hardpoint._settings import DISABLED_PLUGINS, PLUGINS
from hardpoint._torch_build import UNKNOWN_BUILD_REMEDY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Json = Any  # what JSON can hold

SEVERITIES: Final = ("bug", "error", "warning", "advice")
_LOST: Final = ("failed", "contract", "untrusted", "unusable", "blocked", "not_installed")


def find_hints(data: Mapping[str, Json]) -> list[dict[str, Json]]:
    """The hints of a report: `severity`, `code`, `subject` (plugin, variable or the like), `message`, `remedy`."""
    found: list[dict[str, Json]] = []
    for source in (
        _bugs,
        _settings,
        _no_platform,
        _named_plugins,
        _platforms,
        _hardware,
        _devices,
        _kernels,
        _cache,
        backend_hints,
        _observations,
        _plugins,
        _discovery,
        _variables,
    ):
        found += source(data)
    unique = [hint for number, hint in enumerate(found) if hint not in found[:number]]
    return sorted(unique, key=lambda hint: SEVERITIES.index(hint["severity"]))


def _hint(severity: str, code: str, subject: str, message: str, remedy: str | None) -> dict[str, Json]:
    return {"severity": severity, "code": code, "subject": subject, "message": message, "remedy": remedy}


def _bugs(data: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    for bug in data["bugs"]:
        plugin = bug["plugin"]
        brought = next((item for item in data["plugins"] if item["plugin"] == plugin), None)
        whose = _provenance(brought) if brought is not None else plugin
        what = bug["message"].partition("\n")[0]
        remedy = bug.get("remedy") or (
            f"report it to the authors; until then: HARDPOINT_DISABLED_PLUGINS={plugin}"
            if "/" in plugin
            else f"report it to the authors of {plugin}"
        )
        yield _hint("bug", bug["code"], plugin, f"{whose} has a bug ({bug['phase']}): {what}", remedy)


def _settings(data: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    if "error" in data["settings"]:
        yield _hint("error", "settings", "settings", data["settings"]["error"], "correct the variable, or unset it")


def _no_platform(data: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    resolution = data["resolution"]
    if resolution is None or resolution["platform"] is not None:
        return
    rivals = [item for item in resolution["candidates"] if item["outcome"] == "valid"]
    if len(rivals) > 1:
        from hardpoint.hookspecs import Rank

        # Those of the best rank: a vendor's goes before ours, and the CPU is nobody's rival.
        ranks = [rank.name.lower().replace("_", "-") for rank in Rank]
        best = min((item.get("rank_reason") for item in rivals), key=lambda rank: (*ranks, rank).index(rank))
        rivals = [item for item in rivals if item.get("rank_reason") == best]
        listed = " and ".join(_provenance(item["provenance"]) for item in rivals)
        others = ", ".join(item["name"] for item in rivals[1:])
        # Another machine has variables of its own, which are in its profile or its snapshot.
        remedy: str | None = (
            f"set HARDPOINT_PLATFORM={rivals[0]['name']} (or {others}); "
            f"where the machine is simulated or recorded: --platform {rivals[0]['name']}"
        )
        message = f"two plugins are at odds: {listed} are both usable, and neither goes before the other"
        yield _hint("error", "duplicate", "platform", message, remedy)
    elif not resolution["candidates"] and not data["plugins"]:
        remedy = "pip install hardpoint-cpu (or the plugin of your accelerator)"
        yield _hint("error", "not_installed", "platform", "no platform plugin is installed", remedy)
    else:
        yield _nothing_usable(data, resolution)


def _nothing_usable(data: Mapping[str, Json], resolution: Mapping[str, Json]) -> dict[str, Json]:
    requested = resolution["requested"]
    asked = f" ({resolution['source']}: {', '.join(requested)})" if requested else ""
    first: str = (resolution.get("error") or "").partition("\n")[0].rstrip(":")
    message = first or f"no platform can be used here{asked}"
    installed = [item["name"] for item in data["plugins"] if item["plugin"].startswith("platform/")]
    # What has failed has a hint of its own.
    absent = [item for item in resolution["candidates"] if item["outcome"] == "absent" and item["reasons"]]
    helps: list[str | None] = []
    if requested or len(absent) == 1:
        message += "".join(f"; {item['name']}: {_first_line(reason_of(item))}" for item in absent)
        helps += (remedy_for(reason_of(item), item["provenance"]) for item in absent)
    others = [name for name in installed if name not in requested]
    if requested and others:
        how = "ask for" if resolution["source"] == "argument" else f"set {resolution['source']} to"
        helps.append(f"{how} one of: {', '.join(others)}")
    elif blocked := [item for item in resolution["candidates"] if item["outcome"] == "blocked" and item["reasons"]]:
        helps += [remedy_for(reason_of(item), item["provenance"]) for item in blocked if item["name"] == "cpu"]
    elif "cpu" not in installed:
        helps.append("pip install hardpoint-cpu, which always works")
    remedy = "; or ".join(dict.fromkeys(filter(None, helps))) or None
    return _hint("error", "no_device", "platform", message, remedy)


def _platforms(data: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    """Every platform that is lost, with what is used in its place."""
    resolution = data["resolution"]
    if resolution is None:
        return
    chosen = resolution["platform"]
    left_out = [] if chosen is not None else _left_out_together(resolution)
    if left_out:
        labels = [item["provenance"]["plugin"] for item in left_out]
        message = f"HARDPOINT_PLUGINS leaves out {', '.join(labels)}"
        yield _hint("warning", "blocked", PLUGINS, message, f"add what is wanted of them to {PLUGINS}, or unset it")
    for item in resolution["candidates"]:
        if item in left_out:
            continue
        if item["name"] == chosen or item["outcome"] not in _LOST or not item["reasons"]:
            continue
        reason = reason_of(item)
        asked = item["name"] in resolution["requested"]
        if item["outcome"] == "not_installed" and chosen is None:
            # Already said: it is why there is no platform.
            continue
        if item["outcome"] == "blocked" and chosen is not None and not asked:
            # The user's own word.
            continue
        whose = _provenance(item["provenance"]) if item["provenance"] else f"platform {item['name']}"
        instead = f"; {chosen} is used instead" if chosen is not None else ""
        told = _first_line(reason)
        # A contract error begins with its plugin itself.
        sentence = told if told.startswith(whose) else f"{whose} {_what_became(item)}: {told}"
        message = f"{sentence}{instead}"
        yield _hint("warning", reason["code"], item["name"], message, remedy_for(reason, item["provenance"]))
    for item in resolution["candidates"]:
        if item["outcome"] == "chosen":
            for reason in item["reasons"]:
                text = f"platform {chosen}: {_first_line(reason)}"
                # Of a simulated machine nobody has said how its torch is built, and it may be as it should.
                is_unsaid = reason.get("remedy") == UNKNOWN_BUILD_REMEDY
                is_advice = is_unsaid or reason["code"] in ("not_installed", "missing_dependency")
                severity = "advice" if is_advice else "warning"
                yield _hint(severity, reason["code"], chosen, text, remedy_for(reason, item["provenance"]))


def _left_out_together(resolution: Mapping[str, Json]) -> list[Json]:
    """The platforms that are not among the allowed ones, where there are several; who asked for one hears of it."""
    found = [
        item
        for item in resolution["candidates"]
        if item["outcome"] == "blocked"
        and item["provenance"]
        and item["name"] not in resolution["requested"]
        and any(reason["message"].endswith(f"is not among {PLUGINS}") for reason in item["reasons"])
    ]
    return found if len(found) > 1 else []


def _hardware(data: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    """Hardware whose plugin is missing, or whose plugin does not see it, or that stands idle."""
    resolution = data["resolution"] or {"platform": None, "candidates": [], "requested": []}
    outcomes = {item["name"]: item["outcome"] for item in resolution["candidates"]}
    installed = {item["name"] for item in data["plugins"] if item["plugin"].startswith("platform/")}
    for item in data["hardware"]:
        name, seen = item["platform"], item["evidence"][0]
        here = f"{item['name']} is here ({seen})"
        used = f"; {resolution['platform']} is used instead" if resolution["platform"] else ""
        if name == resolution["platform"]:
            continue
        outcome = outcomes.get(name)
        if name not in installed:
            distribution = item["distribution"]
            remedy: str | None = "ask its vendor for a hardpoint plugin"
            if distribution:
                remedy = f"pip install {distribution}"
            yield _hint("warning", "not_installed", name, f"{here} and no plugin for it is installed{used}", remedy)
        elif outcome in ("absent", "blocked"):
            reason = reason_of(next(entry for entry in resolution["candidates"] if entry["name"] == name))
            why = "does not see it" if outcome == "absent" else "is left out"
            message = f"{here} and platform {name} {why}: {_first_line(reason)}{used}"
            yield _hint("warning", reason["code"], name, message, reason.get("remedy") or item["remedy"])
        elif outcome is None and resolution["platform"]:
            asked = f"{resolution['source']} asks for {', '.join(resolution['requested'])}"
            remedy = f"unset {resolution['source']}" if resolution["source"] != "argument" else None
            yield _hint("advice", "other", name, f"{here} and stands idle: {asked}", remedy)


def _devices(data: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    """Masks that hide devices, and limits on the CPU."""
    platform = data["platform"]
    if platform is None or "error" in platform:
        return
    seen = next((item["count"] for item in data["hardware"] if item["platform"] == platform["name"]), None)
    count = len(platform["devices"])
    masks = {name: value for name, value in platform.get("masks", {}).items() if value is not None}
    if masks and seen is not None and count < seen:
        listed = " and ".join(f"{name}={value}" for name, value in masks.items())
        message = f"{listed} hides {seen - count} of {seen} devices"
        yield _hint("advice", "masked", platform["name"], message, f"unset {' and '.join(masks)} to use all of them")
    total = data["machine"]["cpu_count"]
    for device in platform["devices"]:
        usable, quota = device["properties"].get("usable_cpus"), device["properties"].get("cpu_quota")
        if isinstance(usable, int) and total is not None and usable < total:
            limited = isinstance(quota, (int, float)) and quota < total
            why = f"a cgroup quota of {quota:g} CPUs" if limited else "the affinity mask"
            remedy = "raise the container's CPU limit" if limited else "widen the mask (taskset, cpuset, --cpuset-cpus)"
            message = f"this process may use {usable} of {total} CPUs: {why}"
            yield _hint("advice", "other", platform["name"], message, f"{remedy}, if it is not meant so")


def _kernels(data: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    kernels = data["kernels"]
    if kernels is None:
        return
    for module in kernels["modules"]:
        reason = module["reason"]
        if module["bug"] or reason is None or module["outcome"] not in ("broken", "incomplete", "absent"):
            continue
        if module["outcome"] == "absent" and not module["required"]:
            # Optional, but what should have brought it is there. Where nothing of its group was imported, the backend
            # that is lost by it says so.
            others = [other["outcome"] for other in kernels["modules"] if other["group"] == module["group"]]
            if reason["code"] != "kernel_missing" or (module["group"] is not None and "imported" not in others):
                continue
        severity = "error" if module["required"] and not kernels["ok"] else "warning"
        message = f"kernel module {module['name']} is {module['outcome']}: {_first_line(reason)}"
        yield _hint(severity, reason["code"], module["name"], message, remedy_for(reason, None, module["name"]))


def _observations(data: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    for item in data["observations"]:
        yield _hint("warning", "contract", item["plugin"], f"{item['plugin']} {item['what']}", item["remedy"])


def _plugins(data: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    """What is odd about plugins; what has become of platforms and of a selection's backends is said elsewhere."""
    spoken = {item["name"] for item in (data["resolution"] or {"candidates": []})["candidates"]}
    considered = {item["name"] for selection in data["selections"] for item in selection["candidates"]}
    for plugin in data["plugins"]:
        kind, _, name = plugin["plugin"].partition("/")
        known = spoken if kind == "platform" else considered
        is_lost = plugin["outcome"] in _LOST and name not in known and plugin["outcome"] != "blocked"
        whose = _provenance(plugin)
        for reason in plugin["reasons"]:
            if plugin["outcome"] == "loaded" or is_lost:
                told = _first_line(reason)
                text = told if told.startswith(whose) else f"{whose}: {told}"
                severity = "warning" if is_lost else "advice"
                yield _hint(severity, reason["code"], plugin["plugin"], text, remedy_for(reason, plugin))


def _discovery(data: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    for fault in data["discovery"]["faults"]:
        remedy = "reinstall the distribution that it belongs to, or delete it"
        yield _hint("warning", fault["code"], fault["path"], f"broken metadata: {fault['message']}", remedy)


def _named_plugins(data: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    """What is disabled by a name that no plugin has, and what is allowed by one that looks mistyped.

    To allow a plugin that this machine does not have is no mistake.
    """
    from hardpoint._names import normalise_distribution

    distributions = {normalise_distribution(item["distribution"]) for item in data["plugins"] if item["distribution"]}
    known = sorted({item["plugin"] for item in data["plugins"]} | distributions)
    for key, variable in (("plugins", PLUGINS), ("disabled_plugins", DISABLED_PLUGINS)):
        named = data["settings"].get(key, ())
        for name in named:
            meant = None if name in known else _meant(name, [item for item in known if item not in named])
            if name in known or (meant is None and variable == PLUGINS):
                continue
            remedy = f"write {meant}" if meant else f"take it out of {variable}"
            what = f"{variable} names {name!r}, which is neither an installed plugin nor its distribution"
            yield _hint("warning", "not_installed", variable, what, remedy)


def _meant(name: str, known: Sequence[str]) -> str | None:
    """The label that a name most likely stands for: a bare name is one of either kind's."""
    import difflib

    for item in known:
        if item.partition("/")[2] == name:
            return item
    head, sign, tail = re.match(r"(?:(.*?)([-/]))?(.*)", name).groups("")  # type: ignore[union-attr]  # matches anything
    # What all begin with would make any two alike.
    tails = {item.removeprefix(head + sign): item for item in known if item.startswith(head + sign)}
    return next((tails[found] for found in difflib.get_close_matches(tail, list(tails), 1, 0.75)), None)


def _variables(data: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    for variable in data["variables"]:
        if variable["owner"] is None:
            meant = variable["meant"]
            remedy = f"write {meant}" if meant else f"unset {variable['name']}"
            yield _hint("warning", "other", variable["name"], f"{variable['name']} {variable['description']}", remedy)


def _cache(data: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    error = data["cache"]["error"]
    if error is not None:
        message = f"nothing can be cached, so what compiles kernels may fail: {error['message']}"
        yield _hint("warning", error["code"], "cache", message, error.get("remedy"))
    elif data["cache"]["is_temporary"]:
        message = (
            "HOME is not set or not this user's, so kernels are cached in a temporary directory: "
            f"{data['cache']['directory']}"
        )
        yield _hint("advice", "other", "cache", message, "set HARDPOINT_CACHE_DIR to a directory that stays")


def _what_became(item: Mapping[str, Json]) -> str:
    return {
        "failed": f"failed ({item['phase']})",
        "contract": "breaks the plugin contract",
        "untrusted": "is not trusted",
        "unusable": "cannot be used",
        "blocked": "is left out",
        "not_installed": "is not installed",
    }[item["outcome"]]


def _provenance(item: Mapping[str, Json]) -> str:
    if not item.get("distribution"):
        return f"{item['plugin']} (unknown distribution)"
    return f"{item['plugin']} ({item['distribution']} {item['version'] or 'of unknown version'})"


def _first_line(reason: Mapping[str, Json]) -> str:
    text: str = reason["message"]
    return text.partition("\n")[0]
