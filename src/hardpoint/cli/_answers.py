"""The questions that a command's child process answers: plain data in, plain data out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hardpoint._inspection import examine
from hardpoint._machine_live import LiveMachine
from hardpoint._recomputation import changes_between, recomputing_machine, recorded_configs
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
    """A report, with the label of each selection; for a recorded machine's own layers also what has changed."""
    machine = build_machine(question["machine"])
    recorded: Json = None
    if question["configs"] is None:
        recorded = read_snapshot(question["machine"]["file"]).report.as_dict()
    labels: list[str] = []

    def configs(platform: Platform) -> Sequence[AttentionConfig]:
        if recorded is not None:
            return recorded_configs(recorded)
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
    changes = [] if recorded is None else [change._asdict() for change in changes_between(recorded, report)]
    return {"report": report, "labels": labels if recorded is None else None, "changes": changes}


def answer_snapshot(question: dict[str, Json]) -> Json:
    """A snapshot's data."""
    machine = build_machine(question["machine"])
    found = examine(lambda platform: (), machine=machine, kernels=False).platform
    configs = [] if found is None else [config for _, config in make_configs(question["configs"], found)]
    return dict(snapshot(configs, machine=machine, depth=question["depth"]).data)


def answer_matrix(question: dict[str, Json]) -> Json:
    """Each machine's devices, and for each config and device the selection."""
    from hardpoint._selecting import survey_backends

    devices: list[Json] = []
    rows: list[Json] = []
    reports: list[Json] = []
    for item in question["machines"]:
        machine = build_machine(item["machine"])
        labels: list[str] = []
        found = examine(lambda _: (), machine=machine, platform=question["platform"], depth=question["depth"])
        reports.append({"label": item["label"], "report": found.report.as_dict()})
        platform = found.platform
        if platform is None:
            continue
        made = make_configs(question["configs"], platform)
        labels = [label for label, _ in made]
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
    return {"devices": devices, "cells": rows, "reports": reports}


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
