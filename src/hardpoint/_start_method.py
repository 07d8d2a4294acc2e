"""What torch has done with its device ``cuda``, and how an engine should start its workers then.

Initialised, the device does not survive a fork.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from hardpoint._machine import Machine

_OPEN_FILES: Final = "/proc/self/fd"


class StartMethod(NamedTuple):
    """``fork`` or ``spawn``, as `multiprocessing` calls them, and why."""

    name: str
    reason: str


def has_torch_initialised() -> bool:
    """Whether torch has initialised its device ``cuda`` in this process. Imports nothing.

    A torch whose import is going on, in another thread, has no such part yet.
    """
    return bool(getattr(getattr(sys.modules.get("torch"), "cuda", None), "is_initialized", bool)())


def memory_held_by_torch(module: Callable[[], ModuleType], index: int) -> int | None:
    """Bytes that torch holds on a device, as `module()` (``torch.cuda``) counts them; None: it is not initialised.

    None as well where the device has gone, or the mask has changed under torch.
    """
    if not has_torch_initialised():
        return None
    try:
        return int(module().memory_reserved(index))
    except (RuntimeError, AssertionError):
        return None


def forbidden_by_torch(runtime: str) -> StartMethod | None:
    """``spawn`` where torch itself says that `runtime` is initialised here or in a parent; else None.

    Looks at a torch that is imported already; imports nothing.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None:
        return None
    # A badly forked child has its own word: there the other flag says no.
    if getattr(cuda, "_is_in_bad_fork", bool)():
        return StartMethod("spawn", f"this process was forked from one in which torch had initialised {runtime}")
    if has_torch_initialised():
        return StartMethod("spawn", f"torch has initialised {runtime} in this process")
    return None


def has_open(machine: Machine, node: str) -> bool:
    """Whether this process has a device node open, which a child of a fork inherits."""
    try:
        names = machine.list_directory(_OPEN_FILES)
    except OSError:
        return False
    return any(machine.real_path(f"{_OPEN_FILES}/{name}") == node for name in names)
