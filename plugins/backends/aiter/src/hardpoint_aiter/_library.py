"""AITER's functions. The library compiles at a function's first call, and where that fails it raises `SystemExit`."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from hardpoint.attention._kernel_library import load_function
from hardpoint.errors import EnvironmentFailure

if TYPE_CHECKING:
    from collections.abc import Callable


def load(module: str, name: str, takes: tuple[str, ...]) -> Callable[..., Any]:  # Any: the library is not typed for us
    """As `load_function`. The function raises `EnvironmentFailure` where it cannot be compiled (``jit/core.py``)."""
    function = load_function(module, name, takes)

    @wraps(function)
    def call(*arguments: Any, **more: Any) -> Any:  # noqa: ANN401  # as above
        try:
            return function(*arguments, **more)
        except SystemExit as error:
            raise EnvironmentFailure(
                f"{module}.{name} cannot be compiled: {error}",
                code="compiler",
                remedy="install ROCm's compiler (hipcc), and let AITER_JIT_DIR name a folder that may be written",
            ) from error

    return call
