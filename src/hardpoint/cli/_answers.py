"""The questions that a command's child process answers: plain data in, plain data out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hardpoint._inspection import examine
from hardpoint._machine_live import LiveMachine
from hardpoint._recomputation import changes_between, is_recorded, recomputing_machine, recorded_configs
from hardpoint._snapshot import read_snapshot, snapshot
from hardpoint.attention import AttentionConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint._machine import Machine
    from hardpoint.platforms import Platform

    Json = Any  # what JSON can hold


class IsolatingMachine(LiveMachine):
    """This computer, whose vendor libraries are asked in processes of their own unless the variable says otherwise."""

    def probe(
        self,
        key: str,
        target: str,
        *,
        arguments: Sequence[str | int | float | bool | None] = (),
        timeout_seconds: float | None = None,
        isolated: bool | None = None,
    ) -> Json:
        """As a `LiveMachine`."""
        if isolated is None and not (self.variable("HARDPOINT_PROBE") or "").strip():
            isolated = True
        return super().probe(key, target, arguments=arguments, timeout_seconds=timeout_seconds, isolated=isolated)


def answer(question: dict[str, Json]) -> Json:
    """The answer to a question; `what` is its kind. Errors: ours."""
    return {"examine": answer_examine, "matrix": answer_matrix, "snapshot": answer_snapshot}[question["what"]](question)


def answer_examine(question: dict[str, Json]) -> Json:
    """A report, with the label of each selection; of a recorded machine also what has changed."""
    machine = build_machine(question["machine"])
    labels: list[str] = []

    def configs(platform: Platform) -> Sequence[AttentionConfig]:
        if question["configs"] is None:
            return recorded_configs(_recorded(question["machine"]) or {})
        made = make_configs(question["configs"], platform)
        labels.extend(label for label, _ in made)
        return [config for _, config in made]

    examined = examine(
        configs,
        machine=machine,
        depth=question["depth"],
        platform=question["platform"],
        backend=question["backend"],
        kernels=question["kernels"],
    )
    report = examined.report.as_dict()
    has_labels = question["configs"] is not None
    return {
        "report": report,
        "labels": labels if has_labels else None,
        **_compare(question["machine"], report, question["parts"], labels if has_labels else None),
    }


def answer_snapshot(question: dict[str, Json]) -> Json:
    """A snapshot's data, and of a recorded machine what has changed."""
    machine = build_machine(question["machine"])
    found = examine(lambda platform: (), machine=machine, kernels=False).platform
    made = [] if found is None else make_configs(question["configs"], found)
    data = dict(snapshot([config for _, config in made], machine=machine, depth=question["depth"]).data)
    labels = [label for label, _ in made]
    return {"data": data, **_compare(question["machine"], data["report"], question["parts"], labels)}


def _recorded(described: dict[str, Json]) -> dict[str, Json] | None:
    """The report that was recorded of a machine; None: there is none to compare with."""
    return read_snapshot(described["file"]).report.as_dict() if described["kind"] == "recomputed" else None


def _compare(
    described: dict[str, Json], report: dict[str, Json], parts: Sequence[str], labels: Sequence[str] | None
) -> dict[str, Json]:
    """What has changed against the recorded report, and the layers that it has not decided about.

    `labels` None: the layers are the recorded ones, so that one which is not there any more is a change.
    """
    recorded = _recorded(described)
    if recorded is None:
        return {"changes": [], "uncompared": []}
    changes = changes_between(recorded, report, parts=parts, only_asked=labels is not None)
    uncompared = [
        label
        for label, selection in zip(labels or (), report["selections"], strict=False)
        if not is_recorded(selection["config"], recorded)
    ]
    return {"changes": [change._asdict() for change in changes], "uncompared": uncompared}


def answer_matrix(question: dict[str, Json]) -> Json:
    """Each machine's devices, and for each config and device the selection."""
    from hardpoint._selecting import survey_backends

    devices: list[Json] = []
    rows: list[Json] = []
    reports: list[Json] = []
    changes: list[Json] = []
    uncompared: list[str] = []
    for item in question["machines"]:
        machine = build_machine(item["machine"])
        labels = [config["label"] for config in question["configs"]]
        is_compared = item["machine"]["kind"] == "recomputed"

        def recorded_layers(platform: Platform, is_compared: bool = is_compared) -> Sequence[AttentionConfig]:  # noqa: FBT001  # bound here
            # Recorded was what all devices get together, and that is what it can be compared with.
            return [config for _, config in make_configs(question["configs"], platform)] if is_compared else ()

        found = examine(
            recorded_layers,
            machine=machine,
            platform=question["platform"],
            backend=question["backend"] if is_compared else None,
            depth=question["depth"],
        )
        compared = _compare(item["machine"], found.report.as_dict(), question["parts"], labels)
        changes += compared["changes"]
        uncompared += compared["uncompared"]
        reports.append({"label": item["label"], "report": found.report.as_dict()})
        platform = found.platform
        if platform is None:
            continue
        made = make_configs(question["configs"], platform)
        for device in _distinct(platform):
            shown = platform.device(device[0])
            devices.append(
                {
                    "machine": item["label"],
                    "platform": platform.name,
                    "indices": device,
                    "name": shown.name,
                    "capability": None if shown.capability is None else shown.capability.as_dict(),
                }
            )
            for label, (_, config) in zip(labels, made, strict=True):
                selection = survey_backends(
                    platform, config, depth=question["depth"], requested=question["backend"], devices=[device[0]]
                )
                rows.append({"device": len(devices) - 1, "config": label, "selection": selection.as_dict()})
    return {"devices": devices, "cells": rows, "reports": reports, "changes": changes, "uncompared": uncompared}


def _distinct(platform: Platform) -> list[list[int]]:
    """The indices of the platform's devices, alike ones together."""
    groups: dict[object, list[int]] = {}
    for device in platform.devices:
        groups.setdefault((device.name, device.capability), []).append(device.index)
    return list(groups.values())


def build_machine(described: dict[str, Json]) -> Machine:
    """The machine of a question."""
    if described["kind"] == "simulated":
        from hardpoint import simulate

        return simulate(described["profiles"], distributions=described["distributions"])
    if described["kind"] == "recomputed":
        return recomputing_machine(read_snapshot(described["file"]))
    return IsolatingMachine()


def make_configs(described: list[Json], platform: Platform) -> list[tuple[str, AttentionConfig]]:
    """The configs of a question, with their labels. What leaves the dtype open gets the platform's own."""
    found = []
    for item in described:
        fields = dict(item["fields"])
        if fields.get("dtype") is None:
            supported = platform.supported_dtypes
            fields["dtype"] = "bfloat16" if "bfloat16" in supported else supported[0]
        found.append((item["label"], AttentionConfig(**fields)))
    return found
