"""The sections that plugins add to the report. One that fails is a line, not the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hardpoint._backend_spec import ReportSection
from hardpoint._probing import Failure, attempt
from hardpoint._reasons import Outcome, Phase, plain_text
from hardpoint.errors import ContractError

if TYPE_CHECKING:
    from hardpoint._machine import Machine
    from hardpoint._plugins import LoadedPlugin, Registry

Json = Any  # what JSON can hold


def ask_for_sections(registry: Registry, loaded: LoadedPlugin, machine: Machine) -> tuple[list[Json], list[Json]]:
    """A plugin's sections as data, and its bug if it has one there."""
    provenance = loaded.provenance

    def ask() -> list[Json]:
        return _checked(registry.call(loaded.plugin, "hardpoint_report", machine=machine), str(provenance))

    found = attempt(ask, phase=Phase.REPORT, provenance=provenance, inspecting=True)
    if not isinstance(found, Failure):
        return [{"plugin": provenance.plugin, **section} for section in found], []
    section = {"plugin": provenance.plugin, "title": loaded.name, "lines": [], "error": found.reason.message}
    bug = {"plugin": provenance.plugin, "phase": str(found.phase), **found.reason.as_dict()}
    return [section], [bug] if found.outcome is Outcome.BUG else []


def variable_text(machine: Machine, name: str) -> str:
    """A variable as a section shows it: its value in quotes, for it may be empty or have spaces."""
    value = machine.variable(name)
    return "not set" if value is None else repr(value)


def _checked(answer: object, plugin: str) -> list[Json]:
    if answer is None:
        return []
    items = list(answer) if isinstance(answer, (list, tuple)) else [answer]
    sections = []
    for item in items:
        if not isinstance(item, ReportSection):
            raise ContractError(f"{plugin}: hardpoint_report() returned {answer!r}; expected a list of ReportSection")
        lines = [_line(line, plugin) for line in item.lines]
        sections.append({"title": plain_text(item.title), "lines": lines, "error": None})
    return sections


def _line(line: object, plugin: str) -> list[str]:
    if not isinstance(line, (list, tuple)) or len(line) != 2:
        raise ContractError(f"{plugin}: hardpoint_report() has a line {line!r}; expected (label, value)")
    return [plain_text(part) for part in line]
