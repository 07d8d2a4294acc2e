"""The same answers for machines that are not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.profiles import add_platform, profile

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command
    from tests.plugins import Site

LAYER = ("--head-size", "64", "--num-heads", "4", "--dtype", "float32")


@pytest.fixture
def profiles(site: Site) -> Site:
    """A platform with two profiles, and a backend that only the newer device runs, with a package that it needs."""
    add_platform(site, profiles={"fast": profile(capability="9.0"), "slow": profile(capability="8.0")})
    site.backend(
        "modern",
        more="capability_floor=(9, 0)",
        spec="requires=('modern-kernels>=2',), order=Order(before=('plain',))",
    )
    site.backend("plain")
    return site


@pytest.mark.parametrize(
    ("arguments", "backend", "said"),
    [
        (("--simulate", "fast", "--with", "modern-kernels==2.1"), "modern", None),
        (("--simulate", "fast", "--with", "modern-kernels==1.9"), "plain", "found modern-kernels 1.9, needs >=2"),
        (("--simulate", "fast", "--with", "modern-kernels-"), "plain", "modern-kernels is not installed; needs >=2"),
        (("--simulate", "slow", "--with", "modern-kernels==2.1"), "plain", "8.0"),
        (("--simulate", "fast:2,slow", "--with", "modern-kernels==2.1"), "plain", "8.0"),
    ],
)
def test_select_on_a_simulated_machine(
    profiles: Site, hardpoint_command: Command, arguments: tuple[str, ...], backend: str, said: str | None
) -> None:
    """Devices, mixed ones, and packages that are installed there."""
    data = hardpoint_command("select", *LAYER, *arguments, "--json").json()
    (selection,) = data["selections"]
    assert (selection["backend"], selection["depth"]) == (backend, "static")
    assert data["source"]["kind"] == "simulated"
    reasons = [reason["message"] for item in selection["candidates"] for reason in item["reasons"]]
    assert said is None or any(said in reason for reason in reasons)


def test_every_command_takes_a_simulated_machine(profiles: Site, hardpoint_command: Command, tmp_path: Path) -> None:
    """And says whose answers these are."""
    file = str(tmp_path / "machine.json")
    for command in (("doctor",), ("platforms",), ("backends",), ("settings",), ("snapshot", "-o", file)):
        shown = hardpoint_command(*command, "--simulate", "fast:8")
        assert shown.code == 0
        assert "Simulated machine: fast:8" in shown.out or command[0] in ("settings", "snapshot")
    data = hardpoint_command("doctor", "--snapshot", file, "--json").json()
    assert len(data["report"]["platform"]["devices"]) == 8


def test_a_matrix_of_profiles(profiles: Site, hardpoint_command: Command) -> None:
    """Each profile is a machine of its own; all: every profile of the installed plugins."""
    named = hardpoint_command("matrix", *LAYER, "--simulate", "slow,fast", "--with", "modern-kernels==2.1", "--json")
    data = named.json()
    assert [(item["machine"], item["short"]) for item in data["devices"]] == [("slow", "slow"), ("fast", "fast")]
    assert [cell["selection"]["backend"] for cell in data["cells"]] == ["plain", "modern"]
    every = hardpoint_command("matrix", *LAYER, "--simulate", "all", "--json").json()
    assert {item["machine"] for item in every["devices"]} >= {"fast", "slow"}
    text = hardpoint_command("matrix", *LAYER, "--simulate", "slow,fast").out
    assert "layer" in text
    assert "slow" in text


def test_a_mask_by_a_profile_that_nobody_has(profiles: Site, hardpoint_command: Command) -> None:
    """The nearest name."""
    shown = hardpoint_command("matrix", "--simulate", "fats")
    assert shown.code == 2
    assert "did you mean 'fast'" in shown.err
