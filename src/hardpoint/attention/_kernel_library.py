"""The functions of a kernel library that a backend calls, and what they must take.

The version was compared before; what is met here is an installation that does not hold together, and a release that is
newer than the backend.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from hardpoint._importing import import_library
from hardpoint.errors import EnvironmentFailure

if TYPE_CHECKING:
    from collections.abc import Callable


def load_function(module: str, name: str, takes: tuple[str, ...] = ()) -> Callable[..., Any]:  # Any: none is typed
    """A function of a library, or a method (``Class.method``) or class of it, that takes the arguments of these names.

    Errors: those of `import_library`; `EnvironmentFailure` where the module lacks it, or where it lacks an argument.
    """
    found: Any = import_library(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise EnvironmentFailure(
            f"{module} has no {name}: the package is another than its metadata says", code="incompatible_dependency"
        )
    if missing := _missing(found, takes):
        raise EnvironmentFailure(
            f"{module}.{name} takes no {', '.join(missing)}: the package is of a release unknown to this backend",
            code="incompatible_dependency",
        )
    function: Callable[..., Any] = found
    return function


def _missing(function: Callable[..., Any], takes: tuple[str, ...]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        # Compiled functions may have none that can be read.
        return []
    if any(item.kind is item.VAR_KEYWORD for item in parameters.values()):
        return []
    return [name for name in takes if name not in parameters]
