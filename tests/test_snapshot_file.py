"""The reader of snapshots: a file may hold anything."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hardpoint
from hardpoint._snapshot import parse
from hardpoint.errors import NotRecorded, SettingsError, SnapshotError
from tests.plugins import config
from tests.profiles import add_platform

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.plugins import Site


@pytest.fixture
def content(site: Site) -> bytes:
    """A right file."""
    add_platform(site)
    site.backend("one")
    machine = hardpoint.simulate("fast", count=2)
    return hardpoint.snapshot([config()], machine=machine).to_json().encode()


def changed(content: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The file with its data changed."""
    data = json.loads(content)
    change(data)
    return json.dumps(data).encode()


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda content: b"", "it is empty"),
        (lambda content: b" \n", "it is empty"),
        (lambda content: content[: len(content) // 2], "it is no JSON: "),
        (lambda content: content[:-3], "it may have been cut off"),
        (lambda content: b"\xff\xfe" + content, "it is no UTF-8 text: invalid start byte at byte 0"),
        (lambda content: content.decode().encode("utf-16"), "it is no UTF-8 text: "),
        (lambda content: b"PK\x03\x04" + content, "it is no JSON: "),
        (lambda content: b"[]", 'there is no "kind": "hardpoint snapshot"'),
        (lambda content: b"null", 'there is no "kind"'),
        (lambda content: b"{}", 'there is no "kind"'),
        (lambda content: b"[" * 200_000, "it is nested deeper than 64 levels"),
        (lambda content: b"[" * 500 + b"]" * 500, 'there is no "kind"'),
        (lambda content: b"1" * 10_000, "it is no JSON that can be read: "),
        (lambda content: content.replace(b'"schema": 1', b'"schema": NaN', 1), "NaN is not a number there"),
        (lambda content: b" " * (64 * 1024 * 1024 + 1), "it is longer than 67108864 bytes"),
    ],
)
def test_no_snapshot(content: bytes, tmp_path: Path, damage: Callable[[bytes], bytes], text: str) -> None:
    """The error names the file, says what is wrong with it and what to do, and is ours."""
    file = tmp_path / "damaged.json"
    file.write_bytes(damage(content))
    with pytest.raises(SnapshotError) as error:
        hardpoint.read_snapshot(file)
    assert str(error.value).startswith(f"{file}: ")
    assert text in str(error.value)
    assert str(error.value).endswith("Take it anew there, with hardpoint.snapshot().write(file)")
    assert isinstance(error.value, ValueError)
    assert error.value.path == str(file)


def nested(levels: int) -> list[Any]:
    """Lists in lists."""
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda data: data.update(schema=2),
            "schema 2, written by hardpoint '0.1.0'; this one reads schema 1",
        ),
        (lambda data: data.update(schema=0), "schema is 0; accepted: 1"),
        (lambda data: data.update(schema="1"), "schema is '1'; accepted: 1"),
        (lambda data: data.update(schema=True), "schema is True; accepted: 1"),
        (lambda data: data.pop("schema"), "schema is None; accepted: 1"),
        (lambda data: data.pop("facts"), "facts is missing; accepted: an object"),
        (lambda data: data.update(facts=[]), "facts is []; accepted: an object"),
        (lambda data: data.update(report=3), "report is 3; accepted: an object"),
        (lambda data: data["report"].pop("schema"), "report.schema is missing; accepted: a number"),
        (lambda data: data.update(owned="x"), "owned is 'x'; accepted: a list of texts"),
        (lambda data: data.update(owned=[1]), "owned is [1]; accepted: a list of texts"),
        (lambda data: data.update(views={}), "views.text is missing; accepted: a text"),
        (lambda data: data["views"].update(markdown=3), "views.markdown is 3; accepted: a text"),
        (lambda data: data.update(hardpoint=None), "hardpoint is missing; accepted: a text"),
        (lambda data: data["facts"].pop("variables"), "facts.variables is missing; accepted: an object"),
        (lambda data: data["facts"]["variables"].update(X=1), "facts.variables.X is 1; accepted: a text"),
        (lambda data: data["facts"].update(unset_variables={}), "facts.unset_variables is {}; accepted: a list of"),
        (lambda data: data["facts"].update(exists=[]), "facts.exists is []; accepted: an object"),
        (lambda data: data["facts"].update(exists={"/x": 1}), "facts.exists['/x'] is 1; accepted: an object with"),
        (lambda data: data["facts"].update(exists={"/x": {}}), "facts.exists['/x'].value is missing; accepted"),
        (lambda data: data["facts"].update(exists={"/x": {"value": 1}}), "facts.exists['/x'].value is 1; accepted"),
        (lambda data: data["facts"].update(files={"/x": {"value": []}}), "facts.files['/x'].value is []; accepted"),
        (lambda data: data["facts"].update(tools={"x": {"value": {"returncode": 0}}}), "facts.tools['x'].value is {"),
        (lambda data: data["facts"].update(files={"/x": {"error": 3}}), "facts.files['/x'].error is 3; accepted: an"),
        (
            lambda data: data["facts"].update(
                files={"/x": {"error": {"type": "OSError", "message": "", "errno": "2"}}}
            ),
            "facts.files['/x'].error.errno is '2'; accepted: a number",
        ),
        (
            lambda data: data["facts"].update(files={"/x": {"error": {"type": "OSError", "message": "", "code": 2}}}),
            "facts.files['/x'].error.code is 2; accepted: a text",
        ),
        (lambda data: data["facts"]["machine"].pop("system"), "facts.machine.system is missing"),
        (lambda data: data["facts"]["machine"].pop("cpu_count"), "facts.machine.cpu_count is missing"),
        (lambda data: data["facts"]["machine"].update(system={"value": 3}), "facts.machine['system'].value is 3"),
        (lambda data: data["facts"]["machine"].update(cpu_count={"value": -1}), "facts.machine['cpu_count'].value is"),
        (lambda data: data["facts"]["probes"].update(x={"value": nested(100)}), "it is nested deeper than 64 levels"),
        (lambda data: data["facts"]["probes"].update(x={"value": "\ud800"}), "facts.probes.x.value holds half a char"),
    ],
)
def test_wrong_field(content: bytes, change: Callable[[dict[str, Any]], object], text: str) -> None:
    """The error names the place, what stands there and what is accepted."""
    with pytest.raises(SnapshotError) as error:
        parse(changed(content, change))
    assert text in str(error.value)


def test_infinite_number(content: bytes) -> None:
    """A number that JSON can spell and nobody can use is refused."""
    with pytest.raises(SnapshotError, match=r"report\.strange is inf, which is no number"):
        parse(content.replace(b'"report": {', b'"report": {"strange": 1e999, ', 1))


def test_fields_that_nobody_knows(content: bytes) -> None:
    """A later version of the same schema may add fields: they are passed over."""
    data = json.loads(content)
    data["more"] = data["facts"]["more"] = {"x": 1}
    assert parse(json.dumps(data).encode()).recompute().changes == ()


@pytest.mark.parametrize(
    ("described", "kind", "text"),
    [
        ({"type": "SystemExit", "message": "x"}, hardpoint.EnvironmentFailure, "SystemExit: x"),
        ({"type": "KeyError", "message": "x"}, hardpoint.EnvironmentFailure, "KeyError: x"),
        ({"type": "print", "message": "x"}, hardpoint.EnvironmentFailure, "print: x"),
        ({"type": "__import__", "message": "x"}, hardpoint.EnvironmentFailure, "__import__: x"),
        ({"type": "PermissionError", "message": "no", "errno": 13}, PermissionError, "no"),
        ({"type": "PermissionError", "message": "[Errno 13] no", "errno": 13}, PermissionError, "[Errno 13] no"),
        ({"type": "OSError", "message": "[Errno 5] it's: \"q'\"", "errno": 5}, OSError, "[Errno 5] it's: \"q'\""),
        ({"type": "NotRecorded", "message": "x"}, hardpoint.errors.NotRecorded, "x"),
        ({"type": "EnvironmentFailure", "message": "x", "code": "of tomorrow"}, hardpoint.EnvironmentFailure, "x"),
        ({"type": "ImportError", "message": "x"}, ImportError, "x"),
    ],
)
def test_recorded_failures(content: bytes, described: dict[str, Any], kind: type[Exception], text: str) -> None:
    """Whatever type a file names, what is raised is an environment failure with its text, and nothing else."""
    file = changed(content, lambda data: data["facts"].update(files={"/x": {"error": described}}))
    with pytest.raises(kind) as error:
        parse(file).machine().read_bytes("/x")
    assert str(error.value) == text
    assert isinstance(error.value, ImportError | OSError)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_any_bytes(site: Site, raw: bytes) -> None:
    """Any bytes are no snapshot, and the error is ours."""
    with pytest.raises(SnapshotError):
        parse(raw)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["value", "error", "type", "message", "candidates", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    return [found for key, item in items for found in [(*path, key), *_places(item, (*path, key))]]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_change(content: bytes, data: st.DataObject) -> None:
    """A right file with anything at any place replaced or removed is refused, or is replayed and recomputed."""
    whole = json.loads(content)
    places = _places(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places))
        owner = whole
        try:
            for key in path[:-1]:
                owner = owner[key]
            if data.draw(st.booleans()):
                owner[path[-1]] = data.draw(_json)
            else:
                del owner[path[-1]]
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change has taken the place away
    _use(json.dumps(whole).encode())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 1 << 16), st.binary(max_size=4), st.integers(0, 4))
def test_any_damage(content: bytes, place: int, put: bytes, taken: int) -> None:
    """The same for bytes that are overwritten, inserted or lost."""
    place %= len(content)
    _use(content[:place] + put + content[place + taken :])


def _use(raw: bytes) -> None:
    try:
        found = parse(raw)
    except SnapshotError:
        return
    found.report.to_text()
    found.report.to_json()
    machine = found.machine()
    before = copy.deepcopy(found.data)
    with contextlib.suppress(NotRecorded):
        machine.variable("FAKE_VISIBLE_DEVICES")
    # What a plugin makes of strange answers is recorded, its bug too; a setting may mean nothing now.
    with contextlib.suppress(SettingsError):
        found.recompute().to_text()
    assert found.data == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="links and pipes as POSIX has them")
def test_what_is_no_regular_file_stays(tmp_path: Path) -> None:
    """A link is followed, a pipe is written to, and a pipe without a reader is an error; none is replaced."""
    taken = hardpoint.snapshot(machine=hardpoint.InMemoryMachine())
    (tmp_path / "link.json").symlink_to("target.json")
    taken.write(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "target.json").read_text() == taken.to_json()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe"):
        taken.write(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    received: list[bytes] = []

    def read() -> None:
        # Nothing is what a pipe gives before somebody writes, too.
        while not received or received[-1]:
            with contextlib.suppress(BlockingIOError):
                received.extend(filter(lambda chunk: chunk or received, [os.read(reader, 1 << 16)]))

    thread = threading.Thread(target=read)
    thread.start()
    taken.write(tmp_path / "pipe")
    thread.join(60)
    os.close(reader)
    assert b"".join(received).decode() == taken.to_json()
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["link.json", "pipe", "target.json"]


def test_a_view_that_would_command_a_terminal_is_refused(tmp_path: Path) -> None:
    """Control characters in a file from somewhere are an error; of our own making they are written out."""
    data = json.loads(hardpoint.snapshot(machine=hardpoint.InMemoryMachine()).to_json())
    data["views"]["text"] += "\x1b]0;title\x07"
    (tmp_path / "file.json").write_text(json.dumps(data))
    with pytest.raises(SnapshotError, match=r"views\.text holds the control character"):
        hardpoint.read_snapshot(tmp_path / "file.json")


def test_a_plugin_that_sends_commands_to_the_terminal(site: Site) -> None:
    """What it says is written out, and the file can be read."""
    site.platform("odd", detect="raise OSError('\\x1b[31mred' + 'z' * 3_000_000)")
    taken = hardpoint.snapshot()
    assert "\x1b" not in taken.report.to_text()
    assert "more characters" in taken.report.to_text()
    assert len(taken.to_json()) < 1_000_000
