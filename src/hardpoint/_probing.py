"""The failure rule. Everything that can fail because of the machine goes through `attempt`, on every platform.

An environment failure (`ImportError`, `OSError`, our `EnvironmentFailure`) becomes a `Failure` record, and the next
candidate is tried; a contract error too. Any other exception is a bug: it propagates as itself, with a note that says
whose it is. Records hold text only, so that nothing which the failing frames held stays alive.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, TypeVar

from hardpoint._reasons import Candidate, Outcome, Phase, Provenance, Reason, ReasonCode
from hardpoint._say import say_debug
from hardpoint.errors import ContractError, EnvironmentFailure, HardpointError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

_T = TypeVar("_T")

_PERMISSION_ERRNOS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
# What the dynamic loader of each system says; it gives no other handle.
_MISSING_LIBRARY: Final = ("cannot open shared object file", "Library not loaded", "DLL load failed")
_BROKEN_LIBRARY: Final = (
    "file too short",
    "invalid ELF header",
    "wrong ELF class",
    "undefined symbol",
    "symbol not found",
    "not a mach-o file",
    "incompatible architecture",
    "is not a valid Win32 application",
    "does not define module export function",
)
_CIRCULAR: Final = ("partially initialized module", "most likely due to a circular import")


_BLAME = "hardpoint: raised by "

_MAX_TEXT = 4000
"""Characters kept of what an exception says; a traceback may have ten times as many."""
_MAX_DETAIL = 10 * _MAX_TEXT


class Failure(NamedTuple):
    """What went wrong, as text. `outcome` is FAILED, CONTRACT or (while inspecting) BUG."""

    outcome: Outcome
    phase: Phase
    reason: Reason

    def as_candidate(self, name: str, provenance: Provenance | None, rank_reason: str | None = None) -> Candidate:
        return Candidate(
            name=name,
            outcome=self.outcome,
            reasons=(self.reason,),
            provenance=provenance,
            phase=self.phase,
            rank_reason=rank_reason,
        )

    def as_cause(self) -> HardpointError:
        """An exception to raise from, where the original one is gone: failures are kept as text."""
        if self.outcome is Outcome.CONTRACT:
            return ContractError(self.reason.message, code=self.reason.code, remedy=self.reason.remedy)
        return EnvironmentFailure(self.reason.message, code=self.reason.code, remedy=self.reason.remedy)


if TYPE_CHECKING:

    class Watcher(Protocol):
        """Told whenever a plugin's code begins and ends, so that it is known whose code a process died in."""

        def begin(self, provenance: Provenance, phase: Phase, what: str) -> None:
            """Before the code runs. Raises `Replayed` to answer in its place."""

        def end(self) -> None:
            """After it has returned or raised; never after `SystemExit` and the like."""


class Replayed(Exception):
    """What is already known of a step that must not be run again, because it ended the process that ran it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason.message)
        self.failure = failure


_watcher: Watcher | None = None


def watch(watcher: Watcher | None) -> None:
    """Set the process's watcher. For the child process of an inspection."""
    global _watcher  # noqa: PLW0603  # a process is watched as a whole
    _watcher = watcher


def under_watch(action: Callable[[], _T], *, phase: Phase, provenance: Provenance, what: str = "") -> _T:
    """Run a plugin's code; the watcher, if there is one, is told."""
    watcher = _watcher
    if watcher is None:
        return action()
    watcher.begin(provenance, phase, what)
    try:
        result = action()
    except Exception:
        watcher.end()
        raise
    watcher.end()
    return result


def attempt(
    action: Callable[[], _T],
    *,
    phase: Phase,
    provenance: Provenance,
    own_modules: tuple[str, ...] = (),
    inspecting: bool = False,
    raise_as: Callable[[Failure], HardpointError] | None = None,
    what: str = "",
) -> _T | Failure:
    """Run `action` under the failure rule and return its result, or a `Failure`.

    `own_modules` are the modules that the plugin itself promises: one that cannot be found is the plugin's fault, not
    the machine's. `inspecting` records a bug instead of letting it pass. `raise_as` turns a failure into the error of
    an explicit request or of strict mode, raised from the original. `what` tells several steps of one phase apart.
    """
    try:
        if _watcher is None:
            return action()
        return under_watch(action, phase=phase, provenance=provenance, what=what)
    except Exception as error:
        # A plugin boundary: what is not the machine's fault is raised again below.
        if isinstance(error, Replayed):
            return error.failure
        failure = classify(error, phase=phase, own_modules=own_modules)
        if failure is None:
            if not inspecting:
                add_note(error, provenance, phase)
                raise
            failure = Failure(Outcome.BUG, phase, _reason(error, ReasonCode.OTHER))
        say_debug("%s, %s: %s\n%s", str(provenance), phase, failure.reason.message, failure.reason.detail)
        if raise_as is not None and failure.outcome is not Outcome.BUG:
            raise_failure(failure, provenance, raise_as, error)
        return failure


def raise_failure(
    failure: Failure,
    provenance: Provenance,
    raise_as: Callable[[Failure], HardpointError],
    original: BaseException | None,
) -> NoReturn:
    """Raise the error of an explicit request or of strict mode, from the original or, if that is gone, from its text.

    A contract error is raised as such.
    """
    if failure.outcome is not Outcome.CONTRACT:
        raise raise_as(failure) from (original or failure.as_cause())
    if isinstance(original, ContractError):
        raise original
    text = failure.reason.message
    raise ContractError(
        text if str(provenance) in text else f"{provenance}: {text} (phase: {failure.phase})",
        plugin=provenance.plugin,
        code=failure.reason.code,
        remedy=failure.reason.remedy,
    ) from original


def classify(error: Exception, *, phase: Phase, own_modules: tuple[str, ...] = ()) -> Failure | None:
    """What an exception is under the failure rule; None: a programming error."""
    if isinstance(error, ContractError):
        return Failure(Outcome.CONTRACT, phase, _reason(error, error.code, error.remedy, prefix=False))
    if isinstance(error, EnvironmentFailure):
        code = getattr(error, "code", ReasonCode.OTHER)
        return Failure(Outcome.FAILED, phase, _reason(error, code, getattr(error, "remedy", None)))
    if isinstance(error, ImportError):
        return _classify_import(error, phase, own_modules)
    if isinstance(error, OSError):
        return Failure(Outcome.FAILED, phase, _reason(error, environment_code(error)))
    return None


def _classify_import(error: ImportError, phase: Phase, own_modules: tuple[str, ...]) -> Failure:
    text, name = _text(error), error.name or ""
    if any(sign in text for sign in _CIRCULAR):
        return Failure(Outcome.FAILED, phase, _reason(error, ReasonCode.CIRCULAR_IMPORT))
    if name == "hardpoint" or name.startswith("hardpoint."):
        return Failure(Outcome.CONTRACT, phase, _reason(error, ReasonCode.INCOMPATIBLE_API))
    if isinstance(error, ModuleNotFoundError):
        if name in own_modules:
            return Failure(Outcome.CONTRACT, phase, _reason(error, ReasonCode.CONTRACT))
        return Failure(Outcome.FAILED, phase, _reason(error, ReasonCode.MISSING_DEPENDENCY))
    if any(sign in text for sign in _MISSING_LIBRARY):
        return Failure(Outcome.FAILED, phase, _reason(error, ReasonCode.MISSING_LIBRARY))
    return Failure(Outcome.FAILED, phase, _reason(error, ReasonCode.BROKEN_IMPORT))


def environment_code(error: OSError) -> ReasonCode:
    """The code of an `OSError` that has none of its own."""
    if isinstance(error, PermissionError) or error.errno in _PERMISSION_ERRNOS:
        return ReasonCode.PERMISSION
    if isinstance(error, TimeoutError):
        return ReasonCode.TIMEOUT
    text = _text(error)
    if any(sign in text for sign in _MISSING_LIBRARY):
        return ReasonCode.MISSING_LIBRARY
    if any(sign in text for sign in _BROKEN_LIBRARY):
        return ReasonCode.BROKEN_IMPORT
    return ReasonCode.OTHER


def describe_error(error: BaseException) -> str:
    """``"<Type>: <message>"``, never blank, whatever the exception's own text does."""
    return f"{type(error).__name__}: {_text(error) or '(no message)'}"


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as broken:  # noqa: BLE001
        # The exception of a plugin: even its text may fail.
        return f"(its text cannot be made: {type(broken).__name__})"
    more = len(text) - _MAX_TEXT
    return text if more <= 0 else f"{text[:_MAX_TEXT]} … ({more} more characters)"


def _reason(error: Exception, code: ReasonCode, remedy: str | None = None, *, prefix: bool = True) -> Reason:
    import traceback

    try:
        detail = "".join(traceback.format_exception(error))
    except Exception as broken:  # noqa: BLE001
        # As above: formatting calls the exception's own code.
        detail = f"(no traceback: {type(broken).__name__})"
    message = describe_error(error) if prefix else _text(error) or type(error).__name__
    if len(detail) > _MAX_DETAIL:
        detail = f"{detail[:_MAX_TEXT]} …\n{detail[-_MAX_TEXT:]}"
    return Reason(code=code, message=message, remedy=remedy, detail=detail)


def add_note(error: BaseException, provenance: Provenance, phase: Phase) -> None:
    """Say on a bug whose it is, where it happened, and how to go on without that plugin.

    Once: it passes several boundaries on its way out, and the first knows best.
    """
    if not any(str(note).startswith(_BLAME) for note in getattr(error, "__notes__", ())):
        error.add_note(
            f"{_BLAME}{provenance} in phase '{phase}'; "
            f"to go on without this plugin set HARDPOINT_DISABLED_PLUGINS={provenance.plugin}"
        )
