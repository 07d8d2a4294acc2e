"""Nothing that was planted comes out of a snapshot, wherever it stood."""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING

import pytest

import hardpoint
from tests.plugins import config

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugins import Site

PLANTED = {
    "variable": "vanadium-7719-variable",
    "value": "wolfram-3301-value",
    "home": "yttrium-home-8812",
    "user": "zelda-quux",
    "host": "rhenium-box-5",
    "venv": "osmium-venv-1234",
    "temporary": "iridium-scratch-77",
    "github": "ghp_Ab0Cd1Ef2Gh3Ij4Kl5Mn6",
    "hugging": "hf_QwErTyUiOpAsDfGhJk",
    "cloud": "AKIAQWERTYUIOPASDFGH",
    "password": "tantalum!9",
    "serial": "1562120006421",
    "address": "192.168.77.13",
    "mac": "00:1b:44:11:3a:b7",
    "mail": "zelda-quux@rhodium.example",
    "mount": "palladium-project",
    "uuid": "5a1c2b3d-9f8e-4d7c-8b6a-123456abcdef",
    "deep": "hafnium-folder",
    "at": "ssgallium01",
    "escaped": "indium-esc-02",
    "semicolon": "thallium03",
    "header": "cerium-04",
    "signed": "praseodymium05",
    "line": "neodymium-line-06",
    "tab": "samarium-07",
    "payment": "sk_live_europium08",
    "block": "gadolinium09",
    "cookie": "terbium-10 and dysprosium-11",
    "instance": "i-0123456789abcdef0",
}
DETECT = """
    names = "PLAIN_SECRET_TOKEN UNRELATED_SETTING HOME TMPDIR PATH FAKE_PATH FAKE_VISIBLE_DEVICES"
    for name in names.split():
        machine.variable(name)
    machine.variables()
    machine.run_tool(["leaky-tool", "--token", "{password}"])
    machine.run_tool(["leaky-tool"])
    machine.find_tool("leaky-tool")
    machine.read_text(machine.variable("FAKE_PATH"))
    machine.real_path(machine.variable("FAKE_PATH"))
    machine.list_directory(machine.variable("HOME"))
    machine.exists(machine.variable("HOME") + "/x")
    machine.distribution_file("fake-fake", "{package_file}")
    try:
        machine.probe("fake.fails", "leaky_library:fails")
    except OSError:
        pass
    answer = machine.probe("fake.devices", "leaky_library:devices")
    return Detection.usable(
        [Device(index=0, name="Fake of " + machine.variable("USER"), uuid="GPU-{uuid}",
                properties={{"serial": "{serial}", "path": machine.variable("FAKE_PATH")}})],
        notes=["{github} was found in " + machine.variable("FAKE_PATH"), "reach me at {mail}, {address}"],
    )
"""
LIBRARY = """
import os
from hardpoint import EnvironmentFailure
def fails(): raise EnvironmentFailure("cannot open " + os.environ["FAKE_PATH"] + ": PASSWORD={password}")
def devices(): return {{"serial": "{serial}", "uuid": "GPU-{uuid}", "{cloud}": ["{hugging}", "https://me:{password}@x.y/"],
                        "api_key": "{value}", "env": os.environ["PLAIN_SECRET_TOKEN"], "mac": "{mac}"}}
"""
TOOL = """#!/bin/sh
cat <<END
token = {variable}
user $USER on {host}, home $HOME, temporary $TMPDIR/{deep}/x
Serial Number : {serial}
key {github} {hugging} {cloud} AWS_SECRET={value}
UUID: GPU-{uuid}  {address} {mac} {mail}
$PLAIN_SECRET_TOKEN $*
https://svc:p@{at}@host/x https://x.example/y?n=1&sig={signed}&se=2
{{\\"password\\": \\"{escaped}\\"}} PASSWORD=ab;{semicolon} run --token\t{tab}
Authorization: Token {header}
Set-Cookie: id={cookie}; Path=/
instance_id {instance}
only {line}, then {payment}
-----BEGIN PGP PRIVATE KEY BLOCK-----

{block}
-----END PGP PRIVATE KEY BLOCK-----
END
"""


@pytest.fixture
def leaky(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> hardpoint.Snapshot:
    """A snapshot of a process in which secrets are everywhere, with a plugin that looks everywhere."""
    home, venv = tmp_path / PLANTED["home"], tmp_path / PLANTED["venv"]
    temporary = tmp_path / PLANTED["temporary"]
    for folder in (home, venv / "bin", temporary / PLANTED["deep"]):
        folder.mkdir(parents=True)
    file = temporary / PLANTED["deep"] / "file.txt"
    file.write_text(f"password: {PLANTED['password']}\nhome={home}\n")
    tool = venv / "bin" / "leaky-tool"
    tool.write_text(TOOL.format(**PLANTED))
    tool.chmod(0o755)
    (site.folder / "leaky_library.py").write_text(LIBRARY.format(**PLANTED))
    for name, value in {
        "HOME": str(home), "TMPDIR": str(temporary), "VIRTUAL_ENV": str(venv), "FAKE_PATH": str(file),
        "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}", "USER": PLANTED["user"],
        "HOSTNAME": PLANTED["host"], "PLAIN_SECRET_TOKEN": PLANTED["variable"],
        "UNRELATED_SETTING": PLANTED["mount"], "HARDPOINT_CACHE_DIR": str(home / "cache"),
        "LINES_OF_A_KEY": f"one\n{PLANTED['line']}\nthree",
        "HARDPOINT_SECRET": PLANTED["value"], "FAKE_VISIBLE_DEVICES": f"GPU-{PLANTED['uuid']}",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    settings = "(Setting('FAKE_PATH', 'where'), Setting('FAKE_VISIBLE_DEVICES', 'mask'), Setting('FAKE_KEY', 'no'))"
    package = site.platform(
        "fake",
        detect=textwrap.dedent(DETECT.format(package_file="leaky_library.py", **PLANTED)),
        spec=f"settings={settings}",
        hooks=f"""
            @hookimpl
            def hardpoint_report(self, machine):
                raise RuntimeError("a bug with {PLANTED["github"]} in it")
        """,
    )
    site.backend("broken", top=f"raise ImportError('cannot load {home}/lib.so for {PLANTED['user']}')")
    site.backend("working")
    assert package
    return hardpoint.snapshot([config()])


@pytest.mark.parametrize("what", PLANTED)
def test_planted(leaky: hardpoint.Snapshot, what: str) -> None:
    """It stands neither in the file nor in any view of the report."""
    assert leaky.report.as_dict()["resolution"]["platform"] == "fake"
    texts = [leaky.to_json(), leaky.report.to_text(), leaky.report.to_json(), *leaky.data["views"].values()]
    assert [text for text in texts if PLANTED[what].lower() in text.lower()] == []


def test_what_is_left_is_useful(leaky: hardpoint.Snapshot, tmp_path: Path) -> None:
    """Placeholders stand where the secrets stood, and the rest can be read."""
    text = leaky.report.to_text()
    assert "setting: HARDPOINT_CACHE_DIR=<home>/cache" in text
    assert "cannot load <home>/lib.so for <user>" in text
    assert "fake (fake-fake 1.0): chosen" in text
    assert str(tmp_path) not in leaky.to_json()
    tool = leaky.machine().find_tool("leaky-tool")
    assert tool == "<venv>/bin/leaky-tool"


def test_decisions_can_still_be_made(leaky: hardpoint.Snapshot) -> None:
    """Questions and answers are redacted alike: the replayed plugin finds what it found."""
    machine = leaky.machine()
    path = machine.variable("FAKE_PATH")
    assert path is not None
    assert path.startswith("<tmp>/")
    assert "home=<home>" in machine.read_text(path)
    assert machine.variable("FAKE_VISIBLE_DEVICES") == machine.probe("fake.devices", "x:y")["uuid"]
    (device,) = leaky.report.as_dict()["platform"]["devices"]
    assert device["uuid"] == machine.variable("FAKE_VISIBLE_DEVICES")


def test_variables_of_others_do_not_enter(leaky: hardpoint.Snapshot) -> None:
    """Only ours, the plugins' own and reviewed ones are there, and none that is called like a secret."""
    variables = leaky.data["facts"]["variables"]
    assert {"FAKE_PATH", "FAKE_VISIBLE_DEVICES", "HARDPOINT_CACHE_DIR", "HARDPOINT_PLUGINS"} <= set(variables)
    assert not {"HOME", "PATH", "USER", "UNRELATED_SETTING", "HARDPOINT_SECRET", "PLAIN_SECRET_TOKEN"} & set(variables)
    assert "FAKE_KEY" not in leaky.data["owned"]
    assert not [name for name in leaky.data["facts"]["unset_variables"] if "KEY" in name or "TOKEN" in name]
