"""From a command's options to its question, and from the child's answer to the command's data."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hardpoint import __version__
from hardpoint._machine_live import LiveMachine
from hardpoint._recomputation import ALL_PARTS, BACKENDS, PLATFORMS
from hardpoint._settings import DEFAULT_PROBE_TIMEOUT_SECONDS, read_probe_timeout
from hardpoint.cli._ask import AskError, ask
from hardpoint.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Json = Any  # what JSON can hold

FINE: Final = 0
NOT_AVAILABLE: Final = 1
WRONG_USE: Final = 2
PLUGIN_BUG: Final = 3

WRONG_USES: Final = frozenset(
    {"SettingsError", "ConfigError", "UnknownPlatformError", "UnknownProfileError", "SimulationError", "SnapshotError"}
)
"""Errors of ours that say that something was asked for in a wrong way."""


TYPICAL: Final = {"head_size": 128, "num_heads": 32, "num_kv_heads": 8}
"""A layer of a common decoder of eight billion parameters. The block size is the backend's to choose."""

TYPICAL_LABEL: Final = "A typical decoder layer"


SELECTING: Final = (PLATFORMS, BACKENDS)
"""What decides about a layer's backend."""


class Source(NamedTuple):
    """Which machine is looked at: ``live``, ``simulated``, ``snapshot`` or ``recomputed``, in words, and for the child.

    `recorded` is a snapshot's report, and `views` its texts, where it is shown as it was recorded.
    """

    kind: str
    text: str
    machine: Mapping[str, Json]
    recorded: dict[str, Json] | None = None
    views: Mapping[str, str] | None = None

    def as_dict(self) -> dict[str, Json]:
        """The JSON form."""
        return {"kind": self.kind, "text": self.text}


LIVE: Final = Source("live", "this machine", {"kind": "live"})


class Progress:
    """One line on a terminal that says whose turn it is; nothing anywhere else."""

    def __init__(self) -> None:
        import os

        stream = sys.stderr
        is_dumb = os.environ.get("TERM", "") in ("", "dumb")
        self._stream = stream if stream is not None and stream.isatty() and not is_dumb else None
        self._is_shown = False

    def __call__(self, text: str) -> None:
        if self._stream is not None:
            shown = text.encode(self._stream.encoding or "ascii", "replace").decode(self._stream.encoding or "ascii")
            self._stream.write(f"\r\x1b[K{shown[:78]}")
            self._stream.flush()
            self._is_shown = True

    def clear(self) -> None:
        """Leave the line as it was."""
        if self._stream is not None and self._is_shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def put_question(question: dict[str, Json]) -> tuple[Json, list[Json]]:
    """The child's answer and what was observed of plugins. Errors: `AskError`."""
    progress = Progress()
    try:
        seconds = read_probe_timeout(LiveMachine())
    except SettingsError:
        # The child says so, in its answer's own words.
        seconds = DEFAULT_PROBE_TIMEOUT_SECONDS
    try:
        return ask(question, probe_timeout_seconds=seconds, progress=progress)
    except OSError as error:
        raise AskError(f"no process can be started to look at the machine: {error}", "died") from error
    finally:
        progress.clear()


class Examined(NamedTuple):
    """A report, with what was observed of plugins, and the label of each selection.

    `changes` are against the recorded report, where it was made anew; of the layers in `uncompared` it says nothing.
    """

    report: dict[str, Json]
    labels: list[str]
    changes: list[Json]
    uncompared: list[str]


def examine(
    source: Source,
    *,
    parts: Sequence[str] = ALL_PARTS,
    configs: Sequence[Json] | None = (),
    depth: str = "loaded",
    platform: str | None = None,
    backend: str | None = None,
    kernels: bool = True,
) -> Examined:
    """The report of a machine. `configs` None: those of the recorded report; `parts`: what changes are wanted of."""
    if source.recorded is not None:
        labels = [label_of(item["config"]) for item in source.recorded["selections"]]
        return Examined(source.recorded, labels, [], [])
    question = {
        "what": "examine",
        "machine": dict(source.machine),
        "configs": None if configs is None else list(configs),
        "depth": depth,
        "platform": platform,
        "backend": backend,
        "kernels": kernels,
        "parts": list(parts),
    }
    value, observations = put_question(question)
    report = with_observed(value["report"], observations)
    labels = value["labels"] or [label_of(item["config"]) for item in report["selections"]]
    return Examined(report, labels, value["changes"], value["uncompared"])


def label_of(config: Mapping[str, Json]) -> str:
    """What a recorded selection's layer is called."""
    if all(config.get(name) == value for name, value in TYPICAL.items()):
        return TYPICAL_LABEL
    return f"Layer of head size {config['head_size']}"


def with_observed(report: dict[str, Json], observations: Sequence[Json]) -> dict[str, Json]:
    """The report with the observations, and the hints that follow."""
    if not observations:
        return report
    from hardpoint._report import Report, with_observations

    return with_observations(Report(data=report), observations).as_dict()


def envelope(command: str, version: int, source: Source, exit_code: int, **content: Json) -> dict[str, Json]:
    """A command's data: what its JSON holds, and what its other views are made of."""
    return {
        "schema": f"hardpoint.{command}",
        "version": version,
        "hardpoint": __version__,
        "source": source.as_dict(),
        "exit_code": exit_code,
        **content,
    }


def exit_code_of(report: Mapping[str, Json]) -> int:
    """What the report means for the exit code: bugs first, then whether there is a platform and a backend."""
    if report["bugs"]:
        return PLUGIN_BUG
    if "error" in report["settings"]:
        return WRONG_USE
    resolution = report["resolution"]
    if resolution is not None and resolution["platform"] is None:
        return NOT_AVAILABLE
    return NOT_AVAILABLE if any(is_without_backend(item) for item in report["selections"]) else FINE


def is_without_backend(selection: Mapping[str, Json]) -> bool:
    """Whether a backend was looked for and none is valid; a platform that has none to select is no lack."""
    from hardpoint._selection import NOTHING_VALID

    if selection["backend"] is not None:
        return False
    return bool(selection["candidates"]) or selection["note"] == NOTHING_VALID or bool(selection["requested"])
