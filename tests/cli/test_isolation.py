"""Plugins that misbehave are survived, and named."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from hardpoint.cli import _ask

if TYPE_CHECKING:
    from tests.cli.conftest import Command
    from tests.plugins import Site

SEGFAULT = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"


@pytest.fixture(autouse=True)
def _whole(site: Site) -> None:
    """Beside the broken plugins there is always a whole platform and a whole backend."""
    site.platform("host", rank="CPU")
    site.backend("plain")


@pytest.mark.parametrize(
    ("place", "phase"),
    [
        ({"plugin_top": SEGFAULT}, "load"),
        ({"detect": SEGFAULT}, "detect"),
        ({"platform_top": SEGFAULT}, "activate"),
        (
            {"body": f"def kernel_modules(self):\n    {SEGFAULT.splitlines()[0]}\n    {SEGFAULT.splitlines()[1]}"},
            "import kernels",
        ),
        ({"hooks": "@hookimpl\ndef hardpoint_report(self, machine):\n    import os\n    os.abort()"}, "report"),
    ],
)
def test_a_platform_that_crashes_anywhere(
    site: Site, hardpoint_command: Command, place: dict[str, str], phase: str
) -> None:
    """Whatever the phase, it is named, and the report is there."""
    site.platform("crasher", **place)  # type: ignore[arg-type]  # keyword arguments of the fixture
    data = hardpoint_command("doctor", "--json").json()
    (bug,) = {(bug["plugin"], bug["phase"], bug["code"]) for bug in data["report"]["bugs"]}
    assert bug == ("platform/crasher", phase, "crashed")
    assert data["exit_code"] == 3
    assert data["report"]["resolution"]["platform"] is not None


@pytest.mark.parametrize(
    ("place", "phase"),
    [
        ({"plugin_top": SEGFAULT}, "load"),
        ({"top": SEGFAULT}, "import"),
        ({"validate": SEGFAULT}, "validate_configuration"),
    ],
)
def test_a_backend_that_crashes_anywhere(
    site: Site, hardpoint_command: Command, place: dict[str, str], phase: str
) -> None:
    """The other backend is chosen."""
    site.backend("crasher", **place)
    data = hardpoint_command("backends", "--json").json()
    (bug,) = data["bugs"]
    assert (bug["plugin"], bug["phase"], bug["code"]) == ("backend/crasher", phase, "crashed")
    assert data["selections"][0]["backend"] == "plain"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys\nsys.exit(7)", "exited with code 7"),
        (
            "import sys\nprint('one')\nprint('no licence\\n', file=sys.stderr)\nsys.exit(2)",
            "code 2, after 'no licence'",
        ),
        ("import os\nos._exit(0)", "exited with code 0"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("raise SystemExit", "exited with code 0"),
        ("raise KeyboardInterrupt", "SIGINT"),
    ],
)
def test_a_plugin_that_ends_the_process(site: Site, hardpoint_command: Command, code: str, said: str) -> None:
    """However it does, it is named with how it ended."""
    site.platform("leaver", plugin_top=code)
    data = hardpoint_command("platforms", "--json").json()
    (bug,) = data["bugs"]
    assert bug["plugin"] == "platform/leaver"
    assert said in bug["message"]
    assert data["resolution"]["platform"] == "host"


def test_several_that_crash(site: Site, hardpoint_command: Command) -> None:
    """Each is named."""
    for number in range(3):
        site.platform(f"crasher_{number}", plugin_top=SEGFAULT)
    data = hardpoint_command("platforms", "--json").json()
    assert [bug["plugin"] for bug in data["bugs"]] == [f"platform/crasher_{number}" for number in range(3)]


def test_a_plugin_that_prints_megabytes(site: Site, hardpoint_command: Command) -> None:
    """Nothing of it is shown; who printed how much is."""
    site.platform(
        "talker", detect="import os\nfor _ in range(40):\n    os.write(1, b'noise' * 20000)\nprint('more noise')"
    )
    shown = hardpoint_command("doctor")
    assert "noise" not in shown.out + shown.err
    assert shown.says("WARNING platform/talker printed 3.8 MiB (detect)")
    assert shown.code == 0


def test_a_plugin_that_changes_the_environment(site: Site, hardpoint_command: Command) -> None:
    """Which variables, by whom; the others decide as if it had not."""
    site.monkeypatch.setenv("FAKE_MASK", "kept")
    site.platform(
        "meddler",
        detect="""
        import os
        os.environ["FAKE_MASK"] = "meddled"
        os.environ["HARDPOINT_PLATFORM"] = "meddler"
        return Detection.absent("nothing here")
        """,
    )
    site.platform("zealous", detect="import os\nreturn Detection.absent(os.environ['FAKE_MASK'])")
    shown = hardpoint_command("doctor")
    assert shown.says("platform/meddler changed the environment (detect): FAKE_MASK, HARDPOINT_PLATFORM; undone here")
    assert "meddled" not in shown.out
    assert "kept" in shown.out
    assert os.environ["FAKE_MASK"] == "kept"


def test_a_plugin_that_reads_input(site: Site, hardpoint_command: Command) -> None:
    """It gets none, and does not hold anybody up."""
    site.platform("asker", detect="input('password? ')")
    data = hardpoint_command("platforms", "--json").json()
    assert data["bugs"][0]["message"].startswith("EOFError")


def test_a_probe_that_crashes_is_isolated(site: Site, hardpoint_command: Command) -> None:
    """Vendor libraries are asked in processes of their own: the plugin gets a reason, and goes on."""
    (site.folder / "fake_library.py").write_text("import os\ndef ask():\n    os.abort()\n")
    site.platform("prober", detect="return Detection.absent(str(machine.probe('x.ask', 'fake_library:ask')))")
    data = hardpoint_command("platforms", "--json").json()
    (candidate,) = [item for item in data["resolution"]["candidates"] if item["name"] == "prober"]
    assert (candidate["outcome"], candidate["reasons"][0]["code"]) == ("failed", "crashed")
    assert data["bugs"] == []


def test_a_bug_is_shown_first_and_is_the_exit_code(site: Site, hardpoint_command: Command) -> None:
    """The third column of the failure rule: recorded, first, and inspecting goes on."""
    site.platform("buggy", detect="return 1 / 0")
    shown = hardpoint_command("doctor")
    assert shown.code == 3
    assert shown.says("BUG platform/buggy (fake-buggy 1.0) has a bug (detect): ZeroDivisionError: division by zero", 3)
    assert "Platform: host" in shown.out


def test_a_section_that_fails_is_a_line(site: Site, hardpoint_command: Command) -> None:
    """The sections of the other plugins are shown, and the failing one says why it is not."""
    hook = "@hookimpl\ndef hardpoint_report(self, machine):\n    "
    absent = "return Detection.absent('no')"
    top = "from hardpoint.hookspecs import ReportSection"
    good = f"{hook}return [ReportSection(title='Clocks', lines=(('boost', '2 GHz'),))]"
    site.platform("good", hooks=good, plugin_top=top)
    site.platform("bad", hooks=f"{hook}raise OSError('no clock')", detect=absent)
    site.platform("odd", hooks=f"{hook}return ['text']", detect=absent)
    shown = hardpoint_command("doctor")
    for part in ("Clocks (platform/good)", "2 GHz", "this section failed: OSError: no clock", "expected a list of"):
        assert part in shown.out
    assert shown.code == 0


def test_a_plugin_that_closes_every_descriptor(site: Site, hardpoint_command: Command) -> None:
    """It ended without an answer; no signal is blamed that was our own."""
    site.platform("closer", detect="import os, time\nos.closerange(0, 256)\ntime.sleep(60)")
    data = hardpoint_command("doctor", "--json").json()
    (bug,) = [bug for bug in data["report"]["bugs"] if bug["plugin"] == "platform/closer"]
    assert bug["code"] == "crashed"
    assert bug["message"].startswith("ended without an answer")
    assert "SIG" not in bug["message"]
    assert data["report"]["resolution"]["platform"] == "host"


THREAD = """
import os, threading, time
def later():
    time.sleep(DELAY)
    os.abort()
threading.Thread(target=later, daemon=True).start()
"""
SLOW = "import time\ntime.sleep(1)\nreturn Detection.absent('not here')"


@pytest.mark.parametrize(
    "left",
    [
        THREAD.replace("DELAY", "0.3"),
        "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0.3)",
        "import faulthandler\nfaulthandler.dump_traceback_later(0.3, exit=True)",
    ],
)
def test_what_a_plugin_left_running_is_its_own_fault(site: Site, hardpoint_command: Command, left: str) -> None:
    """Not that of the plugin that happens to run when it strikes, which is asked in peace."""
    site.platform("early", detect=f"{left}\nreturn Detection.absent('nothing')")
    site.platform("later", detect=SLOW)
    data = hardpoint_command("platforms", "--json").json()
    (bug,) = data["bugs"]
    assert (bug["plugin"], bug["phase"], bug["code"]) == ("platform/early", "detect", "crashed")
    assert "left threads or a timer running" in bug["message"]
    assert "while platform/later was running (detect)" in bug["message"]
    outcomes = {item["name"]: item["outcome"] for item in data["resolution"]["candidates"]}
    assert (outcomes["later"], outcomes["early"], outcomes["host"]) == ("absent", "bug", "chosen")


def test_a_thread_that_does_no_harm_is_not_blamed(site: Site, hardpoint_command: Command) -> None:
    """Whoever crashes is to blame still, and without the other's threads the same happens."""
    quiet = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    site.platform("early", detect=f"{quiet}\nreturn Detection.absent('nothing')")
    site.platform("later", detect=SEGFAULT)
    data = hardpoint_command("platforms", "--json").json()
    (bug,) = data["bugs"]
    assert (bug["plugin"], "early" in bug["message"]) == ("platform/later", False)
    outcomes = {item["name"]: item["outcome"] for item in data["resolution"]["candidates"]}
    assert outcomes["early"] == "absent"


def test_where_nobody_can_tell_both_are_named(site: Site, hardpoint_command: Command) -> None:
    """Without the platform that left threads its backend is not asked at all: the blame says so."""
    site.monkeypatch.setenv("HARDPOINT_PLATFORM", "chip")
    quiet = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    site.platform("chip", platform_top=quiet)
    site.backend("crasher", top=SEGFAULT)
    data = hardpoint_command("backends", "--json").json()
    (bug,) = data["bugs"]
    assert bug["plugin"] == "backend/crasher"
    assert bug["message"].endswith("or it is the doing of platform/chip, which had left threads or a timer running")
    assert data["selections"][0]["backend"] == "plain"


def test_a_thread_that_strikes_in_nobodys_code(site: Site, hardpoint_command: Command) -> None:
    """Not in a plugin's step, but afterwards: still the plugin's doing."""
    site.platform("early", detect=f"{THREAD.replace('DELAY', '0')}\nreturn Detection.absent('nothing')")
    data = hardpoint_command("doctor", "--json").json()
    assert {bug["plugin"] for bug in data["report"]["bugs"]} == {"platform/early"}


@pytest.mark.parametrize("command", ["platforms", "backends", "settings", "select", "matrix"])
def test_a_bug_of_either_kind_is_shown_by_every_command(site: Site, hardpoint_command: Command, command: str) -> None:
    """What makes the exit code 3 is the first line, also where the command is about the other kind of plugin."""
    site.platform("buggy", detect="return 1 / 0")
    site.backend("wrong", plugin_top="1 / 0")
    layer = ("--head-size", "64", "--num-heads", "4") if command in ("select", "matrix") else ()
    shown = hardpoint_command(command, *layer)
    assert shown.code == 3
    assert shown.says("BUG platform/buggy (fake-buggy 1.0) has a bug (detect): ZeroDivisionError", 8)
    assert shown.says("BUG backend/wrong (fake-wrong 1.0) has a bug (load): ZeroDivisionError", 8)


def test_a_plugin_that_forks_and_returns_twice(site: Site, hardpoint_command: Command) -> None:
    """The copy ends where our code begins; the answer is given once."""
    site.platform("forker", detect="import os\nos.fork()\nreturn Detection.absent('twice')")
    data = hardpoint_command("platforms", "--json").json()
    assert [item["name"] for item in data["resolution"]["candidates"]].count("forker") == 1
    assert (data["resolution"]["platform"], data["bugs"]) == ("host", [])


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "import builtins\ndef refuse(*a, **k):\n    raise ImportError('mine')\nbuiltins.__import__ = refuse",
            "after 'ImportError: mine'",
        ),
        ("import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))", "Too many open files"),
    ],
)
def test_a_plugin_that_spoils_the_process(site: Site, hardpoint_command: Command, code: str, said: str) -> None:
    """What fails afterwards is nobody's code: it is found out without whom all is well."""
    site.platform("early", detect="return Detection.absent('nothing')")
    site.platform("spoiler", detect=f"{code}\nreturn Detection.absent('nothing')")
    data = hardpoint_command("platforms", "--json").json()
    (bug,) = data["bugs"]
    assert (bug["plugin"], bug["phase"], bug["code"]) == ("platform/spoiler", "detect", "crashed")
    assert bug["message"].startswith("spoils the process for all others, which then exited with code 1, after")
    assert said in bug["message"]
    assert data["resolution"]["platform"] == "host"


def test_a_plugin_that_takes_away_the_path_and_the_directory(site: Site, hardpoint_command: Command) -> None:
    """It is told, and the others decide as if it had not."""
    site.platform(
        "taker", detect="import os, sys\nsys.path[:] = ['/new']\nos.chdir('/')\nreturn Detection.absent('no')"
    )
    site.platform("zealous", detect="import os, sys\nreturn Detection.absent(f'{os.getcwd()} {sys.path[-1]}')")
    data = hardpoint_command("doctor", "--json").json()
    told = [item["what"] for item in data["report"]["observations"] if item["plugin"] == "platform/taker"]
    assert len(told) == 2
    assert "entries from the import path (detect); undone here, and not in an engine" in told[0]
    assert told[1] == "changed the working directory (detect); undone here, and not in an engine"
    (zealous,) = [item for item in data["report"]["resolution"]["candidates"] if item["name"] == "zealous"]
    assert zealous["reasons"][0]["message"] == f"{os.getcwd()} /new"


def test_a_failure_of_our_own_is_no_plugin_s(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it comes without any plugin's step as well, nobody is blamed."""
    start = _ask._START.replace("main(request)", "")
    broken = "import hardpoint._report as r; r.find_hardware = lambda machine: 1 / 0; main(request)"
    monkeypatch.setattr(_ask, "_START", f"{start}{broken}")
    question: dict[str, Any] = {
        "what": "examine",
        "machine": {"kind": "live"},
        "configs": [],
        "depth": "static",
        "platform": None,
    }
    question |= {"backend": None, "kernels": False, "parts": []}
    with pytest.raises(_ask.AskError, match=r"in no plugin's code\n[^$]*ZeroDivisionError"):
        _ask.ask(question, probe_timeout_seconds=5, progress=lambda text: None)
