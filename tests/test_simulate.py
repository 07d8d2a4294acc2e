from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

import hardpoint
from hardpoint.errors import ContractError, SimulationError, UnknownProfileError
from tests.plugins import config
from tests.profiles import add_platform, profile
from tests.test_public_names import loaded_by

if TYPE_CHECKING:
    from tests.plugins import Site


def test_devices_are_detected_as_real_ones(site: Site) -> None:
    """A simulated machine answers the plugin's own questions, and what comes out is an ordinary platform."""
    add_platform(site, profiles={"fast": profile(capability="9.0")})
    machine = hardpoint.simulate("fast", count=3)
    assert not machine.live
    platform = hardpoint.resolve(machine=machine).platform
    assert platform.name == "fake"
    assert [device.physical_id for device in platform.devices] == [0, 1, 2]
    assert [device.pci_bus_id for device in platform.devices] == ["0000:10:00.0", "0000:11:00.0", "0000:12:00.0"]
    assert {str(device.capability) for device in platform.devices} == {"9.0"}
    uuids = [device.uuid for device in platform.devices]
    assert len(set(uuids)) == 3
    again = hardpoint.resolve(machine=hardpoint.simulate("fast", count=3)).platform
    assert [device.uuid for device in again.devices] == uuids


def test_facts_are_merged(site: Site) -> None:
    """What holds for the machine is there once, what holds for a device once for each of them."""
    add_platform(site)
    machine = hardpoint.simulate("fast", count=2)
    assert machine.list_directory("/dev") == ("fake0", "fake1")
    assert machine.read_text("/proc/driver/fake") == "version 1"
    assert machine.run_tool(["fake-smi"]).stdout == '[\n  {\n    "id": 0\n  },\n  {\n    "id": 1\n  }\n]\n'
    answer = machine.probe("fake.devices", "fake_library:devices")
    assert answer["driver"] == "driver of 9.0"
    assert [item["node"] for item in answer["devices"]] == [1, 2]


@pytest.mark.parametrize("spec", ["fast:2,slow", ["fast:2", "slow"], ["fast", "fast", "slow"], " Fast:2 , SLOW "])
def test_mixed_machine(site: Site, spec: Any) -> None:
    """Devices stand in the order in which they are named, as text or as a list; of two drivers the first stays."""
    add_platform(site, profiles={"fast": profile(capability="9.0"), "slow": profile(capability="8.0")})
    machine = hardpoint.simulate(spec)
    devices = hardpoint.resolve(machine=machine).platform.devices
    assert [str(device.capability) for device in devices] == ["9.0", "9.0", "8.0"]
    assert [device.physical_id for device in devices] == [0, 1, 2]
    assert machine.probe("fake.devices", "x:y")["driver"] == "driver of 9.0"


def test_count_is_for_those_without_a_number(site: Site) -> None:
    """A number in the text beats the argument."""
    add_platform(site, profiles={"fast": profile(capability="9.0"), "slow": profile(capability="8.0")})
    devices = hardpoint.resolve(machine=hardpoint.simulate("fast:1,slow", count=2)).platform.devices
    assert [str(device.capability) for device in devices] == ["9.0", "8.0", "8.0"]


def test_part_with_several_devices(site: Site) -> None:
    """One part may bring two devices, as some cards do."""
    add_platform(site, profiles={"twin": profile(count=2)})
    assert hardpoint.resolve(machine=hardpoint.simulate("twin", count=2)).platform.device_count() == 4


def test_two_platforms_number_their_own(site: Site) -> None:
    """Devices are numbered within their platform; bus numbers are the machine's."""
    add_platform(site, "one", {"first": profile("one")})
    add_platform(site, "two", {"second": profile("two")})
    machine = hardpoint.simulate("first,second:2")
    assert machine.list_directory("/dev") == ("one0", "two0", "two1")
    assert [item["pci"] for item in machine.probe("two.devices", "x:y")["devices"]] == ["0000:11:00.0", "0000:12:00.0"]
    with pytest.raises(hardpoint.errors.AmbiguousPlatformError, match="HARDPOINT_PLATFORM=one"):
        hardpoint.resolve(machine=machine)
    assert hardpoint.resolve("two", machine=machine).platform.device_count() == 2


def test_everything_up_to_loading_a_kernel(site: Site) -> None:
    """Devices, capabilities, valid backends and a selection are there; nothing of a backend is imported."""
    add_platform(site)
    new = site.backend("new", more="capability_floor=(9, 0)", spec="requires=('flash-fake>=2',)")
    site.backend("old")
    platform = hardpoint.resolve(machine=hardpoint.simulate("fast", distributions={"flash-fake": "2.8.3"})).platform
    valid, rejected = platform.get_valid_backends(platform.get_device_capability(), config())
    assert [item.name for item in valid] == ["new", "old"]
    assert "old" not in rejected
    selection = platform.select_backend(config())
    assert (selection.backend, selection.depth) == ("new", "static")
    assert f"{new}.implementation" not in sys.modules
    with pytest.raises(hardpoint.errors.NotRecorded, match="not live"):
        selection.load()
    without = hardpoint.resolve(machine=hardpoint.simulate("fast", distributions={"flash-fake": None})).platform
    assert without.select_backend(config()).backend == "old"


def test_packages_are_those_that_are_here(site: Site) -> None:
    """A package that nobody speaks of is there if it is installed here, without what was built for this machine."""
    add_platform(site)
    site.distribution("some-package", "", {}, version="3.2+cpu")
    machine = hardpoint.simulate("fast", distributions={"other-package": "1.0", "Py_Test": None})
    assert machine.distribution_version("some_package") == "3.2"
    assert machine.distribution_version("Other.Package") == "1.0"
    assert machine.distribution_version("py-test") is None
    assert machine.distribution_version("no-such-package") is None


def test_files_of_distributions(site: Site) -> None:
    """How a package was built can be said by giving its file."""
    add_platform(site)
    path = "/usr/lib/python3/site-packages/torch/version.py"
    machine = hardpoint.simulate("fast", distributions={"torch": "2.13.0"}, files={path: "cuda = '13.0'"})
    assert machine.distribution_file("torch", "torch/version.py") == path
    assert machine.read_text(path) == "cuda = '13.0'"


def test_masks(site: Site) -> None:
    """The machine's variables are those given, and detection obeys them."""
    add_platform(site)
    machine = hardpoint.simulate("fast", count=4, variables={"FAKE_VISIBLE_DEVICES": "3,1"})
    platform = hardpoint.resolve(machine=machine).platform
    assert [device.physical_id for device in platform.devices] == [3, 1]


def test_settings_are_the_machines_own(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process's choices do not count on a simulated machine; which plugins it may load does."""
    add_platform(site)
    monkeypatch.setenv("HARDPOINT_PLATFORM", "nonsense")
    hardpoint.reset()
    assert hardpoint.resolve(machine=hardpoint.simulate("fast")).platform.name == "fake"
    machine = hardpoint.simulate("fast", variables={"HARDPOINT_PLATFORM": "other"})
    with pytest.raises(hardpoint.errors.UnknownPlatformError, match="other"):
        hardpoint.resolve(machine=machine)
    assert "HARDPOINT_PLUGINS" in machine.variables()
    assert hardpoint.simulate("fast", variables={"HARDPOINT_PLUGINS": "x"}).variable("HARDPOINT_PLUGINS") == "x"


@pytest.mark.parametrize(
    ("variable", "text"),
    [("HARDPOINT_DISABLED_PLUGINS", "disabled by HARDPOINT_DISABLED_PLUGINS"), ("HARDPOINT_PLUGINS", "not among")],
)
def test_plugin_that_is_kept_out(site: Site, monkeypatch: pytest.MonkeyPatch, variable: str, text: str) -> None:
    """The profiles of a plugin that may not be loaded are not there, and the error says why."""
    add_platform(site)
    monkeypatch.setenv(variable, "platform/fake" if "DISABLED" in variable else "platform/other")
    hardpoint.reset()
    assert hardpoint.list_profiles() == ()
    with pytest.raises(UnknownProfileError, match=text):
        hardpoint.simulate("fast")


def test_untrusted_plugin(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin in a folder that everybody may write to is not asked for profiles unless it is named."""
    add_platform(site)
    site.folder.chmod(0o777)
    monkeypatch.delenv("HARDPOINT_PLUGINS")
    hardpoint.reset()
    with pytest.raises(UnknownProfileError, match="everybody may write"):
        hardpoint.simulate("fast")
    assert not [name for name in sys.modules if name.startswith("profiles_of_fake")]


def test_generic_host(site: Site) -> None:
    """A machine of accelerators has a processor all the same, of the accelerator's architecture."""
    add_platform(site, profiles={"fast": profile(), "arm": profile(machine={"architecture": "aarch64"})})
    machine = hardpoint.simulate("fast")
    assert machine.architecture == "x86_64"
    assert "avx2" in machine.read_text("/proc/cpuinfo")
    assert machine.cpu_affinity() == frozenset(range(machine.cpu_count() or 0))
    assert machine.total_memory_bytes()
    arm = hardpoint.simulate("arm")
    assert arm.architecture == "aarch64"
    assert "asimd" in arm.read_text("/proc/cpuinfo")


def test_host_with_devices(site: Site) -> None:
    """A profile without devices describes the machine itself, wherever it stands in the list."""
    host = profile(
        machine={"architecture": "aarch64", "cpu_count": 2, "total_memory_bytes": 1 << 30, "cpu_affinity": [1]},
        per_machine={"files": {"/proc/cpuinfo": "of the host"}},
        per_device={},
    )
    add_platform(site, profiles={"fast": profile(), "host": host})
    for spec in ("fast:2,host", "host,fast:2"):
        machine = hardpoint.simulate(spec)
        assert (machine.architecture, machine.cpu_count(), machine.total_memory_bytes()) == ("aarch64", 2, 1 << 30)
        assert machine.cpu_affinity() == frozenset({1})
        assert machine.read_text("/proc/cpuinfo") == "of the host"
        assert hardpoint.resolve(machine=machine).platform.device_count() == 2
    assert hardpoint.simulate("fast,host", count=2).list_directory("/dev") == ("fake0", "fake1")


@pytest.mark.parametrize(
    ("spec", "count", "text"),
    [
        ("fast", 0, "count=0: expected a whole number"),
        ("fast", True, "count=True: expected a whole number"),
        ("fast:0", 1, "'fast:0': expected NAME or NAME:COUNT"),
        ("fast:x", 1, "'fast:x': expected NAME or NAME:COUNT"),
        ("fast:", 1, "'fast:': expected NAME or NAME:COUNT"),
        ("fast:²", 1, "expected NAME or NAME:COUNT"),
        ("fast:99999999", 1, "expected NAME or NAME:COUNT"),
        ("fast:300", 1, "300 devices: a simulated machine has at most 240"),
        ([3], 1, "expected names of device profiles"),
        ("host,host2", 1, "host and host2 describe the machine itself"),
        ("host", 2, "count=2: host describes the machine itself"),
        ("host:2", 1, "'host:2': host describes the machine itself"),
        ("fast,mac", 1, "mac of Darwin and fast of Linux cannot be in one machine: it has one operating system"),
    ],
)
def test_wrong_request(site: Site, spec: Any, count: int, text: str) -> None:
    """A request that means nothing says what was wrong with it."""
    host = profile(per_device={})
    mac = profile(per_device={}, machine={"system": "Darwin"})
    add_platform(site, profiles={"fast": profile(), "host": host, "host2": host, "mac": mac})
    with pytest.raises(SimulationError, match=text):
        hardpoint.simulate(spec, count)


def test_unknown_profile(site: Site) -> None:
    """The error guesses the name that was meant, lists those that there are, and is a ValueError and a LookupError."""
    add_platform(site, profiles={"a100-40gb": profile(aliases=["a100"]), "h100": profile()})
    with pytest.raises(UnknownProfileError) as error:
        hardpoint.simulate("a1000")
    assert isinstance(error.value, ValueError)
    assert isinstance(error.value, LookupError)
    assert "unknown device profile 'a1000'; did you mean 'a100-40gb'" in str(error.value)
    assert "Known are fake: a100-40gb (or a100), h100" in str(error.value)
    assert (error.value.profile, error.value.known) == ("a1000", ("a100-40gb", "h100"))
    empty: tuple[str | list[str], ...] = ("", " , ", [])
    for nothing in empty:
        with pytest.raises(UnknownProfileError, match=r"Known are fake: a100-40gb \(or a100\), h100"):
            hardpoint.simulate(nothing)


def test_no_profile_anywhere(site: Site) -> None:
    """Where no plugin brings any, the error says that there are none."""
    site.platform("bare")
    with pytest.raises(UnknownProfileError, match="Known are none"):
        hardpoint.simulate("h100")


def test_aliases_and_spelling(site: Site) -> None:
    """An alias, another case, and `_`, `-` or a blank between the words are the same name."""
    add_platform(site, profiles={"rtx-4090": profile(aliases=["4090"])})
    for name in ("rtx-4090", "RTX_4090", "rtx 4090", "4090"):
        assert hardpoint.simulate(name).exists("/dev/fake0")


def test_list_of_profiles(site: Site) -> None:
    """Each profile is listed with its description, sources and the distribution that brings it; none is simulated."""
    add_platform(site, profiles={"b": profile(aliases=["bee"]), "a": profile(capability="8.0")})
    first, second = hardpoint.list_profiles()
    assert (first.name, second.name, second.aliases) == ("a", "b", ("bee",))
    assert (first.platform, first.description) == ("fake", "a device of 8.0")
    assert first.sources == ("https://example.org/device",)
    assert first.provenance.distribution == "fake-fake"
    assert first.file.endswith("a.json")
    assert first.fault is None
    assert first.as_dict()["provenance"] == first.provenance.as_dict()


def test_broken_file_harms_no_other(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A file that cannot be used is said once and listed with its fault; asked for by name, it is the error."""
    add_platform(site, profiles={"fast": profile(), "broken": "{"})
    assert hardpoint.simulate("fast").exists("/dev/fake0")
    assert [record.levelname for record in caplog.records if "broken.json" in record.getMessage()] == ["WARNING"]
    (fault,) = (item.fault for item in hardpoint.list_profiles() if item.fault)
    assert "platform/fake (fake-fake 1.0): broken.json: it is no JSON: " in fault
    with pytest.raises(ContractError, match=r"broken\.json: it is no JSON"):
        hardpoint.simulate("broken")
    with pytest.raises(UnknownProfileError, match=r"not usable: .*broken\.json"):
        hardpoint.simulate("brokn")


def test_file_that_is_too_long(site: Site) -> None:
    """A file that no profile needs is not read to its end."""
    folder = add_platform(site)
    (folder / "long.json").write_text(" " * (1 << 22) + "{}")
    with pytest.raises(ContractError, match=r"long\.json: it is longer than 4194304 bytes"):
        hardpoint.simulate("long")


def test_host_of_which_nothing_is_known(site: Site) -> None:
    """An accelerator's machine of another system or architecture gets no invented processor."""
    windows = profile(machine={"system": "Windows"})
    add_platform(site, profiles={"win": windows, "power": profile(machine={"architecture": "ppc64le"})})
    assert hardpoint.simulate("win").cpu_count() is None
    power = hardpoint.simulate("power")
    assert power.cpu_count()
    assert not power.exists("/proc/cpuinfo")


def test_name_that_two_plugins_use(site: Site) -> None:
    """Two plugins with a profile of one name, in whatever spelling, are told apart by nobody: the error names both."""
    add_platform(site, "one", {"fast": profile("one"), "own": profile("one")})
    add_platform(site, "two", {"quick": profile("two", aliases=["FAST"])})
    assert hardpoint.simulate("own").exists("/dev/one0")
    for name in ("fast", "quick"):
        with pytest.raises(ContractError) as error:
            hardpoint.simulate(name)
        assert "fast.json of platform/one (fake-one 1.0)" in str(error.value)
        assert "quick.json of platform/two (fake-two 1.0)" in str(error.value)
    assert sorted(item.name for item in hardpoint.list_profiles() if item.fault) == ["fast", "quick"]


def test_profile_of_another_platform(site: Site) -> None:
    """A plugin brings profiles of its own platform only."""
    add_platform(site, profiles={"fast": profile("cuda")})
    with pytest.raises(ContractError, match=r"fast\.json: platform is 'cuda'; accepted: 'fake'"):
        hardpoint.simulate("fast")


@pytest.mark.parametrize(
    ("profiles", "text"),
    [
        ("no_such_package:profiles", "no package 'no_such_package'"),
        ("json:nowhere", "cannot be listed"),
        ("sys:profiles", "'sys' is no package with files"),
    ],
)
def test_folder_that_is_not_there(site: Site, profiles: str, text: str) -> None:
    """A folder of profiles that cannot be found is a fault of the plugin, and no crash."""
    site.platform("fake", spec=f"profiles={profiles!r}")
    (found,) = hardpoint.list_profiles()
    assert found.fault is not None
    assert text in found.fault


@pytest.mark.parametrize("profiles", ["", "package", "package:", ":folder", "package:../up", "package:/etc", 3])
def test_folder_that_is_none(site: Site, profiles: object) -> None:
    """What is not of the form package:folder, or leads out of the package, is a contract error at load."""
    site.platform("fake", spec=f"profiles={profiles!r}")
    with pytest.raises(ContractError, match="expected 'package:folder'"):
        hardpoint.resolve("fake")


def test_folder_below_a_folder(site: Site) -> None:
    """Profiles may lie deeper."""
    add_platform(site, folder="data/profiles")
    assert hardpoint.simulate("fast").exists("/dev/fake0")


def test_profiles_in_a_plain_folder(site: Site) -> None:
    """A package without __init__ may hold them."""
    folder = add_platform(site)
    (folder.parent / "__init__.py").unlink()
    assert hardpoint.simulate("fast").exists("/dev/fake0")


def test_facts_of_two_kinds_for_one_thing(site: Site) -> None:
    """A probe that is a list in one profile and an object in another cannot be merged: the error names the profile."""
    other = profile(per_device={"probes": {"fake.devices": []}})
    add_platform(site, profiles={"fast": profile(), "other": other})
    with pytest.raises(ContractError, match=r"profile other has \[\] for \['probes'\]\['fake.devices'\]"):
        hardpoint.simulate("fast,other")


def test_registered_plugin(site: Site) -> None:
    """A plugin that was registered by hand brings its profiles as an installed one does."""
    folder = add_platform(site)
    package = folder.parent.name
    (folder.parent / "__init__.py").write_text("")

    class Plugin:
        @hardpoint.hookimpl
        def hardpoint_platform(self) -> hardpoint.PlatformSpec:
            return hardpoint.PlatformSpec(api=(1, 0), target="x.y:Z", profiles=f"{package}:profiles")

        @hardpoint.hookimpl
        def hardpoint_detect(self, machine: hardpoint.Machine) -> hardpoint.Detection:
            return hardpoint.Detection.absent("never")

    site.allow("platform/mine")
    hardpoint.register("platform", "mine", Plugin())
    assert {item.provenance.plugin for item in hardpoint.list_profiles()} == {"platform/fake", "platform/mine"}


def test_bug_in_a_plugin(site: Site) -> None:
    """A plugin whose module has a bug stops a simulation with its own error, and not the list for the doctor."""
    add_platform(site)
    site.platform("buggy", plugin_top="1 / 0")
    with pytest.raises(ZeroDivisionError) as bug:
        hardpoint.simulate("fast")
    assert any("HARDPOINT_DISABLED_PLUGINS=platform/buggy" in note for note in bug.value.__notes__)
    assert [item.name for item in hardpoint.list_profiles()] == ["fast"]


def test_simulation_loads_no_torch_and_no_package(site: Site) -> None:
    """Neither torch nor numpy is imported, nor the package that holds the profiles."""
    add_platform(site)
    code = "import hardpoint\nhardpoint.resolve(machine=hardpoint.simulate('fast', count=8))"
    assert loaded_by(code, "torch", "numpy", "profiles_of_fake_0") == []


def test_start_up_loads_nothing_of_it(site: Site) -> None:
    """A process that simulates nothing and takes no snapshot loads none of these modules."""
    site.platform("fake")
    modules = (
        "_profiles", "_profile_format", "_simulation", "_simulation_host", "_snapshot", "_snapshot_format",
        "_snapshot_facts", "_redaction", "_private", "_recomputation", "_machine_recorded", "_machine_observed",
    )  # fmt: skip
    code = "import hardpoint\nhardpoint.resolve()"
    assert loaded_by(code, *(f"hardpoint.{name}" for name in modules)) == []
