"""Every error that Hardpoint raises.

::

    HardpointError
    ├── EnvironmentFailure (OSError)         this machine cannot run it: the next candidate is tried
    │   └── NotRecorded                      a replayed or in-memory machine has no answer to that question
    ├── ContractError (ValueError)           a plugin breaks the plugin contract
    ├── DiscoveryError (RuntimeError)        the installed distributions cannot be listed
    ├── SimulationError (ValueError)         no machine can be put together from what was asked for
    │   └── UnknownProfileError (LookupError)
    ├── SnapshotError (ValueError)           a file that is no snapshot, or a damaged or newer one
    ├── SettingsError (ValueError)           a variable or argument has a value that means nothing
    ├── CapabilityError (ValueError)         a capability that cannot be parsed or compared
    ├── ConfigError (ValueError)             an `AttentionConfig` or `AttentionBatch` that contradicts itself
    ├── ResolutionError (ValueError)         no platform
    │   ├── UnknownPlatformError (LookupError)
    │   ├── PlatformUnavailableError         asked for by name, and it cannot be used here
    │   ├── AmbiguousPlatformError           two of one rank
    │   └── NoPlatformError                  nothing is left
    ├── ResolutionInProgressError (RuntimeError)   a plugin asks for the platform that is being resolved
    ├── ResolutionTimeoutError (RuntimeError)      another thread's resolution does not end
    ├── SelectionError (ValueError)          no backend
    │   ├── UnknownBackendError (LookupError)
    │   ├── BackendUnavailableError          asked for by name, and it cannot be used here
    │   └── NoBackendError                   nothing is left
    ├── KernelError (RuntimeError)           a required kernel module, in strict mode
    │   └── MissingOperatorError (AttributeError)  first use of an operator that was never imported
    └── DisagreementError (RuntimeError)     ranks have decided differently

Each also subclasses the built-in that callers catch. All of them pickle, with their notes, and can be copied:
`error.copy()` is equal in type, text and fields, and shares no traceback.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint._reasons import Candidate, Reason, ReasonCode

_E = TypeVar("_E", bound="HardpointError")


def _restore(cls: type[_E], args: tuple[Any, ...], state: dict[str, Any]) -> _E:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class HardpointError(Exception):
    """The root. `str(error)` is the whole message; fields are attributes."""

    def __init__(self, message: str) -> None:
        super().__init__(message)

    @property
    def message(self) -> str:
        """The text, as one string."""
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:  # Any: the pickle protocol's own type
        return _restore, (type(self), self.args, dict(self.__dict__))

    def copy(self) -> Self:
        """A fresh error of the same type, text, fields and notes, without traceback, cause or context."""
        state = {key: list(value) if key == "__notes__" else value for key, value in self.__dict__.items()}
        return _restore(type(self), self.args, state)


class EnvironmentFailure(HardpointError, OSError):
    """This machine cannot run it. A plugin raises it where its own driver, compiler or tool raises something else.

    ``raise EnvironmentFailure("no GPU is visible", code="no_device", remedy="check /dev/dri") from error``

    `code` is a `ReasonCode` (or its text); `remedy` says what to type next.
    """

    code: ReasonCode
    remedy: str | None

    def __init__(self, message: str, *, code: ReasonCode | str = "other", remedy: str | None = None) -> None:
        from hardpoint._reasons import ReasonCode

        super().__init__(message)
        self.code = ReasonCode(code)
        self.remedy = remedy

    def __str__(self) -> str:
        return self.message


class NotRecorded(EnvironmentFailure):
    """A machine that is not live was asked for something that nobody recorded."""


class ContractError(HardpointError, ValueError):
    """A plugin breaks the plugin contract: wrong name, hook, type, target or version."""

    plugin: str | None
    code: ReasonCode
    remedy: str | None

    def __init__(
        self,
        message: str,
        *,
        plugin: str | None = None,
        code: ReasonCode | str = "contract",
        remedy: str | None = None,
    ) -> None:
        from hardpoint._reasons import ReasonCode

        super().__init__(message)
        self.plugin = plugin
        self.code = ReasonCode(code)
        self.remedy = remedy


class DiscoveryError(HardpointError, RuntimeError):
    """The installed distributions cannot be listed at all."""


class SimulationError(HardpointError, ValueError):
    """No machine can be put together from the device profiles that were asked for."""


class UnknownProfileError(SimulationError, LookupError):
    """A device profile that no installed plugin brings. `profile` is the name, `known` those that there are."""

    profile: str
    known: tuple[str, ...]

    def __init__(self, message: str, *, profile: str, known: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.profile = profile
        self.known = tuple(known)


class SnapshotError(HardpointError, ValueError):
    """A file that cannot be read as a snapshot. `path` is the file; None: it came from elsewhere."""

    path: str | None

    def __init__(self, message: str, *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


class SettingsError(HardpointError, ValueError):
    """A setting has a value that means nothing. `setting` is the variable or argument, `value` what it held."""

    setting: str
    value: str

    def __init__(self, message: str, *, setting: str, value: str) -> None:
        super().__init__(message)
        self.setting = setting
        self.value = value


class CapabilityError(HardpointError, ValueError):
    """A capability cannot be parsed, or two of different runtimes were compared."""


class ConfigError(HardpointError, ValueError):
    """A configuration or batch contradicts itself. `field` names the culprit."""

    field: str | None

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ResolutionError(HardpointError, ValueError):
    """No platform. `candidates` are all that were considered, in order, with their reasons."""

    candidates: tuple[Candidate, ...]

    def __init__(self, message: str, *, candidates: Sequence[Candidate] = ()) -> None:
        super().__init__(message)
        self.candidates = tuple(candidates)


class UnknownPlatformError(ResolutionError, LookupError):
    """A platform name that no installed plugin has."""


class PlatformUnavailableError(ResolutionError):
    """The platform asked for by name cannot be used here."""


class AmbiguousPlatformError(ResolutionError):
    """Two usable platforms of one rank."""


class NoPlatformError(ResolutionError):
    """Every candidate was rejected, or there was none."""


class ResolutionInProgressError(HardpointError, RuntimeError):
    """A plugin asked for the current platform while that very question was being answered on the same thread."""


class ResolutionTimeoutError(HardpointError, RuntimeError):
    """Another thread is resolving the platform and its present plugin has not answered within the probe timeout."""


class SelectionError(HardpointError, ValueError):
    """No backend. `candidates` are all that were considered, in order, with their reasons."""

    candidates: tuple[Candidate, ...]

    def __init__(self, message: str, *, candidates: Sequence[Candidate] = ()) -> None:
        super().__init__(message)
        self.candidates = tuple(candidates)


class UnknownBackendError(SelectionError, LookupError):
    """A backend name that no installed plugin has."""


class BackendUnavailableError(SelectionError):
    """The backend asked for by name cannot be used here."""


class NoBackendError(SelectionError):
    """Every candidate was rejected, or there was none."""


class KernelError(HardpointError, RuntimeError):
    """A kernel module that the platform requires is absent or broken. `reasons` say why."""

    reasons: tuple[Reason, ...]

    def __init__(self, message: str, *, reasons: Sequence[Reason] = ()) -> None:
        super().__init__(message)
        self.reasons = tuple(reasons)


class MissingOperatorError(KernelError, AttributeError):
    """An operator was used whose module was not imported; the message repeats the original reason."""


class DisagreementError(HardpointError, RuntimeError):
    """Ranks have decided differently. The message lists ranks, backends and each rank's reasons."""
