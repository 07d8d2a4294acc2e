"""A platform's kernel import: once, the result kept, its losses told.

What is broken or incomplete, and what is required and absent, gives one WARNING; strict mode makes that the error.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, Final

from hardpoint._flight import SingleFlight
from hardpoint._kernel_import import KernelImporter, find_operator
from hardpoint._kernel_records import (
    KernelModule,
    KernelOutcome,
    KernelRecord,
    KernelReport,
    rejection_for,
    static_rejection_for,
)
from hardpoint._log import log_once, logger
from hardpoint._names import near_miss
from hardpoint._probing import Failure, attempt
from hardpoint._reasons import Phase, Provenance, Reason, ReasonCode
from hardpoint.errors import (
    ContractError,
    EnvironmentFailure,
    HardpointError,
    KernelError,
    MissingOperatorError,
    ResolutionInProgressError,
    ResolutionTimeoutError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hardpoint.platforms import Platform

IMPORT_TIMEOUT_SECONDS: Final = 300.0
"""How long a thread waits while another one imports the same kernel module."""
_CONTRACT_CODES: Final = frozenset({ReasonCode.CONTRACT, ReasonCode.INCOMPATIBLE_API})


class KernelState:
    """What one platform's kernel import has come to. Thread-safe; a fork keeps what is finished.

    `report` is None until every module has its record. A module's record, a failure too, is kept; a bug is not.
    """

    def __init__(self) -> None:
        self.report: KernelReport | None = None
        self._records: dict[str, KernelRecord] = {}
        self._flight: SingleFlight[KernelReport] = SingleFlight()

    def run(self, platform: Platform, *, inspecting: bool = False) -> KernelReport:
        """Import what has not been tried yet. `inspecting` records a bug, and ignores strict mode.

        Errors: `KernelError` (or `ContractError`) in strict mode; `ResolutionInProgressError` where a kernel module
        asks for its own import; a programming error of a module, as itself.
        """
        report = self.report
        if report is None:
            for key in (False, True):
                if (progress := self._flight.in_progress_here(key)) is not None:
                    raise _reentered(progress)
            report = self._flight.run(
                inspecting,
                lambda: self._run_now(platform, inspecting),
                timeout_seconds=IMPORT_TIMEOUT_SECONDS,
                reentered=_reentered,
                timed_out=_timed_out,
            )
        if not inspecting and (error := _strict_error(platform, report)) is not None:
            raise error from _cause(report)
        return report

    def _run_now(self, platform: Platform, inspecting: bool) -> KernelReport:  # noqa: FBT001  # private, one caller
        if self.report is not None:
            return self.report
        originals: dict[str, Exception] = {}
        strict = not inspecting and _is_strict(platform)
        importer = KernelImporter(
            platform, provenance_of(platform), self._records, originals if strict else None, inspecting=inspecting
        )
        try:
            report = KernelReport(modules=importer.run(lambda name: self._flight.note_progress(inspecting, name)))
            if platform.machine.live:
                _speak(platform, report)
            if not report.has_bug:
                self.report = report
            if strict and (error := _strict_error(platform, report)) is not None:
                raise error from originals.get(_first_lost(report).name) or _cause(report)
            return report
        finally:
            # They hold the frames in which the modules failed.
            originals.clear()

    def operator(self, platform: Platform, module: str, operator: str) -> Callable[..., Any]:  # Any: operators differ
        """An operator of an imported module, or of the imported one of a group. Imports the kernels if need be.

        `operator` is written as in `KernelModule.operators`. Errors: `MissingOperatorError`.
        """
        report = self.run(platform)
        imported = [record for record in report.named(module) if record.outcome is KernelOutcome.IMPORTED]
        if not imported:
            raise _missing_operator(platform, report, module, operator)
        name = imported[0].name
        found = attempt(
            lambda: find_operator(sys.modules.get(name), operator),
            phase=Phase.IMPORT_KERNELS,
            provenance=provenance_of(platform),
        )
        if isinstance(found, Failure):
            raise MissingOperatorError(
                f"operator {operator!r} of kernel module {name} cannot be used: {found.reason.message}",
                reasons=(found.reason,),
            )
        if found is None:
            loaded = sys.modules.get(name)
            close = near_miss(operator, dir(loaded)) if loaded is not None else None
            guess = f"; did you mean {close!r}?" if close else ""
            alone = "" if loaded is not None else ": it only registers them; ask for 'namespace::operator'"
            raise MissingOperatorError(
                f"kernel module {name} is imported and has no operator {operator!r}{alone}{guess}"
            )
        return found


def _lost(report: KernelReport) -> Iterator[tuple[str, KernelRecord]]:
    """A sentence for each loss: what is there and cannot be used, what is required and missing."""
    for unit in report.units():
        taken = next((record.name for record in unit if record.outcome is KernelOutcome.IMPORTED), None)
        required = any(record.required for record in unit)
        lost = [record for record in unit if record.is_lost]
        for record in lost:
            if taken is not None:
                yield f"{record.as_sentence()}; using {taken} instead", record
            else:
                yield record.as_sentence() + ("; the platform requires it" if required else ""), record
        if required and taken is None and not lost:
            sentences = "; ".join(record.as_sentence() for record in unit)
            yield f"{sentences}; the platform requires {'one of them' if len(unit) > 1 else 'it'}", unit[0]


def _first_lost(report: KernelReport) -> KernelRecord:
    return next(_lost(report))[1]


def _speak(platform: Platform, report: KernelReport) -> None:
    provenance = provenance_of(platform)
    told = set()
    for sentence, record in _lost(report):
        told.add(record.name)
        log_once(logger, logging.WARNING, "%s%s [%s]", sentence, _remedy(record.reason), provenance)
    for record in report.modules:
        if record.outcome is KernelOutcome.ABSENT and record.name not in told:
            log_once(logger, logging.INFO, "%s [%s]", record.as_sentence(), provenance)


def _strict_error(platform: Platform, report: KernelReport) -> KernelError | ContractError | None:
    if not platform.machine.live or not any(_lost(report)) or not _is_strict(platform):
        return None
    provenance = provenance_of(platform)
    losses = list(_lost(report))
    reasons = [record.reason for _, record in losses if record.reason is not None]
    text = "; ".join(f"{sentence}{_remedy(record.reason)}" for sentence, record in losses)
    text = f"{text} [{provenance}]; strict mode takes no loss"
    if reasons and reasons[0].code in _CONTRACT_CODES:
        return ContractError(text, plugin=provenance.plugin, code=reasons[0].code, remedy=reasons[0].remedy)
    return KernelError(text, reasons=reasons)


def _cause(report: KernelReport) -> BaseException | None:
    record = _first_lost(report)
    if record.reason is None or record.outcome is KernelOutcome.INCOMPLETE:
        return None
    return EnvironmentFailure(record.reason.message, code=record.reason.code, remedy=record.reason.remedy)


def _missing_operator(platform: Platform, report: KernelReport, module: str, operator: str) -> MissingOperatorError:
    reason = rejection_for(report, (module,))
    if reason is None:
        # Nothing speaks against it, and yet it is not imported: only there is that so.
        reason = Reason(
            code=ReasonCode.KERNEL_MISSING, message=f"kernel module {module} is not imported: the machine is not live"
        )
    return MissingOperatorError(
        f"operator {operator!r} is not available: {reason.message}{_remedy(reason)} [{provenance_of(platform)}]",
        reasons=(reason,),
    )


def _remedy(reason: Reason | None) -> str:
    return f" ({reason.remedy})" if reason is not None and reason.remedy else ""


def provenance_of(platform: Platform) -> Provenance:
    known: Provenance | None = getattr(platform, "_provenance", None)
    return known if known is not None else Provenance(plugin=f"platform/{platform.name}")


def _is_strict(platform: Platform) -> bool:
    settings: Any = getattr(platform, "_settings", None)
    if settings is None:
        from hardpoint._settings import read_settings

        settings = read_settings(platform.machine)
    return bool(settings.strict)


def _reentered(progress: str) -> HardpointError:
    return ResolutionInProgressError(
        f"kernel module {progress} asks for the platform's kernels while they are being imported; "
        "move that call out of the module's start-up, into a function"
    )


def _timed_out(progress: str) -> HardpointError:
    return ResolutionTimeoutError(
        f"waited {IMPORT_TIMEOUT_SECONDS:g} s for another thread to import kernel module {progress}"
    )


__all__ = [
    "KernelModule",
    "KernelOutcome",
    "KernelRecord",
    "KernelReport",
    "KernelState",
    "rejection_for",
    "static_rejection_for",
]
