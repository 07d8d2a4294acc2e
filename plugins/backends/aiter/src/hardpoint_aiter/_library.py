"""Importing AITER."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hardpoint._importing import import_library
from hardpoint.errors import EnvironmentFailure

if TYPE_CHECKING:
    from collections.abc import Callable


def load(module: str, name: str) -> Callable[..., Any]:  # Any: the library is not typed for us
    """A function of the library. Errors: `EnvironmentFailure` where its module lacks it, or its start-up fails.

    Importing ``aiter`` asks ROCm's tools for the device and says so with `RuntimeError`.
    """
    library = import_library(module)
    found: Callable[..., Any] | None = getattr(library, name, None)
    if found is None:
        raise EnvironmentFailure(
            f"{module} has no {name}: the package is another than its metadata says", code="incompatible_dependency"
        )
    return found
