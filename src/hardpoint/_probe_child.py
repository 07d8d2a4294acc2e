"""What runs in the child process of an isolated probe. The parent's side is `_isolation.py`."""

from __future__ import annotations

import json
import os
import traceback
from typing import TYPE_CHECKING

from hardpoint._probe_target import ask
from hardpoint.errors import ContractError, EnvironmentFailure

if TYPE_CHECKING:
    from collections.abc import Callable

    from hardpoint._machine import Json


def main(request: dict[str, Json]) -> None:
    """Answer on the descriptor that was standard output, and end.

    What the probe itself prints goes nowhere; what it writes to standard error, the parent reads. `SystemExit` and the
    like are not caught: the parent sees the exit.
    """
    channel = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    no_core_file()
    try:
        answer = {"value": ask(request["key"], request["target"], request["arguments"])}
    except Exception as error:  # noqa: BLE001
        # Everything is reported, and the parent decides: this is its failure rule, one process away.
        answer = {"error": describe(error)}
    with os.fdopen(channel, "wb") as stream:
        stream.write(request["mark"].encode() + json.dumps(answer).encode())
    # Not through the interpreter's end: a library's clean-up could hang or crash after a good answer.
    os._exit(0)


def describe(error: Exception) -> dict[str, Json]:
    """What the parent needs in order to raise the same."""
    return {
        "type": type(error).__name__,
        "module": type(error).__module__,
        "is_environment": isinstance(error, ImportError | OSError),
        "arguments": [
            item if isinstance(item, str | int | float | bool | None) else _text(item, repr) for item in error.args
        ],
        "message": _text(error),
        "code": str(error.code) if isinstance(error, EnvironmentFailure | ContractError) else None,
        "fields": {
            name: value
            for name in ("name", "path", "filename", "remedy")
            if isinstance(value := getattr(error, name, None), str)
        },
        "traceback": "".join(traceback.format_exception(error)),
    }


def _text(item: object, make: Callable[[object], str] = str) -> str:
    try:
        return make(item)
    except Exception as broken:  # noqa: BLE001
        # The exception of a library: even its text may fail.
        return f"(its text cannot be made: {type(broken).__name__})"


def no_core_file() -> None:
    """Let a crash of this process leave nothing on the disk."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
