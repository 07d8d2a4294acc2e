"""``--recompute``: every command says what comes out differently here, in each of its views."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

import hardpoint
from hardpoint._recomputation import changes_between
from tests.cli.test_schemas import check
from tests.plugins import config, usable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Command
    from tests.plugins import Site

LAYER = ("--head-size", "64", "--num-heads", "4")
SHAPE = {"head_size": 64, "num_heads": 4, "num_kv_heads": 4, "dtype": "float32", "block_size": None}
PLATFORM = {"plugin platform/chip (fake-chip)": ("1.0", "2.0")}
DEVICE = {"device 0: name": ("Fake 9.0", "Fake 10.0"), "device 0: capability": ("arch=sm_90", "arch=sm_100")}
BACKEND = {"plugin backend/fast (fake-fast)": ("1.0", None)}
LAYERS = {
    "head_size=64, num_heads=4, dtype=float32: backend": ("fast", "slow"),
    "head_size=64, num_heads=4, dtype=float32: candidate fast": ("would do", None),
}
TYPICAL = "A typical decoder layer"
SETTING = {
    "setting CHIP_MASK": ("7 (of platform/chip)", "7 (unknown, without effect)"),
    "setting CHIP_CLOCK": ("fast (of platform/chip)", "slow (of platform/chip)"),
}


@pytest.fixture
def file(site: Site, tmp_path: Path) -> Iterator[str]:
    """A snapshot, whose platform is newer here, and whose best backend is not installed here."""
    settings = "Setting('CHIP_MASK', 'which'), Setting('CHIP_CLOCK', 'how', 'fast')"
    site.monkeypatch.setenv("HARDPOINT_CHIP_MASK", "7")
    site.platform("chip", spec=f"settings=({settings.replace('CHIP_MASK', 'HARDPOINT_CHIP_MASK')},)")
    site.backend("fast", spec="order=Order(before=('slow',))")
    site.backend("slow")
    path = tmp_path / "machine.json"
    hardpoint.snapshot([config(**SHAPE)]).write(path)
    site.monkeypatch.delenv("HARDPOINT_CHIP_MASK")
    for name in ("chip", "fast"):
        shutil.rmtree(site.folder / f"fake_{name}-1.0.dist-info")
    site.platform("chip", detect=usable("10.0"), version="2.0", spec="settings=(Setting('CHIP_CLOCK', 'how', 'slow'),)")
    hardpoint.reset()
    yield str(path)
    hardpoint.reset()


def told(data: dict[str, Any]) -> dict[str, tuple[str | None, str | None]]:
    """The changes by their place; of a device's capability only the architecture."""
    found = {item["where"]: (item["recorded"], item["recomputed"]) for item in data["changes"]}
    name = "device 0: capability"
    if name in found:
        found[name] = tuple((text or "").partition(",")[0] for text in found[name])  # type: ignore[assignment]  # two
    return {where.replace("HARDPOINT_", ""): values for where, values in found.items()}


@pytest.mark.parametrize(
    ("arguments", "changes", "uncompared"),
    [
        (("doctor",), {**PLATFORM, **BACKEND, **DEVICE, **LAYERS, **SETTING}, None),
        (("platforms",), {**PLATFORM, **DEVICE}, None),
        (("backends",), {**PLATFORM, **BACKEND, **DEVICE}, [TYPICAL]),
        (("select", *LAYER), {**PLATFORM, **BACKEND, **DEVICE, **LAYERS}, []),
        (("select", "--head-size", "80", "--num-heads", "4"), {**PLATFORM, **BACKEND, **DEVICE}, ["The layer"]),
        (("matrix", *LAYER, "--dtype", "float32"), {**PLATFORM, **BACKEND, **DEVICE, **LAYERS}, []),
        (("settings",), {**PLATFORM, **BACKEND, **SETTING}, None),
        (("snapshot", "-o", "again.json"), {**PLATFORM, **BACKEND, **DEVICE, **SETTING}, None),
    ],
)
def test_every_command_says_what_changed(
    site: Site,
    hardpoint_command: Command,
    file: str,
    arguments: tuple[str, ...],
    changes: dict[str, tuple[str | None, str | None]],
    uncompared: list[str] | None,
) -> None:
    """What its own answer depends on, no more; the text and the Markdown are of the same object as the JSON."""
    arguments = tuple(item.replace("again.json", f"{file}.again") for item in arguments)
    shown = hardpoint_command(*arguments, "--snapshot", file, "--recompute", "--json")
    data = shown.json()
    check(data)
    assert told(data) == changes
    assert data.get("uncompared") == uncompared
    text = hardpoint_command(*arguments, "--snapshot", file, "--recompute", "--markdown").out.replace("\\", "")
    for item in data["changes"]:
        value = f"{item['recorded'] or '(not there)'}<br>-> {item['recomputed'] or '(not there)'}"
        assert f"| {item['where']} | {value} |" in text
    assert (f"no decision about it: {'; '.join(uncompared or [])}" in text) is bool(uncompared)


def test_without_recompute_nothing_is_compared(site: Site, hardpoint_command: Command, file: str) -> None:
    """As recorded, and on a simulated or live machine, the list is empty and the text says nothing of it."""
    for more in (("--snapshot", file), ()):
        for name in ("platforms", "settings"):
            assert hardpoint_command(name, *more, "--json").json()["changes"] == []
            assert "recorded report" not in hardpoint_command(name, *more).out


def test_the_page_says_what_changed(site: Site, hardpoint_command: Command, file: str, tmp_path: Path) -> None:
    """The matrix's page too."""
    page = tmp_path / "matrix.html"
    hardpoint_command("matrix", *LAYER, "--snapshot", file, "--recompute", "--html", str(page))
    text = page.read_text(encoding="utf-8")
    assert "Changed against the recorded report" in text
    assert '<th scope="row">plugin backend/fast (fake-fast)</th><td>1.0</td><td>(not there)</td>' in text
    # The matrix asks for bfloat16, where the platform had preferred another.
    assert "no decision about it: The layer" in text


def test_a_variable_that_only_one_side_knows() -> None:
    """One that nobody has set is no news; one that is set is."""

    def report(*variables: tuple[str, str | None, str]) -> dict[str, Any]:
        made = [{"name": name, "value": value, "source": source, "owner": "x"} for name, value, source in variables]
        return {"variables": made}

    before = report(("A", None, "default"), ("B", "1", "environment"), ("C", None, "private"), ("D", None, "unknown"))
    assert {change.where for change in changes_between(before, report())} == {"setting B", "setting C"}
    after = report(("D", "1", "environment"))
    (change,) = [item for item in changes_between(before, after) if item.where == "setting D"]
    assert change[1:] == ("not recorded (of x)", "1 (of x)")


def test_the_package_of_kernel_modules_is_recorded(site: Site) -> None:
    """A live machine imports kernels without asking for their package's version; a snapshot asks as well."""
    module = "KernelModule(name='chip_kernels', distribution='chip-kernels')"
    site.platform("chip", body=f"def kernel_modules(self):\n    return [{module}]")
    site.backend("fast", spec="kernel_modules=('chip_kernels',)")
    (site.folder / "chip_kernels.py").touch()
    taken = hardpoint.snapshot([config()])
    assert taken.data["facts"]["distributions"]["chip-kernels"] == {"value": None}
    (selection,) = taken.recompute().report.as_dict()["selections"]
    candidate = next(item for item in selection["candidates"] if item["name"] == "fast")
    # By its metadata it is not there; what a deeper look found is not known here.
    assert candidate["outcome"] == "not_installed"
    assert candidate["reasons"][0]["message"].endswith("is not imported: chip-kernels is not installed")
    data = {**taken.data, "facts": {**taken.data["facts"], "distributions": {}}}
    (selection,) = hardpoint.Snapshot(data=data).recompute().report.as_dict()["selections"]
    assert "nobody asked the recorded machine for the version of the distribution chip-kernels" in str(selection)
