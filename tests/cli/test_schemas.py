"""The JSON of each command is what its published schema says, and a published schema never changes."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

import hardpoint.cli
from hardpoint._hints import SEVERITIES
from hardpoint._reasons import Outcome, Phase, ReasonCode
from hardpoint.attention._config import FIELD_NAMES
from hardpoint.cli._commands import COMMANDS, cli

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Command
    from tests.plugins import Site

jsonschema = pytest.importorskip("jsonschema")

FOLDER = Path(hardpoint.cli.__file__).parent / "schemas"
PUBLISHED = {
    "backends-1": "2c48aefbf6f80c8a",
    "backends-2": "1ebda224fe2507d0",
    "doctor-1": "d0e76b95f65c858c",
    "error-1": "671c40717c4297eb",
    "matrix-1": "13dc3c7760c4c4de",
    "matrix-2": "bdb5e4aeeb58a917",
    "platforms-1": "ac8f5bf1149f3d66",
    "platforms-2": "239246a60ca9eca9",
    "select-1": "40f7e057f832d0c2",
    "select-2": "9382ae6c00ee0e55",
    "settings-1": "b6c3497a02afbcea",
    "settings-2": "a8c289086fee13f1",
    "snapshot-1": "44692a4867189ffe",
    "snapshot-2": "8271772338f546bc",
}
"""The digest of each schema that was ever published. A change is a new version: a new file and a new line here."""


def schema(name: str) -> dict[str, Any]:
    """A schema by its file's name without ending."""
    data: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="ascii"))
    return data


def check(data: dict[str, Any]) -> None:
    """Validate a command's output against the schema that it names."""
    name = f"{data['schema'].removeprefix('hardpoint.')}-{data['version']}"
    jsonschema.Draft202012Validator(schema(name)).validate(data)


def test_a_published_schema_never_changes() -> None:
    """Every file has the digest that it was published with; what is new has a new version."""
    found = {
        path.stem: hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()[:16]
        for path in FOLDER.glob("*.json")
    }
    assert found == PUBLISHED


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_schema_is_one(name: str) -> None:
    """By the meta-schema; closed, so that a field which nobody published does not validate."""
    data = schema(name)
    jsonschema.Draft202012Validator.check_schema(data)
    assert data["$id"] == f"urn:hardpoint:schema:{name.replace('-', ':')}"
    assert data["additionalProperties"] is False
    assert data["properties"]["schema"]["const"] == f"hardpoint.{name.partition('-')[0]}"
    for definition in data.get("$defs", {}).values():
        for part in definition.get("oneOf", [definition]):
            assert part["additionalProperties"] is False


def test_every_command_has_a_schema() -> None:
    """All but completion, which prints a script."""
    assert {name.partition("-")[0] for name in PUBLISHED} == {*COMMANDS, "error"} - {"completion"}


def test_the_schema_knows_every_code() -> None:
    """Codes, outcomes, phases, severities and fields that join need a new version."""
    definitions = schema("doctor-1")["$defs"]
    assert set(definitions["reason"]["properties"]["code"]["enum"]) == {str(code) for code in ReasonCode}
    assert set(definitions["candidate"]["properties"]["outcome"]["enum"]) == {str(item) for item in Outcome}
    assert set(definitions["candidate"]["properties"]["phase"]["oneOf"][1]["enum"]) == {str(item) for item in Phase}
    assert set(definitions["hint"]["properties"]["severity"]["enum"]) == set(SEVERITIES)
    assert set(definitions["config"]["properties"]) == set(FIELD_NAMES)


@pytest.fixture
def messy(site: Site) -> Site:
    """A machine on which nearly everything goes wrong at once, so that every branch of a schema is met."""
    site.platform(
        "chip",
        priorities="BackendPriority('first', 'fast'), BackendPriority('missing', 'faster', 'hardpoint-missing')",
        detect="""
        odd = {"watts": 2.5, "tags": ("a", 1), "none": None}
        more = {"requested": (1, "x"), "accepted": "y", "remedy": "z"}
        reason = Reason(code="permission", message="no access\\nsecond line", **more)
        capability = DeviceCapability(runtime="chip", arch="c1", features=frozenset({"bf16"}))
        return Detection.usable([Device(index=0, name="Chip", capability=capability, properties=odd)], notes=[reason])
        """,
        body="""
        device_control_env_vars = ("CHIP_MASK",)
        def kernel_modules(self):
            return [KernelModule(name="chip_missing", distribution="chip-kernels"), KernelModule(name="chip_broken")]
        def extra_member(self):
            return 1
        """,
        spec="settings=(Setting('CHIP_MASK', 'which', 'all'),)",
        hooks="@hookimpl\ndef hardpoint_report(self, machine):\n    raise OSError('no section')",
    )
    (site.folder / "chip_broken.so").write_bytes(b"\x7fELF")
    site.platform("buggy", detect="return 1 / 0")
    site.platform("newer", api="(2, 0)")
    site.platform("talker", detect="print('x' * 100000)\nimport os\nos.environ['X_Y'] = '1'\nreturn None")
    site.platform("crasher", plugin_top="import os\nos.abort()")
    site.backend("first", top="raise OSError('libx.so: cannot open shared object file')")
    site.backend("second", validate="return [Reason(code='head_size', message='odd', requested=64, device=0)]")
    site.backend("third")
    site.backend("latent", kind="mla_attention")
    site.monkeypatch.setenv("HARDPOINT_PLATFROM", "chip")
    site.monkeypatch.setenv("CHIP_MASK", "0")
    return site


LAYER = ("--head-size", "64", "--num-heads", "4", "--soft-cap", "3", "--block-size", "16")


@pytest.mark.parametrize(
    "arguments",
    [
        ("doctor",),
        ("doctor", "--depth", "ready"),
        ("platforms",),
        ("backends",),
        ("select", *LAYER),
        ("select", *LAYER, "--backend", "nobody,second"),
        ("matrix",),
        ("settings",),
    ],
)
def test_the_output_validates(messy: Site, hardpoint_command: Command, arguments: tuple[str, ...]) -> None:
    """On a machine where nearly everything goes wrong; the exit code is the one that it states."""
    shown = hardpoint_command(*arguments, "--json")
    data = shown.json()
    check(data)
    assert data["exit_code"] == shown.code == 3


@pytest.mark.parametrize(
    "arguments", [("doctor",), ("platforms",), ("backends",), ("select", *LAYER), ("matrix",), ("settings",)]
)
def test_the_output_of_an_empty_machine_validates(
    site: Site, hardpoint_command: Command, arguments: tuple[str, ...]
) -> None:
    """Without any plugin."""
    check(hardpoint_command(*arguments, "--json").json())


def test_snapshots_and_errors_validate(messy: Site, hardpoint_command: Command, tmp_path: Path) -> None:
    """Taking one, showing it, deciding anew; a file that is none and a setting that means nothing."""
    file = str(tmp_path / "machine.json")
    check(hardpoint_command("snapshot", "-o", file, "--json").json())
    check(hardpoint_command("doctor", "--snapshot", file, "--json").json())
    check(hardpoint_command("doctor", "--snapshot", file, "--recompute", "--json").json())
    messy.monkeypatch.setenv("HARDPOINT_STRICT", "perhaps")
    check(hardpoint_command("doctor", "--json").json())


def test_a_field_that_nobody_published_does_not_validate(site: Site, hardpoint_command: Command) -> None:
    """The validation can fail: at the top, in a candidate, and in a code."""
    site.platform("host", rank="CPU")
    data = hardpoint_command("doctor", "--json").json()
    check(data)
    changes: tuple[Callable[[Any], object], ...] = (
        lambda data: data.update(more=1),
        lambda data: data["report"]["resolution"]["candidates"][0].update(more=1),
        lambda data: data["report"]["machine"].pop("system"),
        lambda data: data["report"]["hints"].append({"severity": "odd"}),
    )
    for change in changes:
        copy = json.loads(json.dumps(data))
        change(copy)
        with pytest.raises(jsonschema.ValidationError):
            check(copy)


@pytest.mark.checkout
def test_the_schemas_are_documented() -> None:
    """The page of the command line names each of them, each command and each exit code."""
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    for name in PUBLISHED:
        assert f"{name}.json" in page
    for name in COMMANDS:
        assert f"hardpoint {name}" in page
        command = cli.get_command(None, name)  # type: ignore[arg-type]  # the context is not used
        assert command is not None
        for option in (option for parameter in command.params for option in parameter.opts):
            is_field = option.removeprefix("--").replace("-", "_") in FIELD_NAMES
            assert is_field or option in page or option in ("shell", "-v", "--verbose", "--output"), option
    assert re.findall(r"^\| ([0-9]) \|", page, re.MULTILINE) == ["0", "1", "2", "3"]
