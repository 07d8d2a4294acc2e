"""A probe in a child process of its own: a crash, an exit and an endless loop there become reasons here."""

from __future__ import annotations

import builtins
import json
import os
import sys
from typing import TYPE_CHECKING, Final

from hardpoint._running import describe_exit, run
from hardpoint.errors import ContractError, EnvironmentFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint._machine import Json

# json comes from the interpreter's own path, before the parent's is taken over.
_START: Final = (
    "import json, sys; request = json.load(sys.stdin.buffer); sys.path[:] = request['path']; "
    "from hardpoint._probe_child import main; main(request)"
)
_SHOWN_CHARACTERS: Final = 2000


def ask_isolated(
    key: str, target: str, arguments: Sequence[str | int | float | bool | None], timeout_seconds: float
) -> Json:
    """Run ``"module:function"`` in a child with this process's import path and environment; return its JSON answer.

    The child cannot change anything here. Errors: what the target raised, of the same type where that is a builtin or
    ours (an environment failure of another type becomes `EnvironmentFailure` ``"<Type>: <message>"``, a bug of another
    type `RuntimeError`), with the child's traceback as a note; `EnvironmentFailure` with code ``crashed`` or
    ``timeout``.
    """
    mark = f"\0hardpoint {os.urandom(8).hex()}\0"
    # Python itself passes over what is no text, such as a pathlib.Path.
    entries: list[object] = [*sys.path]
    path = [entry for entry in entries if isinstance(entry, str)]
    request = {"key": key, "target": target, "arguments": list(arguments), "path": path, "mark": mark}
    finished = run(
        [*interpreter(), "-c", _START],
        described=f"{target} for probe {key!r}",
        timeout_seconds=timeout_seconds,
        stdin=json.dumps(request).encode(),
    )
    _, found, text = finished.stdout.partition(mark.encode())
    if finished.returncode != 0 or not found:
        ending = describe_exit(finished.returncode) + ("" if finished.returncode else " without an answer")
        raise _with_note(
            EnvironmentFailure(f"{ending} running {target} for probe {key!r}", code="crashed"),
            finished.stderr[-_SHOWN_CHARACTERS:].decode("utf-8", "replace"),
        )
    if finished.truncated and not text.endswith(b"}"):
        raise ContractError(f"probe {key!r}: {target} answers with more than can be kept")
    answer = json.loads(text)
    if "error" in answer:
        raise rebuild(answer["error"])
    return answer["value"]


def rebuild(described: dict[str, Json]) -> Exception:
    """The exception that `hardpoint._probe_child.describe` described."""
    name, fields = described["type"], described["fields"]
    error: Exception
    if name in {"EnvironmentFailure", "NotRecorded"} and described["module"] == "hardpoint.errors":
        error = EnvironmentFailure(described["message"], code=described["code"], remedy=fields.get("remedy"))
    elif name == "ContractError" and described["module"] == "hardpoint.errors":
        error = ContractError(described["message"], code=described["code"], remedy=fields.get("remedy"))
    else:
        error = _builtin(described) or (
            EnvironmentFailure(f"{name}: {described['message']}")
            if described["is_environment"]
            else RuntimeError(f"{described['module']}.{name}: {described['message']}")
        )
    return _with_note(error, described["traceback"])


def _builtin(described: dict[str, Json]) -> Exception | None:
    kind = getattr(builtins, described["type"], None)
    if described["module"] != "builtins" or not isinstance(kind, type) or not issubclass(kind, Exception):
        return None
    try:
        error = kind(*described["arguments"])
    except (TypeError, ValueError):
        # Such as UnicodeDecodeError, which insists on its bytes.
        return None
    if isinstance(error, ImportError):
        error.name, error.path = described["fields"].get("name"), described["fields"].get("path")
    elif isinstance(error, OSError) and "filename" in described["fields"]:
        # Even None, once it is set, takes the place of the message.
        error.filename = described["fields"]["filename"]
    return error


def _with_note(error: Exception, text: str) -> Exception:
    if text.strip():
        error.add_note(f"in the child process:\n{text.rstrip()}")
    return error


def interpreter() -> list[str]:
    """How to start a child that imports what this process would. Errors: `EnvironmentFailure` in a frozen program."""
    if not sys.executable or getattr(sys, "frozen", False):
        raise EnvironmentFailure("no Python interpreter to isolate a probe with: the program is frozen")
    # -P: not from the working directory. The other flags decide what a child may import, so they are this process's.
    flags = [
        flag
        for flag, is_set in (
            ("-I", sys.flags.isolated),
            ("-E", sys.flags.ignore_environment),
            ("-s", sys.flags.no_user_site),
            ("-S", sys.flags.no_site),
        )
        if is_set
    ]
    return [sys.executable, "-P", "-X", "faulthandler", *flags]
