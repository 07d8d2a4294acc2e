"""A probe's target, ``"module:function"``: found, called, and its answer checked to be JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hardpoint._recording import plain
from hardpoint.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hardpoint._machine import Json


def ask(key: str, target: str, arguments: Sequence[object]) -> Json:
    """Call the target and return its answer as plain JSON data.

    Errors: `ContractError` where the target is not there or its answer is not JSON; whatever importing and calling it
    raises.
    """
    answer = _find(key, target)(*arguments)
    try:
        return plain(answer)
    except (TypeError, ValueError) as error:
        raise ContractError(f"probe {key!r}: {target} answers with what cannot be recorded: {error}") from error


def _find(key: str, target: str) -> Callable[..., object]:
    module_name, _, function_name = target.partition(":")
    if not module_name or not function_name:
        raise ContractError(f"probe {key!r}: the target {target!r} is not of the form 'module:function'")
    # A fork waits for an import to end: a child born in the middle of one inherits a module lock that nobody releases.
    from hardpoint._flight import import_gate

    try:
        with import_gate:
            __import__(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise ContractError(f"probe {key!r}: no module {error.name!r} for the target {target!r}") from error
        raise
    function = getattr(sys.modules[module_name], function_name, None)
    if not callable(function):
        raise ContractError(f"probe {key!r}: {module_name!r} has no function {function_name!r}")
    return function  # type: ignore[no-any-return]  # callable, and that is all that is known
