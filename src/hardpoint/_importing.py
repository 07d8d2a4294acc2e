"""Importing what a lazy target names, with the two faults that Python would describe badly told apart."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from hardpoint._flight import import_gate
from hardpoint.errors import ContractError, HardpointError, ResolutionInProgressError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType, ModuleType

    from hardpoint._reasons import Candidate, Provenance, Reason


class Target(NamedTuple):
    """``"package.module:object.attribute"``, taken apart."""

    module: str
    attributes: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Target | None:
        """The parts of an entry point's value or a descriptor's target; None: not of that form. Extras are dropped."""
        value = text.partition("[")[0].strip()
        module, _, path = value.partition(":")
        module, path = module.strip(), path.strip()
        parts = (*module.split("."), *(path.split(".") if path else ()))
        if not all(part.isidentifier() for part in parts):
            return None
        return cls(module, tuple(path.split(".")) if path else ())

    @property
    def modules(self) -> tuple[str, ...]:
        """The module and its parent packages, outermost first."""
        parts = self.module.split(".")
        return tuple(".".join(parts[: count + 1]) for count in range(len(parts)))


def is_target(text: str) -> bool:
    """Whether a text has the form of a descriptor's target, ``"package.module:Class"``."""
    target = Target.parse(text)
    return target is not None and bool(target.attributes) and "[" not in text


def import_target(target: Target, provenance: Provenance, *, foreign: list[str] | None = None) -> Any:  # noqa: ANN401  # whatever the target names
    """Import the module and return the object. `foreign` collects top-level modules that a light module may not import.

    Errors: `ContractError` for a missing attribute; `ResolutionInProgressError` where this thread is in the middle of
    importing that very module; whatever the module raises.
    """
    from importlib import import_module

    for name in target.modules:
        if _being_imported_here(name):
            raise ResolutionInProgressError(
                f"module {name!r} asks hardpoint for a platform or backend while it is itself being imported, and "
                f"{provenance} lives in it; move that call out of module scope, into a function"
            )
    before = set(sys.modules) if foreign is not None else None
    with import_gate:
        found: Any = import_module(target.module)
    if before is not None and foreign is not None:
        foreign += _foreign_modules(before, target)
    for position, attribute in enumerate(target.attributes):
        try:
            found = getattr(found, attribute)
        except AttributeError as error:
            if _attribute_is_missing(found, attribute, error):
                path = ".".join((target.module, *target.attributes[:position]))
                close = _similar_attribute(found, attribute)
                guess = f"; did you mean {close!r}?" if close else ""
                raise ContractError(
                    f"{provenance}: {path} has no attribute {attribute!r}{guess}", plugin=provenance.plugin
                ) from None
            raise
    return found


def import_library(name: str, *, remedy: str | None = None) -> ModuleType:
    """Import a module of somebody else's library: one that cannot start here is an environment failure, in its words.

    Such a library meets a missing driver, another release of torch or a file that was cut off, and says so with
    whatever type comes to hand. Errors: `ImportError` and `OSError` as they are; `EnvironmentFailure` for the rest.
    """
    from importlib import import_module

    from hardpoint._probing import describe_error
    from hardpoint.errors import EnvironmentFailure

    try:
        with import_gate:
            return import_module(name)
    except (ImportError, OSError, HardpointError, MemoryError, RecursionError):
        raise
    except Exception as error:
        raise EnvironmentFailure(
            f"{name} does not load: {describe_error(error)}", code="broken_import", remedy=remedy
        ) from error


def is_provisional(reasons: Iterable[Reason]) -> bool:
    """Whether one of these is a circle of imports that is still open: once the outer import has ended, it may load."""
    from hardpoint._reasons import ReasonCode

    if all(reason.code is not ReasonCode.CIRCULAR_IMPORT for reason in reasons):
        return False
    # A module whose import has failed is gone by now: what is still being initialised was so before we came.
    return any(map(_is_being_initialised, list(sys.modules.values())))


def decided_provisionally(candidates: Iterable[Candidate]) -> bool:
    """Whether a candidate was lost to such a circle, so that the decision may not be kept."""
    return is_provisional(reason for candidate in candidates for reason in candidate.reasons)


def _attribute_is_missing(owner: object, attribute: str, error: AttributeError) -> bool:
    """Whether the name is simply not there, as opposed to a property or module `__getattr__` that fails inside."""
    import inspect

    missing = object()
    if inspect.getattr_static(owner, attribute, missing) is not missing:
        return False
    # Python itself writes the name into `error.name`, whatever the module's function meant; its text is its own.
    return attribute in str(error) or "__getattr__" not in dir(owner)


def _similar_attribute(owner: object, attribute: str) -> str | None:
    """The name that the owner has and a target most likely meant."""
    from hardpoint._names import near_miss, normalise_name

    try:
        names = {normalise_name(name): name for name in dir(owner) if not name.startswith("_")}
    except Exception:  # noqa: BLE001
        # A module's own `__dir__` may do anything.
        return None
    close = near_miss(attribute, names)
    return None if close is None else names[close]


def _is_being_initialised(module: object) -> bool:
    try:
        return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
    except Exception:  # noqa: BLE001
        # What stands in sys.modules may be a proxy that fails at every attribute.
        return False


def _being_imported_here(name: str) -> bool:
    module = sys.modules.get(name)
    if not _is_being_initialised(module):
        return False
    # Another thread's import simply has to be waited for; only our own stack makes a circle.
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  # the only cheap way to see the callers
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == name:
            return True
        frame = frame.f_back
    return False


def module_being_imported_here() -> str | None:
    """The innermost module, none of ours, that this thread is in the middle of importing; None: it imports none."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  # as in `_being_imported_here`
    while frame is not None:
        name = frame.f_globals.get("__name__")
        is_module = frame.f_code.co_name == "<module>" and isinstance(name, str) and not name.startswith("hardpoint.")
        if is_module and _is_being_initialised(sys.modules.get(str(name))):
            return str(name)
        frame = frame.f_back
    return None


def _foreign_modules(before: set[str], target: Target) -> list[str]:
    own = {"hardpoint", "pluggy", target.modules[0], *sys.stdlib_module_names}
    tops = {name.partition(".")[0] for name in set(sys.modules) - before}
    return sorted(top for top in tops - own if not top.startswith("_"))
