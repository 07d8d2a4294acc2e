"""The report as plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def as_text(data: Mapping[str, Any]) -> str:
    """The report's data as lines for people: what is wrong comes with its remedy, next to what it concerns."""
    return "\n".join(_lines(data)) + "\n"


def _lines(data: Mapping[str, Any]) -> Iterator[str]:
    for bug in data["bugs"]:
        yield f"BUG in {bug['plugin']} ({bug['phase']}): {bug['message']}"
    for hint in data["hints"]:
        if hint["severity"] != "bug":
            yield f"{hint['severity']}: {hint['message']}"
            if hint["remedy"]:
                yield f"  -> {hint['remedy']}"
    machine = data["machine"]
    memory = machine["total_memory_bytes"]
    yield f"hardpoint {data['hardpoint']}, report schema {data['schema']}"
    yield (
        f"machine: {machine['system']} {machine['kernel']} {machine['architecture'] or '(unknown architecture)'}, "
        f"Python {machine['python']}, {machine['cpu_count'] or '?'} CPUs, "
        f"{'? ' if memory is None else f'{memory / 2**30:.1f} '}GiB"
    )
    if "error" in data["settings"]:
        yield f"settings: {data['settings']['error']}"
    else:
        for name, value in data["settings"]["variables"].items():
            yield f"setting: {name}={value}"
    for fault in data["discovery"]["faults"]:
        yield f"discovery fault: {fault['path']}: {fault['message']}"
    yield from _platform_lines(data)
    yield from _plugin_lines(data["plugins"])
    yield from _kernel_lines(data["kernels"])
    for selection in data["selections"]:
        yield from _selection_lines(selection)
    if data["fingerprint"] is not None:
        yield f"fingerprint: {data['fingerprint']['digest']}"


def _platform_lines(data: Mapping[str, Any]) -> Iterator[str]:
    resolution = data["resolution"]
    if data["override"] is not None:
        yield f"platform: {data['override']} (override_platform)"
    if resolution is None:
        yield "platform: not resolved yet"
        return
    fallback = ", as a fallback" if resolution["is_fallback"] else ""
    yield f"platform: {resolution['platform'] or 'NONE'} ({resolution['source']}{fallback})"
    for candidate in resolution["candidates"]:
        yield from _candidate_lines(candidate)
    if error := (data["platform"] or {}).get("error"):
        yield f"  its own description cannot be had: {error}"
    for device in (data["platform"] or {}).get("devices", []):
        capability = device["capability"]
        arch = "capability unknown" if capability is None else f"{capability['runtime']} {capability['arch']}"
        yield f"  device {device['index']}: {device['name']} ({arch})"


def _plugin_lines(plugins: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield f"plugins: {len(plugins)}"
    for plugin in plugins:
        brought = plugin["distribution"] or "unknown distribution"
        version = f" {plugin['version']}" if plugin["version"] else ""
        yield f"  {plugin['plugin']} ({brought}{version}): {plugin['outcome'].replace('_', ' ')}"
        for reason in plugin["reasons"]:
            yield from _reason_lines(reason, "    ")


def _kernel_lines(kernels: Mapping[str, Any] | None) -> Iterator[str]:
    if kernels is None:
        yield "kernels: not imported yet"
        return
    yield f"kernels: {kernels_state(kernels)}"
    for module in kernels["modules"]:
        yield f"  {module['name']}: {module['outcome'].replace('_', ' ')}"
        if module["reason"] is not None:
            yield from _reason_lines(module["reason"], "    ")


def kernels_state(kernels: Mapping[str, Any]) -> str:
    """What has become of them, in a word or two."""
    if not kernels["ok"]:
        return "NOT OK"
    outcomes = {module["outcome"] for module in kernels["modules"]}
    if not outcomes:
        return "none declared"
    # What is not run for the CPU's sake, or for another one of its group, says nothing of what is there.
    return "none is here, and none is required" if outcomes <= {"absent", "not_run"} and "absent" in outcomes else "ok"


def _selection_lines(selection: Mapping[str, Any]) -> Iterator[str]:
    fallback = ", as a fallback" if selection["is_fallback"] else ""
    backend = selection["backend"] or f"no selectable backend: {selection['note']}"
    yield f"{selection['kind']}: {backend} ({selection['source']}{fallback}, depth {selection['depth']})"
    shown = {name: value for name, value in selection["config"].items() if value not in (None, False)}
    yield "  for " + ", ".join(f"{name}={value}" for name, value in shown.items())
    for candidate in selection["candidates"]:
        yield from _candidate_lines(candidate)


def _candidate_lines(candidate: Mapping[str, Any]) -> Iterator[str]:
    provenance = candidate["provenance"]
    brought = ""
    if provenance is not None:
        brought = f" ({provenance['distribution'] or 'unknown distribution'} {provenance['version'] or ''})".replace(
            " )", ")"
        )
    yield f"  {candidate['name']}{brought}: {candidate['outcome'].replace('_', ' ')}"
    for reason in candidate["reasons"]:
        yield from _reason_lines(reason, "    ")


def _reason_lines(reason: Mapping[str, Any], indent: str) -> Iterator[str]:
    first, *more = reason["message"].splitlines() or [""]
    yield f"{indent}{first}"
    for line in more:
        yield f"{indent}  {line}"
    if reason.get("remedy"):
        yield f"{indent}-> {reason['remedy']}"
