"""The two ends of the pipe between a command and its child, in this process."""

from __future__ import annotations

import json
import os
import queue
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hardpoint
from hardpoint import _probing
from hardpoint._probing import Failure, attempt
from hardpoint._reasons import Outcome, Phase, Provenance
from hardpoint.cli import _ask, _child
from hardpoint.cli._answers import IsolatingMachine, answer, build_machine
from hardpoint.cli._frames import Frames
from hardpoint.cli._output import encodable
from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.plugins import Site

NONCE = "0123456789abcdef"
WHO = Provenance(plugin="platform/x", distribution="fake-x", version="1.0")
LAYER = {"label": "one", "fields": {"head_size": 64, "num_heads": 4}}


@given(
    st.lists(st.one_of(st.binary(max_size=40), st.tuples(st.sampled_from("be+A"), st.text('abc{}"\\<>', max_size=20)))),
    st.integers(1, 7),
)
def test_frames_are_told_from_noise(parts: list[Any], size: int) -> None:
    """Whatever a plugin prints between and however the pipe cuts it, frames come out whole, and noise is noise."""
    parts = [part for part in parts if not isinstance(part, bytes) or NONCE.encode() not in part]
    stream = b""
    for part in parts:
        stream += part if isinstance(part, bytes) else f"\0{NONCE}<{part[0]}{part[1]}>{NONCE}\0".encode()
    reader = Frames(NONCE)
    found = [item for start in range(0, len(stream), size) for item in reader.feed(stream[start : start + size])]
    assert [(kind, content.decode()) for kind, content in found if kind != "o"] == [
        part for part in parts if isinstance(part, tuple)
    ]
    noise = b"".join(content for kind, content in found if kind == "o")
    printed = b"".join(part for part in parts if isinstance(part, bytes))
    # What could be the beginning of a frame is kept until it is known.
    assert printed.startswith(noise)
    assert len(printed) - len(noise) <= len(NONCE) + 1


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[_child.Watcher, Any]]:
    """A watcher that writes into a pipe, and what has been read from it so far."""
    reading, writing = os.pipe()
    monkeypatch.setattr(os, "dup", lambda descriptor: writing)
    verdict = {
        "plugin": "platform/x",
        "phase": "load",
        "what": "",
        "code": "crashed",
        "message": "crashed with SIGSEGV",
        "remedy": None,
        "detail": None,
    }
    sent = _child._Channel(NONCE)
    monkeypatch.undo()
    watcher = _child.Watcher(sent, [verdict])
    reader = Frames(NONCE)

    def read() -> list[tuple[str, bytes]]:
        return list(reader.feed(os.read(reading, 65536)))

    _probing.watch(watcher)
    yield watcher, read
    _probing.watch(None)
    os.close(reading)
    os.close(writing)


def test_a_step_is_announced_and_ended(channel: tuple[_child.Watcher, Any]) -> None:
    """Also one that fails; the parent is told whose it is."""
    _, read = channel
    assert attempt(lambda: 1, phase=Phase.DETECT, provenance=WHO) == 1

    def fail() -> None:
        raise OSError("no")

    assert isinstance(attempt(fail, phase=Phase.IMPORT, provenance=WHO, what="it"), Failure)
    kinds = [(kind, json.loads(content) if content else None) for kind, content in read()]
    assert kinds == [
        ("b", ["platform/x", "detect", "", "platform/x (fake-x 1.0)"]),
        ("e", None),
        ("b", ["platform/x", "import", "it", "platform/x (fake-x 1.0)"]),
        ("e", None),
    ]


def test_a_step_that_ends_the_process_stays_open(channel: tuple[_child.Watcher, Any]) -> None:
    """No end is told: that is how the parent knows."""
    _, read = channel

    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        attempt(leave, phase=Phase.DETECT, provenance=WHO)
    assert [kind for kind, _ in read()] == ["b"]


def test_what_is_known_is_replayed(channel: tuple[_child.Watcher, Any]) -> None:
    """The step is not run again; its outcome is the one that it had."""
    found = attempt(lambda: pytest.fail("it ran"), phase=Phase.LOAD, provenance=WHO, inspecting=True)
    assert isinstance(found, Failure)
    assert (found.outcome, str(found.reason.code), found.reason.message) == (
        Outcome.BUG,
        "crashed",
        "crashed with SIGSEGV",
    )


def test_a_change_of_the_environment_is_undone(
    channel: tuple[_child.Watcher, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set, changed and removed variables."""
    watcher, _ = channel
    monkeypatch.setenv("HP_CHANGED", "1")
    monkeypatch.setenv("HP_REMOVED", "1")

    def meddle() -> None:
        os.environ.update(HP_CHANGED="2", HP_NEW="3")
        del os.environ["HP_REMOVED"]

    attempt(meddle, phase=Phase.DETECT, provenance=WHO)
    assert (os.environ["HP_CHANGED"], os.environ["HP_REMOVED"]) == ("1", "1")
    assert "HP_NEW" not in os.environ
    (told,) = watcher.observations
    assert told["plugin"] == "platform/x"
    assert "HP_CHANGED, HP_NEW, HP_REMOVED" in told["what"]


def test_a_long_answer_comes_in_frames(channel: tuple[_child.Watcher, Any]) -> None:
    """None longer than a pipe takes at once."""
    watcher, read = channel
    threading.Thread(target=watcher._channel.send_answer, args=("A", {"text": "ä" * 10000})).start()
    content, kinds = "", ""
    while "A" not in kinds:
        for kind, part in read():
            kinds += kind
            content += part.decode()
            assert len(part) <= _child.FRAME_BYTES
    assert json.loads(content) == {"text": "ä" * 10000}


def question(what: str, **more: Any) -> dict[str, Any]:
    """A question about this machine."""
    return {
        "what": what,
        "machine": {"kind": "live"},
        "machines": [{"label": "here", "machine": {"kind": "live"}}],
        "configs": [LAYER],
        "depth": "loaded",
        "platform": None,
        "backend": None,
        "kernels": True,
        "parts": ["platforms", "backends", "settings"],
        **more,
    }


def test_the_answers(site: Site, tmp_path: Any) -> None:
    """A report, a matrix, a snapshot, and a snapshot that is decided anew: data only."""
    site.platform("chip")
    site.backend("plain")
    examined = answer(question("examine"))
    assert examined["labels"] == ["one"]
    # Of what the platform computes in, where the question leaves it open.
    assert examined["report"]["selections"][0]["config"]["dtype"] == "float32"
    cells = answer(question("matrix"))["cells"]
    assert [cell["selection"]["backend"] for cell in cells] == ["plain"]
    taken = answer(question("snapshot"))["data"]
    file = tmp_path / "machine.json"
    hardpoint.Snapshot(data=taken).write(file)
    anew = {"kind": "recomputed", "file": str(file)}
    assert answer(question("examine", machine=anew, configs=None))["changes"] is not None
    again = answer(question("examine", machine=anew))
    assert again["report"]["selections"][0]["backend"] == "plain"
    assert json.loads(json.dumps([examined, cells, taken, again])) == [examined, cells, taken, again]


def test_the_answers_without_a_platform(site: Site) -> None:
    """There is a report, an empty matrix and a snapshot."""
    assert answer(question("examine"))["report"]["platform"] is None
    assert answer(question("matrix"))["devices"] == []
    assert answer(question("snapshot"))["data"]["report"]["platform"] is None


def test_a_wrong_config_is_told(site: Site) -> None:
    """As an error of ours, which the parent shows."""
    site.platform("chip")
    with pytest.raises(ConfigError):
        answer(question("examine", configs=[{"label": "x", "fields": {"head_size": 0, "num_heads": 1}}]))


def test_probes_are_isolated_unless_the_variable_says_otherwise(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    """In a process of its own, or in this one."""
    (site.folder / "asks_pid.py").write_text("import os\ndef ask():\n    return os.getpid()\n")
    machine = build_machine({"kind": "live"})
    assert isinstance(machine, IsolatingMachine)
    monkeypatch.delenv("HARDPOINT_PROBE", raising=False)
    assert machine.probe("x", "asks_pid:ask") != os.getpid()
    monkeypatch.setenv("HARDPOINT_PROBE", "inprocess")
    assert machine.probe("x", "asks_pid:ask") == os.getpid()


def test_a_simulated_machine_is_built() -> None:
    """As `hardpoint.simulate` does. Errors: its own."""
    with pytest.raises(hardpoint.errors.SimulationError):
        build_machine({"kind": "simulated", "profiles": "no-such-thing", "distributions": {}})


def test_a_child_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it said before it ended; no plugin is blamed."""
    monkeypatch.setattr(_ask, "_START", "import sys; sys.exit('cannot even start')")
    with pytest.raises(_ask.AskError, match="exited with code 1, in no plugin's code\ncannot even start") as caught:
        _ask.ask(question("examine"), probe_timeout_seconds=5, progress=lambda text: None)
    assert caught.value.kind == "died"


def test_a_child_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for as long as the heaviest step may take."""
    monkeypatch.setattr(_ask, "_START", "import time; time.sleep(600)")
    monkeypatch.setattr(_ask, "_HEAVY_SECONDS", 1.0)
    with pytest.raises(_ask.AskError, match=r"hangs: no answer within 1\.2 s, in no plugin's code"):
        _ask.ask(question("examine"), probe_timeout_seconds=0.1, progress=lambda text: None)


def test_too_many_deaths(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is an end to asking anew, with the names of those that made it so."""
    monkeypatch.setattr(_ask, "MAX_DEATHS", 1)
    for number in range(3):
        site.platform(f"crasher_{number}", plugin_top="import os\nos.abort()")
    with pytest.raises(_ask.AskError, match="platform/crasher_0, platform/crasher_1"):
        _ask.ask(question("examine"), probe_timeout_seconds=5, progress=lambda text: None)


def test_a_reader_that_nobody_listens_to() -> None:
    """It goes on to the end of its pipe, and closes it."""
    reading, writing = os.pipe()
    os.write(writing, b"text")
    os.close(writing)
    chunks: queue.Queue[bytes | None] = queue.Queue()
    stream = os.fdopen(reading, "rb", buffering=0)
    _ask._read(stream, chunks)
    assert (chunks.get(), chunks.get(), stream.closed) == (b"text", None, True)


@pytest.mark.parametrize(
    ("text", "encoding", "shown"),
    [
        ("a → b", "utf-8", "a → b"),
        ("a → b … 8 × c", "ascii", "a -> b ... 8 x c"),
        ("Gerät", "latin-1", "Gerät"),
        ("日", "latin-1", "\\u65e5"),
        ("日", None, "\\u65e5"),
        ("–", "no-such-encoding", "-"),
    ],
)
def test_what_an_encoding_lacks(text: str, encoding: str | None, shown: str) -> None:
    """Plainer signs, then escapes."""
    assert encodable(text, encoding) == shown
