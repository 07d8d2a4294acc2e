from __future__ import annotations

import json
import os
import stat
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hardpoint
from hardpoint.errors import EnvironmentFailure, NotRecorded, SnapshotError
from tests.plugins import config, usable
from tests.profiles import add_platform

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.plugins import Site

ASKING = """
    machine.exists("/dev/fake0")
    machine.variable("FAKE_MODE")
    machine.variable("NOT_SET_THING")
    for question in (
        lambda: machine.variable("WITHHELD_THING"),
        lambda: machine.read_text("/no/such/file"),
        lambda: machine.list_directory("/no/such/folder"),
        lambda: machine.run_tool(["no-such-tool"]),
        lambda: machine.probe("fake.fails", "fake_questions:fails"),
        lambda: machine.probe("fake.lacks", "fake_questions:lacks"),
        lambda: machine.probe("fake.vendor", "fake_questions:vendor"),
    ):
        try:
            question()
        except (ImportError, OSError):
            pass
    machine.probe("fake.works", "fake_questions:works")
    machine.run_tool(["fake-tool", "-q"])
    machine.find_tool("no-such-tool")
    machine.can_read_and_write("/dev/null")
    machine.real_path("/proc/self/fd/..")
    machine.read_bytes("/proc/version")
    machine.list_directory("/sys")
    machine.distribution_version("pytest")
    machine.distribution_file("pytest", "pytest/__init__.py")
    machine.cpu_affinity()
    machine.user_id
"""
SETTING = "from hardpoint.hookspecs import Setting"
QUESTIONS = """
from hardpoint import EnvironmentFailure
class VendorError(OSError): pass
def fails(): raise EnvironmentFailure("no driver", code="driver", remedy="load it")
def lacks(): raise ModuleNotFoundError("No module named 'xyz_smi'", name="xyz_smi")
def vendor(): raise VendorError("status 34")
def works(): return {"devices": [1, None, True, 2.5, "x"]}
"""


@pytest.fixture
def asked(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> hardpoint.Snapshot:
    """A snapshot of this computer, with a plugin that asks one question of every kind."""
    (site.folder / "fake_questions.py").write_text(QUESTIONS)
    tool = tmp_path / "bin" / "fake-tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho out $1\necho err >&2\nexit 3\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_MODE", "quick")
    monkeypatch.setenv("WITHHELD_THING", "anything")
    monkeypatch.delenv("NOT_SET_THING", raising=False)
    site.platform("fake", detect=textwrap.dedent(ASKING) + usable(), spec="settings=(Setting('FAKE_MODE', 'how'),)")
    return hardpoint.snapshot([config()])


def test_file_holds_all_of_it(asked: hardpoint.Snapshot, tmp_path: Path) -> None:
    """What is read is what was written, and only its owner may read it."""
    file = tmp_path / "snapshot.json"
    asked.write(file)
    again = hardpoint.read_snapshot(file)
    assert again == asked
    assert json.loads(file.read_text(encoding="ascii")) == asked.data
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert again.report.to_text() == asked.report.to_text()
    assert again.report.to_json() == asked.report.to_json()
    assert os.listdir(tmp_path) == sorted(["bin", "site", "snapshot.json"], key=os.listdir(tmp_path).index)


def test_recorded_report_is_shown_as_it_was_made(asked: hardpoint.Snapshot, tmp_path: Path) -> None:
    """The text is the recorded one, byte for byte, also where this version would write another."""
    asked.data["views"]["text"] = "as an older version wrote it\n"
    asked.write(tmp_path / "snapshot.json")
    report = hardpoint.read_snapshot(tmp_path / "snapshot.json").report
    assert report.to_text() == str(report) == report.view("text") == "as an older version wrote it\n"
    assert report.view("braille") is None
    assert report.as_dict()["schema"] == 1


def test_writing_is_all_or_nothing(asked: hardpoint.Snapshot, tmp_path: Path) -> None:
    """Where writing fails, what was there before stays, and nothing half-written is left."""
    folder = tmp_path / "out"
    folder.mkdir()
    file = folder / "snapshot.json"
    file.write_text("before")
    broken = hardpoint.Snapshot(data={**asked.data, "strange": object()})
    with pytest.raises(TypeError):
        broken.write(file)
    assert file.read_text() == "before"
    assert os.listdir(folder) == ["snapshot.json"]
    nowhere = tmp_path / "nowhere" / "snapshot.json"
    with pytest.raises(FileNotFoundError) as caught:
        asked.write(nowhere)
    assert caught.value.filename == str(nowhere)
    with pytest.raises(IsADirectoryError) as told:
        asked.write(folder)
    assert told.value.filename == str(folder)
    asked.write(file)
    assert hardpoint.read_snapshot(file) == asked


def test_replayed_answers(asked: hardpoint.Snapshot) -> None:
    """Every kind of question is answered as it was."""
    machine = asked.machine()
    live = hardpoint.LiveMachine()
    assert not machine.live
    assert (machine.system, machine.architecture) == (live.system, live.architecture)
    assert (machine.kernel_release, machine.python_version) == (live.kernel_release, live.python_version)
    assert (machine.cpu_count(), machine.total_memory_bytes()) == (live.cpu_count(), live.total_memory_bytes())
    assert machine.cpu_affinity() == live.cpu_affinity()
    assert machine.exists("/dev/fake0") is False
    assert machine.can_read_and_write("/dev/null") is live.can_read_and_write("/dev/null")
    assert machine.real_path("/proc/self/fd/..").startswith("/proc/")
    assert machine.read_bytes("/proc/version", 5) == live.read_bytes("/proc/version", 5)
    assert machine.list_directory("/sys") == live.list_directory("/sys")
    assert machine.distribution_version("PyTest") == live.distribution_version("pytest")
    assert (machine.distribution_file("pytest", "pytest/__init__.py") or "").endswith("/pytest/__init__.py")
    assert machine.find_tool("no-such-tool") is None
    assert (machine.find_tool("fake-tool") or "").endswith("fake-tool")
    result = machine.run_tool(["fake-tool", "-q"])
    assert (result.returncode, result.stdout, result.stderr, result.truncated) == (3, "out -q\n", "err\n", False)
    answer = machine.probe("fake.works", "x:y")
    assert answer == {"devices": [1, None, True, 2.5, "x"]}
    answer["devices"].clear()
    assert machine.probe("fake.works", "x:y") == {"devices": [1, None, True, 2.5, "x"]}
    assert machine.user_id is None


def test_replayed_failures(asked: hardpoint.Snapshot) -> None:
    """A failure is raised again as what it was: Python's own types, and ours with code and remedy."""
    machine = asked.machine()
    with pytest.raises(FileNotFoundError) as file:
        machine.read_bytes("/no/such/file")
    assert str(file.value) == "[Errno 2] No such file or directory: '/no/such/file'"
    assert (file.value.errno, file.value.filename) == (2, "/no/such/file")
    with pytest.raises(FileNotFoundError, match="/no/such/folder"):
        machine.list_directory("/no/such/folder")
    with pytest.raises(FileNotFoundError, match="no such tool on the search path: 'no-such-tool'"):
        machine.run_tool(["no-such-tool"])
    with pytest.raises(EnvironmentFailure, match=r"^no driver$") as ours:
        machine.probe("fake.fails", "x:y")
    assert (ours.value.code, ours.value.remedy) == ("driver", "load it")
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'xyz_smi'$") as lacking:
        machine.probe("fake.lacks", "x:y")
    assert lacking.value.name == "xyz_smi"
    with pytest.raises(EnvironmentFailure, match=r"^VendorError: status 34$"):
        machine.probe("fake.vendor", "x:y")


@pytest.mark.parametrize(
    ("question", "text"),
    [
        (lambda machine: machine.exists("/dev/fake1"), "whether there is '/dev/fake1'"),
        (lambda machine: machine.read_bytes("/proc/other"), "the content of '/proc/other'"),
        (lambda machine: machine.read_text("/proc/other"), "the content of '/proc/other'"),
        (lambda machine: machine.list_directory("/"), "the names in '/'"),
        (lambda machine: machine.can_read_and_write("/"), "whether it may open '/'"),
        (lambda machine: machine.real_path("/"), "the real path of '/'"),
        (lambda machine: machine.distribution_version("other-one"), "the version of the distribution other-one"),
        (lambda machine: machine.distribution_file("pytest", "x"), "the file of a distribution 'pytest: x'"),
        (lambda machine: machine.find_tool("other"), "where there is the tool 'other'"),
        (lambda machine: machine.run_tool(["fake-tool", "-x"]), "the output of 'fake-tool -x'"),
        (lambda machine: machine.probe("other", "x:y"), "the probe 'other'"),
        (lambda machine: machine.variable("WITHHELD_THING"), "the variable WITHHELD_THING"),
        (lambda machine: machine.variable("NEVER_ASKED"), "the variable NEVER_ASKED"),
        (lambda machine: machine.variable("HARDPOINT_TOKEN"), "the variable HARDPOINT_TOKEN"),
        (lambda machine: machine.variables(), "which variables begin with ''"),
        (lambda machine: machine.variables("X_"), "which variables begin with 'X_'"),
    ],
)
def test_what_was_not_recorded(
    asked: hardpoint.Snapshot, question: Callable[[hardpoint.Machine], object], text: str
) -> None:
    """A question that nobody asked there has no answer, least of all no: it is an environment failure of its own."""
    with pytest.raises(NotRecorded) as missing:
        question(asked.machine())
    assert str(missing.value) == f"nobody asked the recorded machine for {text}"
    assert missing.value.remedy is not None


def test_variables(asked: hardpoint.Snapshot) -> None:
    """Ours, and a plugin's own, are there; one that was asked for and not set is known to be so."""
    machine = asked.machine()
    assert machine.variable("FAKE_MODE") == "quick"
    assert machine.variable("NOT_SET_THING") is None
    assert machine.variable("HARDPOINT_STRICT") is None
    assert "fake-fake" in (machine.variable("HARDPOINT_PLUGINS") or "")
    assert set(machine.variables("HARDPOINT_")) == {"HARDPOINT_PLUGINS"}
    assert "anything" not in asked.to_json()


def test_everybody_is_asked(site: Site) -> None:
    """Also the platforms that the decision did without, and the packages of backends that nobody considered."""
    site.platform("first", detect=usable())
    site.platform("second", detect="machine.exists('/dev/second'); " + usable())
    site.platform("third", detect="machine.exists('/dev/third'); 1 / 0")
    site.backend("mla", kind="mla_attention", spec="requires=('some-package>=1', 'not readable ???')")
    site.backend("other", more="package='other-package<3'")
    site.monkeypatch.setenv("HARDPOINT_PLATFORM", "first")
    hardpoint.reset()
    taken = hardpoint.snapshot()
    assert set(taken.data["facts"]["exists"]) >= {"/dev/second", "/dev/third"}
    assert taken.data["facts"]["distributions"]["other-package"] == {"value": None}
    assert taken.machine().variable("HARDPOINT_PLATFORM") == "first"


def test_simulated_machine(site: Site) -> None:
    """A simulated machine can be put into a snapshot too, under a mask by number or by the beginning of an id."""
    add_platform(site)
    plain = hardpoint.resolve(machine=hardpoint.simulate("fast", count=4)).platform
    begins = (plain.devices[2].uuid or "")[:7]
    for mask, chosen in ((None, [0, 1, 2, 3]), ("3,1", [3, 1]), (f"{begins},0", [2, 0])):
        variables = {} if mask is None else {"FAKE_VISIBLE_DEVICES": mask}
        machine = hardpoint.simulate("fast", count=4, variables=variables)
        taken = hardpoint.snapshot([config()], machine=machine)
        devices = hardpoint.resolve(machine=taken.machine()).platform.devices
        assert [device.physical_id for device in devices] == chosen
        assert taken.report.as_dict()["platform"]["devices"] == [device.as_dict() for device in devices]
        assert [device.capability for device in devices] == [plain.devices[place].capability for place in chosen]


def test_nothing_is_loaded_on_a_replayed_machine(site: Site) -> None:
    """A selection goes as deep as static; a load is refused, and kernel modules are not run."""
    add_platform(site, body='def kernel_modules(self): return [KernelModule(name="math", operators=("sqrt",))]')
    site.backend("one")
    taken = hardpoint.snapshot([config()], machine=hardpoint.simulate("fast"))
    platform = hardpoint.resolve(machine=taken.machine()).platform
    selection = platform.select_backend(config(), depth="ready")
    assert (selection.backend, selection.depth) == ("one", "static")
    with pytest.raises(NotRecorded, match="nothing is loaded"):
        selection.load()
    assert [str(item.outcome) for item in platform.import_kernels().modules] == ["not_run"]


def test_snapshot_of_a_snapshot(asked: hardpoint.Snapshot) -> None:
    """A replayed machine can be recorded again; what it refused is recorded as refused."""
    again = hardpoint.snapshot([config()], machine=asked.machine())
    assert again.report.as_dict()["platform"] == asked.report.as_dict()["platform"]
    with pytest.raises(FileNotFoundError, match="/no/such/file"):
        again.machine().read_bytes("/no/such/file")
    with pytest.raises(EnvironmentFailure, match=r"^no driver$"):
        again.machine().probe("fake.fails", "x:y")


def test_snapshot_of_a_snapshot_with_other_plugins(asked: hardpoint.Snapshot, site: Site) -> None:
    """What a new plugin would ask and nobody asked there stays unknown, and stops nothing."""
    site.allow("fake-new")
    taken = hardpoint.snapshot(machine=hardpoint.InMemoryMachine(variables={"HARDPOINT_PLUGINS": "fake-fake,fake-new"}))
    site.backend("new", spec="requires=('some-package',), settings=(Setting('NEW_MODE', 'how'),)", plugin_top=SETTING)
    again = hardpoint.snapshot(machine=taken.machine())
    assert "NEW_MODE" in again.data["owned"]
    with pytest.raises(NotRecorded, match="some-package"):
        again.machine().distribution_version("some-package")


def test_long_texts_are_cut(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that prints much is recorded in part, and the replayed result says so."""
    tool = tmp_path / "loud-tool"
    tool.write_text("#!/bin/sh\nhead -c 200000 /dev/zero | tr '\\0' x\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    site.platform("fake", detect="machine.run_tool(['loud-tool']); " + usable())
    result = hardpoint.snapshot().machine().run_tool(["loud-tool"])
    assert result.truncated
    assert result.stdout == "x" * 65536


def test_binary_file(site: Site, tmp_path: Path) -> None:
    """Bytes that are no text come back as they were."""
    file = tmp_path / "binary"
    file.write_bytes(bytes(range(256)))
    site.platform("fake", detect=f"machine.read_bytes({str(file)!r}); " + usable())
    taken = hardpoint.snapshot()
    taken.write(tmp_path / "snapshot.json")
    (path,) = (path for path in taken.data["facts"]["files"] if path.endswith("/binary"))
    assert hardpoint.read_snapshot(tmp_path / "snapshot.json").machine().read_bytes(path) == bytes(range(256))


def test_meaningless_setting(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that means nothing stops a snapshot as it stops every other decision."""
    site.platform("fake")
    monkeypatch.setenv("HARDPOINT_STRICT", "perhaps")
    with pytest.raises(hardpoint.errors.SettingsError, match="HARDPOINT_STRICT='perhaps'"):
        hardpoint.snapshot()


def test_no_file(tmp_path: Path) -> None:
    """A file that is not there, or is a folder, is said to be so."""
    for path in (tmp_path / "none", tmp_path, "nul\0byte"):
        with pytest.raises(SnapshotError, match="cannot be read: ") as error:
            hardpoint.read_snapshot(path)
        assert error.value.path == str(path)


def test_paths_of_every_kind(asked: hardpoint.Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is named by a text or a path object; a plain name is one of the working directory."""
    monkeypatch.chdir(tmp_path)
    asked.write("plain.json")
    assert hardpoint.read_snapshot(Path("plain.json")) == hardpoint.read_snapshot("plain.json") == asked


def test_report_of_the_recorded_machine_is_json(asked: hardpoint.Snapshot) -> None:
    """The report's JSON form is that of the redacted data."""
    data: dict[str, Any] = json.loads(asked.report.to_json())
    assert data == asked.data["report"]
    with pytest.raises(SnapshotError, match="holds no report as Markdown"):
        hardpoint.Snapshot(data={**asked.data, "views": {"text": ""}}).report.to_markdown()
