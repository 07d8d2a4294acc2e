"""Importing AITER."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hardpoint.errors import EnvironmentFailure

if TYPE_CHECKING:
    from collections.abc import Callable


def load(module: str, name: str) -> Callable[..., Any]:  # Any: the library is not typed for us
    """A function of the library. Errors: `EnvironmentFailure` where its module lacks it, or its start-up fails.

    Importing ``aiter`` asks ROCm's tools for the device and says so with `RuntimeError`.
    """
    try:
        library = importlib.import_module(module)
    except RuntimeError as error:
        if isinstance(error, RecursionError):
            raise
        raise EnvironmentFailure(f"{module} cannot start: {error}", code="driver") from error
    found: Callable[..., Any] | None = getattr(library, name, None)
    if found is None:
        raise EnvironmentFailure(
            f"{module} has no {name}: the package is another than its metadata says", code="incompatible_dependency"
        )
    return found
