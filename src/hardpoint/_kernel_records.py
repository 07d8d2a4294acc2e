"""Kernel modules as data: what a platform declares, what became of each, and what that means for a backend."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from hardpoint._importing import Target
from hardpoint._probing import describe_error
from hardpoint._reasons import Reason, ReasonCode
from hardpoint.errors import ContractError, NotRecorded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hardpoint._machine import Machine

LISTING: Final = "kernel_modules()"
"""The name of the record that stands for the list of modules itself, where that could not be made."""

_OPERATOR: Final = re.compile(r"[\w.]+(::?[\w.]+)?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelModule:
    """A native module that a platform may import.

    - `name`: its import name (``package._ext``).
    - `required`: without it the platform is not whole. A group is required if one of its modules is.
    - `operators`: what it promises: ``name`` is an attribute of the module, ``namespace::operator`` a torch operator,
      ``package.module:attribute`` an attribute elsewhere, for a module that registers what it has.
    - `benign_messages`: parts of an `ImportError`'s text that mean success: a library that registers its operators when
      it is loaded and exports no init function.
    - `group`: alternatives. The first that can be imported, with all its operators, is taken; later ones are not run.
    - `distribution`: which distribution brings it, for the remedy.
    - `unsupported`: why it is not even tried on this machine.
    - `setup`: lazy ``"module:function"``, called without arguments right before the import of a module that is there
      (it asks the operating system for AMX). An environment failure in it makes the module broken.

    Errors: `ContractError` for a value that means nothing.
    """

    name: str
    required: bool = False
    operators: tuple[str, ...] = ()
    benign_messages: tuple[str, ...] = ()
    group: str | None = None
    distribution: str | None = None
    unsupported: Reason | None = None
    setup: str | None = None

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise ContractError(f"kernel module {self.name!r}: {'; '.join(problems)}")

    def _problems(self) -> Iterator[str]:
        # A plugin's author need not use a type checker.
        values: dict[str, Any] = {member.name: getattr(self, member.name) for member in fields(self)}
        if not isinstance(values["name"], str) or not all(map(str.isidentifier, values["name"].split("."))):
            yield "name is no import name"
        for member in ("operators", "benign_messages"):
            value = values[member]
            if not isinstance(value, tuple) or not all(isinstance(item, str) and item.strip() for item in value):
                # A plain string would be taken letter by letter, and an empty message would excuse every failure.
                yield f"{member} is {value!r}; expected a tuple of texts"
            elif member == "operators" and (odd := [item for item in value if not _OPERATOR.match(item)]):
                yield f"operator {odd[0]!r} is none of 'name', 'namespace::operator' and 'package.module:attribute'"
        if values["unsupported"] is not None and not isinstance(values["unsupported"], Reason):
            yield f"unsupported is {self.unsupported!r}; expected a Reason"
        setup = values["setup"]
        if setup is not None and not (isinstance(setup, str) and (target := Target.parse(setup)) and target.attributes):
            yield f"setup is {setup!r}; expected 'package.module:function'"

    @property
    def own_modules(self) -> tuple[str, ...]:
        """Its name and its parent packages': one of these missing means absent, any other a missing dependency."""
        return Target(self.name, ()).modules


class KernelOutcome(StrEnum):
    """What became of a kernel module."""

    IMPORTED = "imported"
    ABSENT = "absent"
    """It, or a package that it lies in, is not there."""
    BROKEN = "broken"
    """It is there and this machine cannot load it, or its `setup` failed."""
    INCOMPLETE = "incomplete"
    """It was imported and lacks an operator that it promises."""
    NOT_RUN = "not_run"
    """It was not tried: unsupported here, another of its group was taken, or the machine is not live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRecord:
    """What became of one kernel module. `reason` None: nothing speaks against it. `bug`: met while inspecting."""

    name: str
    outcome: KernelOutcome
    required: bool = False
    group: str | None = None
    reason: Reason | None = None
    missing_operators: tuple[str, ...] = ()
    file: str | None = None
    bug: bool = False
    seconds: float | None = field(default=None, compare=False)

    @property
    def is_there(self) -> bool:
        """Whether it is imported; on a machine that is not live: whether nothing speaks against it."""
        return self.outcome is KernelOutcome.IMPORTED or (self.outcome is KernelOutcome.NOT_RUN and self.reason is None)

    @property
    def is_lost(self) -> bool:
        """Whether it is there and cannot be used."""
        return self.outcome in (KernelOutcome.BROKEN, KernelOutcome.INCOMPLETE)

    def describe(self) -> str:
        """One line: ``package._ext: broken: ImportError: …``."""
        label = f"{'BUG: ' if self.bug else ''}{self.outcome.replace('_', ' ')}"
        return f"{self.name}: {label}" + (f": {self.reason.message}" if self.reason is not None else "")

    def as_sentence(self) -> str:
        """``kernel module package._ext is broken: ImportError: …``."""
        words = "not imported" if self.outcome is KernelOutcome.NOT_RUN else str(self.outcome)
        reason = f": {self.reason.message}" if self.reason is not None else ""
        what = "the list of kernel modules" if self.name == LISTING else f"kernel module {self.name}"
        return f"{what} is {words}{reason}"

    def as_dict(self) -> dict[str, Any]:  # Any: JSON
        return {
            "name": self.name,
            "outcome": str(self.outcome),
            "required": self.required,
            "group": self.group,
            "reason": None if self.reason is None else self.reason.as_dict(),
            "missing_operators": list(self.missing_operators),
            "file": self.file,
            "bug": self.bug,
            "seconds": self.seconds,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelReport:
    """What `Platform.import_kernels` found, module by module, in the platform's order."""

    modules: tuple[KernelRecord, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every required module, and one of every required group, is there."""
        return all(
            any(record.is_there for record in unit) for unit in self.units() if any(record.required for record in unit)
        )

    @property
    def has_bug(self) -> bool:
        """Whether a module's own start-up has a programming error; recorded only while inspecting."""
        return any(record.bug for record in self.modules)

    def units(self) -> list[tuple[KernelRecord, ...]]:
        """The records by group; a module without a group is alone."""
        found: dict[tuple[str | None, str], list[KernelRecord]] = {}
        for record in self.modules:
            found.setdefault((record.group, "" if record.group is not None else record.name), []).append(record)
        return [tuple(unit) for unit in found.values()]

    def named(self, name: str) -> tuple[KernelRecord, ...]:
        """The module of that name, or the modules of that group."""
        own = tuple(record for record in self.modules if record.name == name)
        return own or tuple(record for record in self.modules if record.group == name)

    def names(self) -> list[str]:
        """Every name that a backend or engine may ask for: modules, then groups."""
        groups = [record.group for record in self.modules if record.group is not None]
        return list(dict.fromkeys([*(record.name for record in self.modules if record.name != LISTING), *groups]))

    def describe(self) -> str:
        """One line per module; bugs first."""
        return "\n".join(record.describe() for record in sorted(self.modules, key=lambda record: not record.bug))

    def as_dict(self) -> dict[str, Any]:  # Any: JSON
        return {"ok": self.ok, "modules": [record.as_dict() for record in self.modules]}


def rejection_for(report: KernelReport, wanted: Sequence[str]) -> Reason | None:
    """Why a backend that needs these modules or groups is rejected, repeating the original reasons. None: fine."""
    against = [reason for name in wanted if (reason := _against(report, name)) is not None]
    if len(against) <= 1:
        return against[0] if against else None
    return replace(
        against[0],
        message="; ".join(reason.message for reason in against),
        requested=tuple(name for reason in against for name in _texts(reason.requested)),
        remedy=_join_remedies(against),
    )


def static_rejection_for(
    platform_modules: Sequence[KernelModule], machine: Machine, wanted: Sequence[str]
) -> Reason | None:
    """The same before anything was imported: what the platform and the machine's metadata say against the modules."""
    if not wanted:
        return None
    known = {name for module in platform_modules for name in (module.name, module.group)}
    modules = platform_modules
    if known.issuperset(wanted):
        modules = [module for module in platform_modules if module.name in wanted or module.group in wanted]
    return rejection_for(KernelReport(modules=static_records(modules, machine)), wanted)


def static_records(modules: Iterable[KernelModule], machine: Machine) -> tuple[KernelRecord, ...]:
    """Every module as `NOT_RUN`, with what speaks against it without importing it."""
    modules = tuple(modules)
    # The alternatives of a group come in one distribution, and a live machine looks for it anew at each question.
    distributions = {module.distribution for module in modules if module.distribution and module.unsupported is None}
    against = {name: _against_distribution(name, machine) for name in distributions}
    return tuple(
        KernelRecord(
            name=module.name,
            outcome=KernelOutcome.NOT_RUN,
            required=module.required,
            group=module.group,
            reason=module.unsupported or against.get(module.distribution or ""),
        )
        for module in modules
    )


def _against_distribution(distribution: str, machine: Machine) -> Reason | None:
    try:
        if machine.distribution_version(distribution) is not None:
            return None
    except NotRecorded as error:
        return Reason(code=error.code, message=describe_error(error))
    return Reason(
        code=ReasonCode.NOT_INSTALLED,
        message=f"{distribution} is not installed",
        remedy=f"pip install {distribution}",
    )


def _against(report: KernelReport, name: str) -> Reason | None:
    records = report.named(name)
    if any(record.is_there for record in records):
        return None
    reasons = [record.reason for record in records if record.reason is not None]
    if all(record.outcome is KernelOutcome.NOT_RUN for record in records):
        lacking = next((reason for reason in reasons if reason.code is ReasonCode.NOT_INSTALLED), None)
        if lacking is not None:
            # Nothing was tried: the metadata alone says that their package is not there.
            message = records[0].as_sentence() if len(records) == 1 else lacking.message
            return replace(lacking, message=message, requested=name)
    if not records:
        # Where the list itself could not be made, that is the original reason.
        reasons = [record.reason for record in report.named(LISTING) if record.reason is not None]
        known = ", ".join(report.names()) or "none"
        message = f"no kernel module or group is called {name!r}; the platform declares: {known}"
        message += "".join(f"; its list of kernel modules failed: {reason.message}" for reason in reasons)
    elif len(records) == 1:
        message = records[0].as_sentence()
    else:
        message = f"no kernel module of group {name} is imported: {_describe_together(records)}"
    return Reason(
        code=ReasonCode.KERNEL_MISSING,
        message=message,
        requested=name,
        remedy=_join_remedies(reasons),
        detail=next((reason.detail for reason in reasons if reason.detail), None),
    )


def _describe_together(records: Sequence[KernelRecord]) -> str:
    """As `KernelRecord.describe`; what is true of several is said once."""
    names: dict[str, list[str]] = {}
    for record in records:
        names.setdefault(record.describe().removeprefix(record.name), []).append(record.name)
    return "; ".join(f"{', '.join(alike)}{text}" for text, alike in names.items())


def _join_remedies(reasons: Iterable[Reason]) -> str | None:
    return "; ".join(dict.fromkeys(reason.remedy for reason in reasons if reason.remedy)) or None


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)
