"""One pass over a platform's kernel modules: set up, import, check the operators; each under the failure rule.

A module is *absent* where it or a package that it lies in is not there, *broken* where this machine cannot load it, and
*incomplete* where it lacks an operator that it promises.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from hardpoint._flight import import_gate
from hardpoint._importing import Target, import_target
from hardpoint._kernel_records import LISTING, KernelModule, KernelOutcome, KernelRecord, static_records
from hardpoint._probing import Failure, attempt, describe_error
from hardpoint._reasons import Outcome, Phase, Provenance, Reason, ReasonCode
from hardpoint._say import say_debug
from hardpoint._shared_object import check_not_truncated
from hardpoint.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from hardpoint.platforms import Platform

_T = TypeVar("_T")


class KernelImporter:
    """One pass over a platform's modules.

    `records` holds what earlier passes found, and is added to. `originals`, where given, collects the exceptions by
    module: strict mode raises from one, and its owner forgets them with the end of the run.
    """

    def __init__(
        self,
        platform: Platform,
        provenance: Provenance,
        records: dict[str, KernelRecord],
        originals: dict[str, Exception] | None,
        *,
        inspecting: bool,
    ) -> None:
        self.platform = platform
        self.provenance = provenance
        self.records = records
        self.originals = originals
        self.inspecting = inspecting

    def run(self, note_progress: Callable[[str], None]) -> tuple[KernelRecord, ...]:
        """A record of every module, in the platform's order. Errors: a programming error, unless inspecting."""
        modules = self._attempt(lambda: _checked_modules(self.platform, self.provenance))
        if isinstance(modules, Failure):
            return (_record(None, KernelOutcome.BROKEN, modules.reason, bug=modules.outcome is Outcome.BUG),)
        if not self.platform.machine.live:
            return static_records(modules, self.platform.machine)
        made = []
        taken: dict[str, str] = {}
        for module in modules:
            note_progress(module.name)
            record = self._record(module, taken)
            made.append(record)
            if not record.bug:
                self.records[module.name] = record
            if module.group is not None and record.outcome is KernelOutcome.IMPORTED:
                taken[module.group] = module.name
        return tuple(made)

    def _attempt(
        self, action: Callable[[], _T], *, name: str = LISTING, own_modules: tuple[str, ...] = ()
    ) -> _T | Failure:
        def watched() -> _T:
            try:
                return action()
            except Exception as error:
                # On its way to `attempt`, which decides.
                self._keep(name, error)
                raise

        return attempt(
            watched,
            phase=Phase.IMPORT_KERNELS,
            provenance=self.provenance,
            own_modules=own_modules,
            inspecting=self.inspecting,
            what=name,
        )

    def _keep(self, name: str, error: Exception) -> None:
        if self.originals is not None:
            self.originals[name] = error

    def _record(self, module: KernelModule, taken: dict[str, str]) -> KernelRecord:
        known = self.records.get(module.name)
        if known is not None:
            return known
        if module.unsupported is not None:
            return _record(module, KernelOutcome.NOT_RUN, module.unsupported)
        if module.group in taken:
            message = f"{taken[module.group]} of the same group is imported"
            return _record(module, KernelOutcome.NOT_RUN, Reason(code=ReasonCode.OTHER, message=message))
        # So that the log of a process that dies in a module's start-up names it.
        say_debug("importing kernel module %s", module.name)
        started = time.perf_counter()
        record = self._import(module)
        return replace(record, seconds=time.perf_counter() - started)

    def _import(self, module: KernelModule) -> KernelRecord:
        paths: list[str] = []
        loaded = self._attempt(lambda: self._load(module, paths), name=module.name)
        if isinstance(loaded, KernelRecord):
            return loaded
        if isinstance(loaded, Failure):
            file = _locate(module.name)
            reason = _with_path(loaded.reason, [*paths, *([file] if file else [])])
            return _record(module, KernelOutcome.BROKEN, reason, bug=loaded.outcome is Outcome.BUG, file=file)
        return self._check_operators(module, loaded, next(iter(paths), None))

    def _load(self, module: KernelModule, paths: list[str]) -> ModuleType | KernelRecord | None:
        """The module; None where a benign message stands for it; its record where it is absent or its setup failed."""
        from importlib import import_module

        try:
            # No setup, which may change the process, for a module that is not there.
            present = module.name in sys.modules or _find(module.name)
            if present and module.setup is not None and (failed := self._set_up(module)) is not None:
                return failed
            with import_gate:
                loaded = import_module(module.name)
            if file := getattr(loaded, "__file__", None):
                paths.append(os.path.abspath(file))
            return loaded
        except ImportError as error:
            if isinstance(error, ModuleNotFoundError):
                if error.name in module.own_modules:
                    self._keep(module.name, error)
                    return _record(module, KernelOutcome.ABSENT, self._absent(module, describe_error(error)))
                raise
            if error.path:
                paths.append(os.path.abspath(error.path))
            text = describe_error(error)
            if any(message in text for message in module.benign_messages):
                return None
            raise

    def _set_up(self, module: KernelModule) -> KernelRecord | None:
        target = Target.parse(module.setup or "")
        if target is None:
            return None

        def call() -> None:
            import_target(target, self.provenance)()

        done = self._attempt(call, name=module.name, own_modules=target.modules)
        if done is None:
            return None
        reason = replace(done.reason, message=f"its setup {module.setup} failed: {done.reason.message}")
        return _record(module, KernelOutcome.BROKEN, reason, bug=done.outcome is Outcome.BUG)

    def _absent(self, module: KernelModule, message: str) -> Reason:
        name = module.distribution
        if name is None:
            return Reason(code=ReasonCode.NOT_INSTALLED, message=message)
        version = self.platform.machine.distribution_version(name)
        if version is None:
            return Reason(code=ReasonCode.NOT_INSTALLED, message=message, remedy=f"pip install {name}")
        # Not what an absent distribution is: this one should have brought it.
        return Reason(
            code=ReasonCode.KERNEL_MISSING,
            message=f"{message}; {name} {version} is installed, without this module{_for_another_python(module.name)}",
            remedy=f"pip install --force-reinstall --no-deps {name}",
        )

    def _check_operators(self, module: KernelModule, loaded: ModuleType | None, file: str | None) -> KernelRecord:
        missing: list[str] = []
        told: list[str] = []
        for operator in module.operators:
            found = self._attempt(partial(find_operator, loaded, operator), name=module.name)
            if isinstance(found, Failure) and found.outcome is Outcome.BUG:
                return _record(module, KernelOutcome.BROKEN, found.reason, bug=True, file=file)
            if found is None or isinstance(found, Failure):
                missing.append(operator)
                told.append(f"{operator} ({found.reason.message})" if isinstance(found, Failure) else operator)
        if not missing:
            return _record(module, KernelOutcome.IMPORTED, None, file=file)
        reason = Reason(
            code=ReasonCode.KERNEL_MISSING,
            message=f"it was imported and lacks {', '.join(told)}, which it promises" + (f" [{file}]" if file else ""),
            requested=tuple(missing),
            remedy=f"pip install --upgrade {module.distribution}" if module.distribution else None,
        )
        return _record(module, KernelOutcome.INCOMPLETE, reason, file=file, missing=tuple(missing))


def _checked_modules(platform: Platform, provenance: Provenance) -> tuple[KernelModule, ...]:
    declared: object = platform.kernel_modules()
    if not isinstance(declared, (list, tuple)):
        problems = [f"it returned {declared!r}; expected a list of KernelModule"]
        modules: tuple[KernelModule, ...] = ()
    else:
        problems = [f"{item!r} is no KernelModule" for item in declared if not isinstance(item, KernelModule)]
        modules = tuple(item for item in declared if isinstance(item, KernelModule))
    if not problems:
        names = [module.name for module in modules]
        twice = dict.fromkeys(name for name in names if names.count(name) > 1)
        problems += [f"{name} is declared twice" for name in twice]
        groups = dict.fromkeys(module.group for module in modules if module.group in names)
        problems += [f"{group} is the name of a module and of a group" for group in groups]
    if problems:
        raise ContractError(f"{provenance}: kernel_modules(): {'; '.join(problems)}", plugin=provenance.plugin)
    return modules


def _record(
    module: KernelModule | None,
    outcome: KernelOutcome,
    reason: Reason | None,
    *,
    bug: bool = False,
    file: str | None = None,
    missing: tuple[str, ...] = (),
) -> KernelRecord:
    return KernelRecord(
        name=module.name if module is not None else LISTING,
        outcome=outcome,
        required=module.required if module is not None else True,
        group=module.group if module is not None else None,
        reason=reason,
        missing_operators=missing,
        file=file,
        bug=bug,
    )


def find_operator(module: ModuleType | None, operator: str) -> Callable[..., Any] | None:
    """The operator of that spelling, or None. One that cannot be called is none: ``None`` is no kernel."""
    found: Any
    if "::" in operator:
        import torch

        namespace, _, path = operator.partition("::")
        found = getattr(torch.ops, namespace)
    elif ":" in operator:
        from importlib import import_module

        elsewhere, _, path = operator.partition(":")
        with import_gate:
            found = import_module(elsewhere)
    else:
        found, path = module, operator
    for attribute in path.split("."):
        found = getattr(found, attribute, None)
    return found if callable(found) else None


def _find(name: str) -> bool:
    """Whether there is such a module to import, and its file is whole. Imports its parent packages."""
    from importlib.machinery import EXTENSION_SUFFIXES
    from importlib.util import find_spec

    with import_gate:
        spec = find_spec(name)
    if spec is None:
        return False
    if spec.origin is not None and spec.origin.endswith(tuple(EXTENSION_SUFFIXES)):
        check_not_truncated(os.path.abspath(spec.origin))
    return True


def _for_another_python(name: str) -> str:
    """What to add where the module's file is there and its tag is not this Python's."""
    parent, _, leaf = name.rpartition(".")
    for folder in getattr(sys.modules.get(parent), "__path__", ()):
        try:
            found = sorted(os.listdir(folder))
        except OSError:
            continue
        for file in found:
            if file.startswith(f"{leaf}.") and file.endswith((".so", ".pyd")):
                return f": {os.path.join(folder, file)} is built for another Python"
    return ""


def _locate(name: str) -> str | None:
    """The file that an import of `name` would load, without importing anything, its parents included."""
    from importlib.machinery import PathFinder

    parent = name.rpartition(".")[0]
    folders = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    if parent and folders is None:
        return None
    spec = PathFinder.find_spec(name, folders)
    return os.path.abspath(spec.origin) if spec is not None and spec.origin and spec.has_location else None


def _with_path(reason: Reason, paths: list[str]) -> Reason:
    if not paths or any(path in reason.message for path in paths):
        return reason
    return replace(reason, message=f"{reason.message} [{paths[0]}]")
