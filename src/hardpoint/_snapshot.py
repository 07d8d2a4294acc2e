"""Snapshots: what a machine answered and what was decided, in one file that holds nothing private.

Where the file is read, the recorded report is shown as it was made, and the decisions can be made anew.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hardpoint._inspection import examine
from hardpoint._machine_observed import ObservedMachine
from hardpoint._machine_recorded import RecordedMachine
from hardpoint._private import private_facts
from hardpoint._process import process
from hardpoint._redaction import Redactor
from hardpoint._report import Report
from hardpoint._snapshot_facts import ask_everybody, owned_variables
from hardpoint._snapshot_format import KIND, MAX_BYTES, SCHEMA, FormatError, parse_snapshot, printable
from hardpoint._version import own_version
from hardpoint.errors import SnapshotError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hardpoint._evaluation import Depth
    from hardpoint._machine import Machine
    from hardpoint._recomputation import Recomputation
    from hardpoint.attention import AttentionConfig


class _Recorder(Protocol):
    def recorded_facts(self, owned: Sequence[str] = ()) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class RecordedReport(Report):
    """A report from a snapshot. Its texts are those that were made there, byte for byte."""

    views: Mapping[str, str]

    def view(self, name: str) -> str | None:
        """A view as it was made there: ``text``, or another that the hardpoint there could make; None: it could not."""
        return self.views.get(name)

    def to_text(self) -> str:
        """The recorded text."""
        return self.views["text"]

    def to_markdown(self) -> str:
        """The recorded Markdown. Errors: `SnapshotError` where the hardpoint there made none."""
        found = self.views.get("markdown")
        if found is None:
            raise SnapshotError("this snapshot holds no report as Markdown; show it as text or JSON")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A machine's facts and its report. JSON data; nothing in it is live, and nothing private has been left in."""

    data: Mapping[str, Any]  # Any: JSON

    @property
    def report(self) -> RecordedReport:
        """The report as it was made there."""
        return RecordedReport(data=self.data["report"], views=self.data["views"])

    def machine(self) -> RecordedMachine:
        """A machine that is not live, which answers as the recorded one did; what was not asked is `NotRecorded`."""
        return RecordedMachine(self.data["facts"], self.data["owned"])

    def recompute(self) -> Recomputation:
        """Decide anew with the plugins installed here, at depth ``static``, and say what has changed.

        The settings are the snapshot's. Which plugins may be loaded is decided by both: a file cannot make this process
        trust anything. Loads no backend and no kernel. Errors: `SettingsError`.
        """
        from hardpoint._recomputation import recompute

        return recompute(self)

    def to_json(self) -> str:
        """The file's text, ASCII throughout."""
        import json

        return json.dumps(self.data, indent=1) + "\n"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file, all of it or nothing; only its owner may read it. Errors: `OSError`.

        What is no regular file (a pipe, ``/dev/stdout``) is written to as it is; of a link, where it leads.
        """
        from hardpoint._writing import write_file

        write_file(os.fspath(path), self.to_json())


def snapshot(
    configs: Iterable[AttentionConfig] = (), *, machine: Machine | None = None, depth: Depth | str = "loaded"
) -> Snapshot:
    """Take a snapshot: inspect the machine as `inspect` does, and ask every installed plugin what it would ask.

    Also those that the decision did without are asked, so that it can be made anew elsewhere; a plugin that fails is
    recorded, its bug too. Redacted: folders of the user's, names of user and host, what looks like a secret, addresses,
    serial numbers; ids of devices become others. Errors: as `inspect`.
    """
    observed = machine if machine is not None else process().machine
    if not hasattr(observed, "recorded_facts"):
        observed = ObservedMachine(observed)
    wanted = tuple(configs)
    report, platform, _ = examine(lambda _: wanted, machine=observed, depth=depth)
    owned = owned_variables(observed)
    ask_everybody(observed, owned, platform)
    recorder: _Recorder = observed
    redactor = Redactor(private_facts())
    shown = Report(data=redactor.data(report.as_dict()))
    views = {"text": printable(shown.to_text())}
    if hasattr(shown, "to_markdown"):
        views["markdown"] = printable(shown.to_markdown())
    return Snapshot(
        data={
            "kind": KIND,
            "schema": SCHEMA,
            "hardpoint": own_version(),
            "owned": list(owned),
            "facts": redactor.data(recorder.recorded_facts(owned)),
            "report": shown.data,
            "views": views,
        }
    )


def read_snapshot(path: str | os.PathLike[str]) -> Snapshot:
    """Read a snapshot's file, which may come from anywhere. Errors: `SnapshotError`: what is wrong with it, and where.

    Nothing in the file is run or loaded.
    """
    shown = os.fsdecode(os.fspath(path))
    try:
        with open(path, "rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise SnapshotError(f"{shown}: cannot be read: {error}", path=shown) from error
    return parse(content, shown)


def parse(content: bytes, shown: str | None = None) -> Snapshot:
    """A snapshot from a file's content. Errors: `SnapshotError`."""
    try:
        return Snapshot(data=parse_snapshot(content))
    except FormatError as error:
        raise SnapshotError(
            f"{shown or 'the snapshot'}: {error}. Take it anew there, with hardpoint.snapshot().write(file)", path=shown
        ) from None
