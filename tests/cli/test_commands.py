"""What the commands answer, their exit codes, and how they are written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

import hardpoint
from hardpoint._reasons import own_words
from hardpoint._settings import DESCRIPTIONS
from hardpoint.attention._config import FIELD_NAMES
from hardpoint.cli._commands import COMMANDS, cli, run
from hardpoint.cli._document import Cell, Heading, Hint, Paragraph, Table
from hardpoint.cli._text import render
from tests.cli.conftest import Shown
from tests.plugins import config, usable

if TYPE_CHECKING:
    from hardpoint.cli._document import Block
    from tests.cli.conftest import Command
    from tests.plugins import Site

LAYER = ("--head-size", "64", "--num-heads", "4")


def program(site: Site, *arguments: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """The program as a process of its own, with its output in a pipe."""
    environment = {**os.environ, "PYTHONPATH": str(site.folder), **variables}
    return subprocess.run(
        [sys.executable, "-m", "hardpoint.cli", *arguments],
        capture_output=True,
        check=False,
        env={name: value for name, value in environment.items() if value},
    )


def test_select_says_what_an_engine_would_get(site: Site, hardpoint_command: Command) -> None:
    """The same backend and reasons as the library's own selection."""
    site.platform("chip", priorities="BackendPriority('first', 'fastest'), BackendPriority('second', 'everywhere')")
    site.backend("first", validate="return ['no float32 here']")
    site.backend("second")
    data = hardpoint_command("select", *LAYER, "--dtype", "float32", "--block-size", "16", "--json").json()
    (shown,) = data["selections"]
    own = hardpoint.current_platform().select_backend(config())
    assert shown["backend"] == own.backend == "second"
    assert shown["config"] == own.config.as_dict()
    first = shown["candidates"][0]
    assert (first["outcome"], first["reasons"][0]["message"]) == ("rejected", "no float32 here")


@pytest.mark.parametrize(
    ("arguments", "variable", "backend", "code"),
    [
        ((), None, "first", 0),
        (("--backend", "second"), None, "second", 0),
        (("--backend", "nobody,second"), None, "second", 0),
        (("--backend", "nobody"), None, None, 1),
        (("--backend", "broken"), None, None, 1),
        (("--backend", "broken,auto"), None, "first", 0),
        ((), "second", "second", 0),
        (("--backend", "first"), "second", "first", 0),
    ],
)
def test_a_backend_that_is_asked_for_binds(
    site: Site,
    hardpoint_command: Command,
    arguments: tuple[str, ...],
    variable: str | None,
    backend: str | None,
    code: int,
) -> None:
    """A name, a list, auto, the variable; 1 where nothing of it is available."""
    site.platform("chip", priorities="BackendPriority('first', 'fastest'), BackendPriority('second', 'everywhere')")
    site.backend("first")
    site.backend("second")
    site.backend("broken", top="raise OSError('libx.so: no')")
    if variable is not None:
        site.monkeypatch.setenv("HARDPOINT_ATTENTION_BACKEND", variable)
    shown = hardpoint_command("select", *LAYER, *arguments, "--json")
    (selection,) = shown.json()["selections"]
    assert (selection["backend"], shown.code) == (backend, code)
    names = {item["name"]: item["outcome"] for item in selection["candidates"]}
    assert {"first", "second", "broken"} <= names.keys()


def test_strict_mode_is_told(site: Site, hardpoint_command: Command) -> None:
    """An engine would stop at the first loss, so the exit code says that what it asks for is not available."""
    site.platform("chip", priorities="BackendPriority('first', 'fastest'), BackendPriority('second', 'everywhere')")
    site.backend("first", top="raise OSError('libx.so: no')")
    site.backend("second")
    assert hardpoint_command("select", *LAYER).code == 0
    site.monkeypatch.setenv("HARDPOINT_STRICT", "1")
    shown = hardpoint_command("select", *LAYER)
    assert shown.code == 1
    assert "an engine would stop at the first lost candidate" in " ".join(shown.out.split())


def test_every_field_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    """Made from the dataclass, with a help text each."""
    select = cli.get_command(None, "select")  # type: ignore[arg-type]  # the context is not used
    assert select is not None
    options = {parameter.name: parameter for parameter in select.params}
    for name in FIELD_NAMES:
        assert name in options
        assert getattr(options[name], "help", None)
        assert f"--{name.replace('_', '-')}" in options[name].opts


def test_the_list_of_commands_is_the_commands_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Each is there under its name; --help imports none of them, which another test counts."""
    for name in COMMANDS:
        command = cli.get_command(None, name)  # type: ignore[arg-type]  # as above
        assert command is not None
        assert command.name == name
        assert run([name, "--help"]) == 0
        assert "--json" in capsys.readouterr().out or name == "completion"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("docto",), "did you mean 'doctor'"),
        (("select",), "--head-size and --num-heads"),
        (("select", "--head-size", "0", "--num-heads", "4"), "head_size=0"),
        (("select", "--head-size", "64", "--num-heads", "4", "--dtype", "float17"), "is not a dtype"),
        (("select", "--head-size", "64", "--num-heads", "4", "--kind", "mla_attention"), "kv_lora_rank"),
        (("doctor", "--recompute"), "--snapshot"),
        (("doctor", "--with", "x==1"), "--simulate"),
        (("doctor", "--simulate", "h100", "--with", "flash-attn"), "a version is needed"),
        (("doctor", "--snapshot", "/nowhere/at/all"), "cannot be read"),
        (("select", "--model", "/nowhere"), "does not exist"),
        (("doctor", "--depth", "deep"), "'deep' is not one of"),
    ],
)
def test_wrong_use(hardpoint_command: Command, arguments: tuple[str, ...], said: str) -> None:
    """Exit code 2, and a sentence that says what would be right."""
    shown = hardpoint_command(*arguments)
    assert shown.code == 2
    assert said.lower() in " ".join(shown.err.split()).lower()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("select", "--num-heads", "4"), "--head-size"),
        (("doctor", "--no-such-option"), "--no-such-option"),
        (("platforms", "--depth", "static"), "--depth"),
        (("doktor",), "doctor"),
        (("doctor", "--markdown"), "one of them"),
    ],
)
def test_wrong_use_in_json(hardpoint_command: Command, arguments: tuple[str, ...], said: str) -> None:
    """The error's own object, and nothing for people."""
    shown = hardpoint_command(*arguments, "--json")
    data = shown.json()
    assert (shown.code, shown.err) == (2, "")
    assert (data["schema"], data["exit_code"]) == ("hardpoint.error", 2)
    assert said in data["error"]["message"]


def test_a_meaningless_setting_is_wrong_use(site: Site, hardpoint_command: Command) -> None:
    """The variable, its value and what is accepted; in JSON too."""
    site.monkeypatch.setenv("HARDPOINT_STRICT", "perhaps")
    shown = hardpoint_command("doctor")
    assert (shown.code, shown.out) == (2, "")
    assert "HARDPOINT_STRICT='perhaps' means nothing; accepted: 1, true" in shown.err
    data = hardpoint_command("doctor", "--json").json()
    assert (data["schema"], data["exit_code"], data["error"]["kind"]) == ("hardpoint.error", 2, "SettingsError")


def test_no_plugin_at_all(site: Site, hardpoint_command: Command) -> None:
    """The doctor says how to get one."""
    shown = hardpoint_command("doctor")
    assert shown.code == 1
    assert "NONE" in shown.out


def test_only_broken_plugins(site: Site, hardpoint_command: Command) -> None:
    """Each is named with its cause, and the first thing said is that there is no platform."""
    site.platform("one", plugin_top="raise ImportError('libone.so: undefined symbol: _Z1')")
    site.platform("two", detect="raise OSError(13, 'Permission denied', '/dev/two0')")
    site.backend("three", plugin_top="import no_such_module_at_all")
    shown = hardpoint_command("doctor")
    assert shown.code == 1
    assert shown.says("ERROR no platform can be used here", 2)
    for part in ("undefined symbol: _Z1", "/dev/two0", "-> give this user access to it", "no_such_module_at_all"):
        assert "".join(part.split()) in "".join(shown.out.split())


def test_a_platform_that_is_asked_for_and_unknown(site: Site, hardpoint_command: Command) -> None:
    """Not available, with the names that are."""
    site.platform("host", rank="CPU")
    shown = hardpoint_command("doctor", "--platform", "hots")
    assert shown.code == 1
    assert shown.says("ERROR unknown platform 'hots'; did you mean 'host'?")
    assert shown.says("-> ask for one of:")


@pytest.mark.parametrize("arguments", [(), ("--platform", "chip")])
def test_a_platform_that_is_asked_for_and_absent(
    arguments: tuple[str, ...], site: Site, hardpoint_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first line says why, and what else could be asked for: not the same again."""
    site.platform("chip", detect="return Detection.absent('no chip: /dev/chip0 is not there')")
    site.platform("host", rank="CPU")
    if not arguments:
        monkeypatch.setenv("HARDPOINT_PLATFORM", "chip")
    data = hardpoint_command("doctor", *arguments, "--json").json()
    first = data["report"]["hints"][0]
    assert data["exit_code"] == 1
    assert "chip: no chip: /dev/chip0 is not there" in first["message"]
    how = "ask for" if arguments else "set HARDPOINT_PLATFORM to"
    assert first["remedy"].rpartition("; or ")[2].startswith(f"{how} one of: ")
    offered = first["remedy"].rpartition(": ")[2].split(", ")
    assert "host" in offered
    assert "chip" not in offered


def test_settings_name_every_variable(site: Site, hardpoint_command: Command) -> None:
    """Ours and the plugins', the value, the source; unknown ones with the likely name; no secret."""
    site.platform(
        "chip",
        spec="settings=(Setting('CHIP_MASK', 'which chips', 'all'), Setting('CHIP_API_TOKEN', 'who pays'))",
    )
    site.monkeypatch.setenv("CHIP_MASK", "0,1")
    site.monkeypatch.setenv("CHIP_API_TOKEN", "s3cr3t-value")
    site.monkeypatch.setenv("HARDPOINT_PLATFROM", "chip")
    shown = hardpoint_command("settings", "--json")
    variables = {item["name"]: item for item in shown.json()["variables"]}
    assert variables.keys() >= set(DESCRIPTIONS)
    assert (variables["CHIP_MASK"]["value"], variables["CHIP_MASK"]["source"]) == ("0,1", "environment")
    assert (variables["CHIP_API_TOKEN"]["value"], variables["CHIP_API_TOKEN"]["source"]) == (None, "private")
    assert variables["HARDPOINT_PLATFROM"]["meant"] == "HARDPOINT_PLATFORM"
    assert "s3cr3t" not in shown.out
    text = hardpoint_command("settings")
    assert "-> write HARDPOINT_PLATFORM" in text.out
    assert "0,1  [environment]" in text.out


def test_markdown_holds_nothing_private(site: Site, hardpoint_command: Command) -> None:
    """Not the home folder, the host, nor a secret in a plugin's message."""
    home = site.folder / "home" / "grace-hopper"
    home.mkdir(parents=True)
    site.monkeypatch.setenv("HOME", str(home))
    site.monkeypatch.setenv("USER", "grace-hopper")
    site.monkeypatch.setenv("CHIP_TOKEN", "hf_abcdefghijklmnop1234")
    site.platform("host", rank="CPU")
    site.platform(
        "chip",
        detect="""
        import os
        raise OSError(f"{os.environ['HOME']}/libchip.so: no access with {os.environ['CHIP_TOKEN']}")
        """,
    )
    shown = hardpoint_command("doctor", "--markdown")
    assert shown.out.startswith("# Hardpoint doctor\n")
    assert "libchip.so: no access with" in shown.out
    for secret in ("grace-hopper", "hf_abcdef", str(home)):
        assert secret not in shown.out


def test_human_and_machine_output_are_of_one_object(site: Site, hardpoint_command: Command) -> None:
    """Every candidate, reason and remedy of the JSON is in the text and in the Markdown; whose it is stands beside."""
    site.platform(
        "chip", priorities="BackendPriority('first', 'fastest'), BackendPriority('absent', 'x', 'hardpoint-absent')"
    )
    site.backend("first", validate="return [Reason(code='head_size', message='head size too odd', remedy='pad it')]")
    site.backend("second")
    data = hardpoint_command("doctor", "--json").json()
    for view in ((), ("--markdown",)):
        text = "".join(hardpoint_command("doctor", *view).out.replace("\\", "").split())
        for selection in data["report"]["selections"]:
            for item in selection["candidates"]:
                for reason in item["reasons"]:
                    brought = item["provenance"] or {"plugin": "", "distribution": "", "version": ""}
                    whose = "{plugin} ({distribution} {version})".format(**brought)
                    assert "".join(own_words(reason["message"], whose).split()) in text
                    assert "".join((reason.get("remedy") or "").split()) in text


@pytest.mark.parametrize(
    "arguments", [("doctor",), ("select", *LAYER), ("matrix",), ("settings",), ("platforms",), ("backends",)]
)
def test_eighty_columns_without_colour_in_a_pipe(
    site: Site, hardpoint_command: Command, arguments: tuple[str, ...]
) -> None:
    """No line is longer, no escape code is in it, nothing is said of progress."""
    site.platform("chip", detect="return Detection.unusable('x' * 300 + ' ' + 'word ' * 60)")
    site.platform("host", rank="CPU")
    site.backend("plain")
    shown = hardpoint_command(*arguments)
    assert shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    assert "\x1b" not in shown.out
    assert shown.err == ""


@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_a_locale_that_is_not_utf_8(site: Site, variables: dict[str, str]) -> None:
    """Plainer signs stand for what the encoding lacks, escapes for the rest."""
    site.platform("chip", detect="raise OSError('Gerät – nicht da → 日')")
    site.platform("host", rank="CPU")
    done = program(site, "doctor", **variables)
    assert done.stderr == b""
    text = "".join(done.stdout.decode("ascii").split())
    assert "Ger\\xe4t-nichtda->\\u65e5" in text


def test_a_reader_that_goes_away(site: Site) -> None:
    """`| head -1` gets its line, and nobody complains."""
    site.platform("host", rank="CPU")
    command = f'"{sys.executable}" -m hardpoint.cli doctor --verbose | head -1'
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(site.folder)},
    )
    assert done.stderr == b""
    assert done.stdout.count(b"\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device")
def test_output_that_cannot_be_written(site: Site) -> None:
    """A full disk is told, once; a closed output is nobody's business."""
    site.platform("host", rank="CPU")
    for redirection, code, said in (("> /dev/full", 1, "No space left on device"), (">&-", 1, "")):
        done = subprocess.run(
            ["/bin/sh", "-c", f'"{sys.executable}" -m hardpoint.cli doctor {redirection}'],
            capture_output=True,
            check=False,
            text=True,
            env={**os.environ, "PYTHONPATH": str(site.folder)},
        )
        assert done.returncode == code
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == bool(said)


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colours_and_progress_on_a_terminal_only(site: Site, variables: dict[str, str], coloured: bool) -> None:
    """A terminal gets both, a dumb one none, and NO_COLOR is heeded."""
    pty = pytest.importorskip("pty")
    site.platform("host", rank="CPU")
    parent, child = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    done = subprocess.Popen(
        [sys.executable, "-m", "hardpoint.cli", "doctor"],
        stdout=child,
        stderr=child,
        env={**environment, "PYTHONPATH": str(site.folder), **variables},
    )
    os.close(child)
    text = b""
    while True:
        try:
            chunk = os.read(parent, 65536)
        except OSError:
            break
        if not chunk:
            break
        text += chunk
    os.close(parent)
    done.wait()
    assert (b"\x1b[1m" in text) is coloured
    assert (b"platform/host: detect" in text) is (variables["TERM"] != "dumb")
    if variables["TERM"] == "dumb":
        assert b"\x1b" not in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(site: Site, shell: str) -> None:
    """The script, and what it asks for."""
    assert b"_HARDPOINT_COMPLETE" in program(site, "completion", shell).stdout
    script = f"hardpoint_complete_{shell}"
    assert script
    done = program(site, _HARDPOINT_COMPLETE="bash_complete", COMP_WORDS="hardpoint d", COMP_CWORD="1")
    assert b"doctor" in done.stdout


def test_without_the_extra(tmp_path: Path) -> None:
    """The command says how to get it, and nothing else."""
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError(\"No module named 'click'\", name='click')\n")
    done = subprocess.run(
        [sys.executable, "-m", "hardpoint.cli", "doctor"],
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 1
    assert (
        done.stderr == "hardpoint: the command line needs click, which is not installed: pip install 'hardpoint[cli]'\n"
    )


def test_help_imports_little(site: Site) -> None:
    """No command's module, no rich, no plugin, no torch."""
    code = (
        "import sys\nfrom hardpoint.cli._commands import run\nrun(['--help'])\n"
        "print([name for name in ('rich', 'torch', 'pluggy', 'json', 'hardpoint.cli._doctor', 'hardpoint._process') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "variables",
    [
        {"HOME": "", "XDG_CACHE_HOME": "", "USER": "", "TMPDIR": "/nowhere"},
        {"PYTHONDONTWRITEBYTECODE": "1", "HARDPOINT_CACHE_DIR": "/proc/nowhere"},
        {"PATH": ""},
        {"TERM": "", "COLUMNS": "1"},
        {"CUDA_VISIBLE_DEVICES": "\udcff"},
    ],
)
def test_strange_surroundings(site: Site, variables: dict[str, str]) -> None:
    """The doctor works in them."""
    site.platform("host", rank="CPU")
    site.backend("plain")
    done = program(site, "doctor", **variables)
    assert done.returncode == 0, done.stderr
    assert b"Platform: host" in done.stdout


@pytest.mark.parametrize(
    "torch",
    ["raise ImportError('libtorch.so: undefined symbol: _Z')", "raise RuntimeError('no')", "import os; os.abort()"],
)
def test_a_broken_torch(site: Site, hardpoint_command: Command, torch: str) -> None:
    """A backend that needs it is lost; the doctor is not."""
    (site.folder / "torch.py").write_text(torch)
    site.platform("host", rank="CPU", priorities="BackendPriority('needy', 'best'), BackendPriority('plain', 'last')")
    site.backend("needy", top="import torch")
    site.backend("plain")
    shown = hardpoint_command("select", *LAYER, "--json")
    (selection,) = shown.json()["selections"]
    assert selection["backend"] == "plain"
    assert selection["candidates"][0]["name"] == "needy"
    assert selection["candidates"][0]["outcome"] in ("failed", "bug")


def test_a_simulated_machine(site: Site, hardpoint_command: Command) -> None:
    """An unknown profile is wrong use, with the known ones."""
    site.platform("host", rank="CPU")
    shown = hardpoint_command("doctor", "--simulate", "h1000000")
    assert shown.code == 2
    assert "unknown device profile 'h1000000'" in shown.err


def test_a_snapshot_shows_the_same_report_elsewhere(site: Site, hardpoint_command: Command, tmp_path: Path) -> None:
    """Byte for byte, also where other plugins are installed; recomputing says what those would change."""
    site.platform("chip")
    site.backend("plain")
    file = tmp_path / "machine.json"
    assert hardpoint_command("snapshot", "-o", str(file)).code == 0
    views = json.loads(file.read_text())["views"]
    assert hardpoint_command("doctor", "--snapshot", str(file)).out == views["doctor"]
    site.platform("host", rank="CPU")
    site.backend("another")
    assert hardpoint_command("doctor", "--snapshot", str(file)).out == views["doctor"]
    assert hardpoint_command("doctor", "--snapshot", str(file), "--markdown").out == views["doctor.markdown"]
    first = hardpoint_command("doctor", "--snapshot", str(file), "--json").json()
    assert first["report"] == json.loads(file.read_text())["report"]
    anew = hardpoint_command("doctor", "--snapshot", str(file), "--recompute", "--json").json()
    assert any("backend/another" in item["where"] for item in anew["changes"])
    text = hardpoint_command("doctor", "--snapshot", str(file), "--recompute").out
    assert "Changed against the recorded report" in text
    for option in (("--platform", "host"), ("--depth", "static")):
        assert hardpoint_command("doctor", "--snapshot", str(file), *option).code == 2
    other = hardpoint_command("doctor", "--snapshot", str(file), "--recompute", "--platform", "nobody", "--json").json()
    assert {"where": "platform", "recorded": "chip", "recomputed": None} in other["changes"]
    shown = hardpoint_command("select", *LAYER, "--snapshot", str(file))
    assert shown.code == 2
    assert "add --recompute" in shown.err
    again = hardpoint_command("select", *LAYER, "--snapshot", str(file), "--recompute", "--json").json()
    assert again["selections"][0]["backend"] is not None


def test_a_snapshot_of_another_form(site: Site, hardpoint_command: Command, tmp_path: Path) -> None:
    """A file from anywhere may hold anything: it is told, never a traceback."""
    site.platform("chip")
    file = tmp_path / "machine.json"
    hardpoint_command("snapshot", "-o", str(file))
    data = json.loads(file.read_text())
    data["report"] = {"schema": 1}
    file.write_text(json.dumps(data))
    for command in (("platforms",), ("backends",), ("settings",), ("select", *LAYER), ("doctor", "--json")):
        shown = hardpoint_command(*command, "--snapshot", str(file))
        assert shown.code == 2
        assert "not of a form that can be shown here" in (shown.err + shown.out)


def test_the_version(site: Site) -> None:
    """One line."""
    assert program(site, "--version").stdout.decode() == f"hardpoint {hardpoint.__version__}\n"


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs a mount namespace")
@pytest.mark.parametrize("change", ["mount -t tmpfs none /proc", "mount -o remount,ro /"])
def test_without_proc_and_with_a_read_only_file_system(site: Site, change: str) -> None:
    """In a namespace of its own: the doctor works, and writes nothing."""
    site.platform("host", rank="CPU")
    site.backend("plain")
    if subprocess.run(["unshare", "-m", "sh", "-c", change], capture_output=True, check=False).returncode:
        pytest.skip("this user, or this system, makes no namespaces")
    command = f'{change} && exec "{sys.executable}" -m hardpoint.cli doctor'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(site.folder)},
    )
    assert done.stderr == b""
    assert b"Platform: host" in done.stdout
    assert done.returncode == 0


def test_a_working_directory_that_was_deleted(site: Site, tmp_path: Path) -> None:
    """It is told, and the machine is looked at from elsewhere: libraries of torch end a process that has none."""
    site.platform("host", rank="CPU", detect=f"import os\nos.getcwd()\n{usable()}")
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f'rmdir "{gone}"; exec "{sys.executable}" -m hardpoint.cli platforms'
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=gone,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(site.folder)},
    )
    shown = Shown(done.returncode, done.stdout, done.stderr)
    assert shown.says("WARNING this process has no working directory: it was deleted")
    assert shown.says("-> change to a directory that exists")
    assert "FileNotFoundError" not in shown.out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("flash-attn", "a version is needed, such as flash-attn==1.0"),
        ("flash-attn==", "a version is needed, such as flash-attn==1.0"),
        ("flash-attn==two", "'two' is no version"),
        ("flash-attn>=2", "expected NAME==VERSION, or NAME- for one that is not installed"),
        ("flash-attn[x]==2", "expected NAME==VERSION"),
        ("==2", "expected NAME==VERSION"),
        ("-", "expected NAME==VERSION"),
        ("", "expected NAME==VERSION"),
    ],
)
def test_a_package_that_is_none(hardpoint_command: Command, text: str, said: str) -> None:
    """`--with` wants a name and a version that distributions may have."""
    shown = hardpoint_command("doctor", "--simulate", "h100", "--with", text)
    assert shown.code == 2
    assert said in shown.err


def test_what_an_encoding_lacks_keeps_to_the_width() -> None:
    """What stands in its place is longer, and is laid out as it will be written."""
    table = Table(((Cell("×…"), Cell("日 " * 40)),), ("→",))
    blocks: list[Block] = [Hint("warning", "… " * 30, "– …" * 20), Paragraph("→" * 79), table, Heading("… " * 30)]
    text = render(blocks, width=60, colour=False, encoding="ascii")
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 60


@pytest.mark.parametrize("why", ["short", "a sentence that needs more room than is left beside the names " * 3, ""])
def test_a_table_never_breaks_names_for_the_sake_of_sentences(why: str) -> None:
    """Where a column of sentences has no room beside the others, they stand below their rows."""
    names = ("backend/with_a_long_name", "hardpoint-with-a-long-name 0.1.0")
    rows = ((Cell(names[0]), Cell(names[1]), Cell("breaks contract"), Cell(why)), (Cell("backend/b"),))
    text = render([Table(rows, ("plugin", "distribution", "outcome", "why"))], width=80, colour=False)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    (line,) = [line for line in lines if names[0] in line]
    assert names[1] in line
    assert "breaks contract" in line
    assert " ".join(why.split()) in " ".join(text.split())
    narrow = render([Table(rows)], width=40, colour=False).splitlines()
    assert max(map(len, narrow)) <= 40


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("doctor --platform ch", ["chip"]),
        ("doctor --platform chip,", ["chip,host", "chip,auto"]),
        ("select --backend chip,p", ["chip,plain"]),
        ("matrix --backend x", []),
        ("select --kind m", ["mla_attention"]),
    ],
)
def test_completion_of_values(site: Site, words: str, offered: list[str]) -> None:
    """Names of what is installed, for the last element of a list too; nothing of a plugin is run."""
    for name in ("chip", "host"):
        site.platform(name, plugin_top="raise SystemExit('loaded')")
    site.backend("plain", plugin_top="raise SystemExit('loaded')")
    count = str(len(words.split()))
    done = program(site, _HARDPOINT_COMPLETE="bash_complete", COMP_WORDS=f"hardpoint {words}", COMP_CWORD=count)
    found = [line.removeprefix("plain,") for line in done.stdout.decode().splitlines()]
    ours = ("chip", "host", "plain", "auto", "mla_attention")
    assert [item for item in found if item.rpartition(",")[2] in ours] == offered
    assert done.stderr == b""


@pytest.mark.plugins
def test_completion_of_profiles(site: Site) -> None:
    """The names of the installed plugins' devices."""
    site.allow("hardpoint-cuda")
    done = program(
        site, _HARDPOINT_COMPLETE="bash_complete", COMP_WORDS="hardpoint doctor --simulate l4,h1", COMP_CWORD="3"
    )
    assert done.stdout.decode().splitlines() == ["plain,l4,h100"]
