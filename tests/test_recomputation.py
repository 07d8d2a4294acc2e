from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

import hardpoint
from tests.plugins import config, imported, usable
from tests.profiles import add_platform
from tests.test_public_names import loaded_by

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugins import Site


def recorded(count: int = 2, **variables: str) -> hardpoint.Snapshot:
    """A snapshot of a simulated machine."""
    machine = hardpoint.simulate("fast", count=count, variables=variables)
    return hardpoint.snapshot([config(), config(head_size=128)], machine=machine)


def changes(taken: hardpoint.Snapshot) -> dict[str, tuple[str | None, str | None]]:
    """What has changed, by place."""
    return {change.where: change[1:] for change in taken.recompute().changes}


@pytest.mark.parametrize("place", ["home", "tmp"])
@pytest.mark.parametrize("present", [True, False])
def test_a_question_about_a_private_place(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, present: bool
) -> None:
    """A node in a temporary folder or at home, which the file names by placeholders, is there for the same question."""
    folder = tmp_path / "vendor"
    folder.mkdir()
    if place == "home":
        monkeypatch.setenv("HOME", str(folder))
    node = folder / "node0"
    if present:
        node.touch()
    found = usable()
    site.platform("fast", detect=f"if machine.exists({str(node)!r}): {found}\nreturn Detection.absent('no node')")
    site.platform("host", rank="CPU")
    taken = hardpoint.snapshot()
    taken.write(tmp_path / "snapshot.json")
    assert str(folder) not in (tmp_path / "snapshot.json").read_text()
    again = hardpoint.read_snapshot(tmp_path / "snapshot.json").recompute()
    assert again.changes == ()
    assert again.report.as_dict()["platform"]["name"] == ("fast" if present else "host")


def test_a_private_place_that_could_be_two(site: Site, tmp_path: Path) -> None:
    """Where two recorded questions look alike, neither is taken for the one that is asked."""
    nodes = [tmp_path / name / "node0" for name in ("one", "two")]
    nodes[0].parent.mkdir()
    nodes[0].touch()
    asked = " and ".join(f"machine.exists({str(node)!r})" for node in nodes)
    site.platform("fast", detect=f"if {asked}: {usable()}\nreturn Detection.absent('no node')")
    site.platform("host", rank="CPU")
    taken = hardpoint.snapshot()
    taken.write(tmp_path / "snapshot.json")
    changed = changes(hardpoint.read_snapshot(tmp_path / "snapshot.json"))
    assert "NotRecorded" in str(changed["platform candidate fast"])


def remove(site: Site, distribution: str) -> None:
    """Uninstall a distribution of the test's own."""
    shutil.rmtree(site.folder / f"{distribution.replace('-', '_')}-1.0.dist-info")
    hardpoint.reset()


def test_nothing_changed(site: Site, tmp_path: Path) -> None:
    """With the same plugins the same comes out, also in another process and from a file."""
    add_platform(site)
    site.backend("one")
    site.backend("no", more="capability_floor=(10, 0)")
    taken = recorded()
    taken.write(tmp_path / "snapshot.json")
    again = hardpoint.read_snapshot(tmp_path / "snapshot.json").recompute()
    assert again.changes == ()
    assert (
        again.to_text()
        == str(again)
        == (
            "recomputed from the recorded facts, with the plugins installed here, at depth static\n"
            "  nothing has changed\n"
        )
    )
    assert again.as_dict()["changes"] == []
    assert again.report.as_dict()["platform"] == taken.report.as_dict()["platform"]
    file = str(tmp_path / "snapshot.json")
    code = f"import hardpoint\nassert hardpoint.read_snapshot({file!r}).recompute().changes == ()"
    assert loaded_by(code, "torch", "numpy") == []


def test_real_computer(site: Site) -> None:
    """A snapshot of this computer at depth loaded is recomputed to the same, though nothing is loaded."""
    site.platform("fake", detect="machine.read_text('/proc/cpuinfo'); " + usable())
    package = site.backend("heavy", top="raise ImportError('its library is broken')")
    site.backend("picky", validate="return ['not on a Sunday']")
    site.backend("working", spec="order=Order(after=('heavy', 'picky'))")
    taken = hardpoint.snapshot([config()])
    assert taken.report.as_dict()["selections"][0]["backend"] == "working"
    hardpoint.reset()
    assert taken.recompute().changes == ()
    assert not imported(package, "implementation")


def test_plugin_that_is_gone(site: Site) -> None:
    """A backend that is not installed here is missing from the plugins and the candidates; the next one is taken."""
    add_platform(site)
    site.backend("best")
    site.backend("second")
    taken = recorded()
    remove(site, "fake-best")
    found = changes(taken)
    assert found["plugin backend/best (fake-best)"] == ("1.0", None)
    (backends,) = {value for where, value in found.items() if where.endswith(": backend")}
    assert backends == ("best", "second")
    assert len([where for where in found if where.endswith(": candidate best")]) == 2
    assert "-> (not there)" in taken.recompute().to_text()


def test_plugin_that_is_new(site: Site) -> None:
    """A backend that was not installed there, and a newer version of one, are changes."""
    site.allow("fake-best")
    add_platform(site)
    site.backend("second")
    taken = recorded()
    site.backend("best", spec="order=Order(before=('second',))")
    found = changes(taken)
    assert found["plugin backend/best (fake-best)"] == (None, "1.0")
    assert ("second", "best") in found.values()
    remove(site, "fake-second")
    site.backend("second", version="2.0")
    assert changes(taken)["plugin backend/second (fake-second)"] == ("1.0", "2.0")


def test_plugin_that_asks_for_more(site: Site) -> None:
    """A plugin that asks what nobody asked there gets no answer, and that is its reason."""
    add_platform(site)
    taken = recorded()
    remove(site, "fake-fake")
    site.platform("fake", detect="machine.exists('/dev/other'); " + usable(), version="2.0")
    found = changes(taken)
    assert found["platform"] == ("fake", None)
    verdict = found["platform candidate fake"][1] or ""
    assert verdict.startswith(
        "failed: NotRecorded: nobody asked the recorded machine for whether there is '/dev/other'"
    )


def test_backend_that_asks_for_more(site: Site) -> None:
    """A requirement that nobody looked up there is not taken for absent."""
    add_platform(site)
    site.backend("one")
    taken = recorded()
    remove(site, "fake-one")
    site.backend("one", spec="requires=('some-new-package>=1',)", version="1.1")
    verdicts = [value for where, value in changes(taken).items() if where.endswith("candidate one")]
    assert verdicts
    assert all("nobody asked the recorded machine for the version" in (now or "") for _, now in verdicts)


def test_bug_in_a_plugin(site: Site) -> None:
    """A plugin that fails over the recorded facts is reported as a bug, and the rest goes on."""
    site.allow("fake-buggy")
    add_platform(site)
    taken = recorded()
    site.platform("buggy", detect="1 / 0")
    again = taken.recompute()
    assert again.report.as_dict()["bugs"][0]["plugin"] == "platform/buggy"
    assert again.report.as_dict()["platform"]["name"] == "fake"
    assert {change.where for change in again.changes} == {
        "plugin platform/buggy (fake-buggy)", "platform candidate buggy",
    }  # fmt: skip


def test_devices(site: Site) -> None:
    """Devices that come out differently are listed, field by field."""
    add_platform(site)
    taken = recorded()
    data = json.loads(taken.to_json())
    found = data["facts"]["probes"]["fake.devices"]["value"]["devices"]
    found[0]["name"] = "Other"
    found.pop()
    seen = changes(hardpoint.Snapshot(data=data))
    assert seen["device 0: name"] == ("Fake 9.0", "Other")
    assert seen["device 1: name"] == ("Fake 9.0", None)
    assert "device 0: capability" not in seen


def test_settings_of_the_snapshot(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was set there counts, and what is set here does not."""
    add_platform(site, "fake", profiles=None)
    site.platform("other")
    taken = recorded(HARDPOINT_PLATFORM="fake")
    assert taken.recompute().changes == ()
    monkeypatch.setenv("HARDPOINT_PLATFORM", "other")
    monkeypatch.setenv("HARDPOINT_STRICT", "meaningless")
    monkeypatch.setenv("FAKE_VISIBLE_DEVICES", "0")
    hardpoint.reset()
    monkeypatch.delenv("HARDPOINT_STRICT")
    again = taken.recompute()
    assert again.changes == ()
    assert again.report.as_dict()["resolution"]["source"] == "HARDPOINT_PLATFORM"


def test_file_cannot_admit_a_plugin(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that this process does not trust, or has disabled, is not loaded because a file names it."""
    add_platform(site)
    taken = recorded(HARDPOINT_PLUGINS="fake-fake,fake-stranger")
    package = site.platform("stranger")
    monkeypatch.setenv("HARDPOINT_PLUGINS", "fake-fake")
    site.folder.chmod(0o777)
    hardpoint.reset()
    taken.recompute()
    assert not imported(package, "plugin")
    site.folder.chmod(0o755)
    monkeypatch.setenv("HARDPOINT_DISABLED_PLUGINS", "platform/stranger")
    hardpoint.reset()
    taken.recompute()
    assert not imported(package, "plugin")
    monkeypatch.delenv("HARDPOINT_DISABLED_PLUGINS")
    hardpoint.reset()
    taken.recompute()
    assert imported(package, "plugin")


def test_config_that_means_nothing_here(site: Site) -> None:
    """A selection for a config with a field that this version does not know is shown as not being there any more."""
    add_platform(site)
    site.backend("one")
    taken = recorded()
    data = json.loads(taken.to_json())
    data["report"]["selections"][0]["config"]["field_of_tomorrow"] = True
    found = changes(hardpoint.Snapshot(data=data))
    (where,) = (where for where in found if where.endswith("field_of_tomorrow=True: backend"))
    assert found[where] == ("one", None)


def test_resolution_that_failed(site: Site) -> None:
    """A machine on which nothing could be used is recomputed to the same."""
    site.platform("fake", detect="return Detection.absent('no device')")
    taken = hardpoint.snapshot()
    assert taken.report.as_dict()["resolution"]["platform"] is None
    assert taken.recompute().changes == ()


def test_other_version_of_hardpoint(site: Site) -> None:
    """That another version wrote the snapshot is the first thing said."""
    add_platform(site)
    data = json.loads(recorded().to_json())
    data["report"]["hardpoint"] = "0.0.1"
    (change,) = hardpoint.Snapshot(data=data).recompute().changes
    assert str(change) == f"hardpoint: 0.0.1 -> {hardpoint.__version__}"


def test_masked_devices(site: Site) -> None:
    """A mask by the beginning of an id still names the device whose id was replaced."""
    add_platform(site)
    uuid = hardpoint.resolve(machine=hardpoint.simulate("fast", count=4)).platform.devices[2].uuid or ""
    taken = recorded(4, FAKE_VISIBLE_DEVICES=uuid[:9])
    assert uuid not in taken.to_json()
    assert uuid[:9] not in taken.to_json()
    again = taken.recompute()
    assert again.changes == ()
    assert [device["physical_id"] for device in again.report.as_dict()["platform"]["devices"]] == [2]
