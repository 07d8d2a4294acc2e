"""The plugin contract: what pluggy would let pass in silence is an error that names plugin, value and fix."""

from __future__ import annotations

import itertools
import logging
import re
import sys
import textwrap
from typing import Any

import pytest

import hardpoint
from hardpoint import Outcome, ReasonCode, hookspecs
from hardpoint.errors import BackendUnavailableError, ContractError, PlatformUnavailableError, ResolutionInProgressError
from hardpoint.hookspecs import BackendSpec, Detection, PlatformSpec, hookimpl
from tests.plugins import Site, config, imported

FIRST = "BackendPriority('first', 'fastest here'), BackendPriority('second', 'works everywhere')"


def outcome(name: str) -> hardpoint.Candidate:
    """What became of a platform candidate."""
    return next(item for item in hardpoint.resolve().candidates if item.name == name)


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        ("@hookimpl\ndef hardpoint_detekt(self, machine):\n    pass", "did you mean hardpoint_detect?"),
        ("def hardpoint_report(self, machine):\n    pass", "hardpoint_report lacks the @hookimpl marker"),
        ("@hookimpl(wrapper=True)\ndef hardpoint_report(self, machine):\n    yield", "wrappers are refused"),
        ("@hookimpl\ndef hardpoint_backend(self):\n    pass", "is no hook of a platform plugin"),
        ("@hookimpl\ndef hardpoint_report(self, engine):\n    pass", "asks for 'engine'; it is given machine"),
        (
            "@hookimpl(specname='hardpoint_detect')\ndef other(self, machine):\n    pass",
            "both implement hardpoint_detect",
        ),
    ],
)
def test_a_hook_that_would_never_be_called_is_an_error(
    site: Site, caplog: pytest.LogCaptureFixture, hooks: str, message: str
) -> None:
    """Recorded with a WARNING in a scan, raised for an explicit request; the others go on."""
    site.platform("odd", hooks=hooks, distribution="odd-chips")
    site.platform("host", rank="CPU")
    with caplog.at_level(logging.WARNING, "hardpoint"):
        odd = outcome("odd")
    assert odd.outcome is Outcome.CONTRACT
    assert message in odd.reasons[0].message
    assert "platform/odd (odd-chips 1.0)" in odd.reasons[0].message
    assert message in caplog.text
    with pytest.raises(ContractError) as caught:
        hardpoint.resolve("odd")
    assert message in str(caught.value)
    assert caught.value.plugin == "platform/odd"


def test_all_problems_are_told_at_once() -> None:
    """Not the first one only."""

    class Plugin:
        def hardpoint_detect(self, machine: object) -> None:
            """Never called: no marker."""

    with pytest.raises(ContractError) as caught:
        hardpoint.register("platform", "odd", Plugin())
    text = str(caught.value)
    for part in (
        "hardpoint_detect lacks the @hookimpl marker",
        "hook hardpoint_platform is missing",
        "hook hardpoint_detect is missing",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("None", "the plugin object is None"),
        ("Plugin", "write plugin = Plugin()"),
        ("object()", "the mandatory hook hardpoint_backend is missing"),
    ],
)
def test_what_is_no_plugin_object_is_an_error(site: Site, value: str, message: str) -> None:
    """None, a class and a bare object, which pluggy takes."""
    site.platform("fake", priorities=FIRST)
    site.backend("first", hooks=f"\nfirst = {value}\n")
    for path in site.folder.glob("fake_first-1.0.dist-info/entry_points.txt"):
        path.write_text(path.read_text().replace(":plugin", ":first"))
    for path in site.folder.glob("fake_backend_*/plugin.py"):
        path.write_text(path.read_text().replace(f"    first = {value}", "") + f"\nfirst = {value}\n")
    site.backend("second")
    selection = hardpoint.current_platform().select_backend(config())
    assert selection.backend == "second"
    assert message in selection.candidates[0].reasons[0].message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("nowhere_at_all.plugin:plugin", "No module named 'nowhere_at_all'"),
        ("{package}.missing:plugin", "No module named"),
        ("{package}.plugin:misspelt", "has no attribute 'misspelt'"),
        ("{package}.plugin:plugin.part", "has no attribute 'part'"),
        ("not a target", "is not 'package.module:object'"),
    ],
)
def test_an_entry_point_that_names_nothing_is_the_plugins_fault(site: Site, value: str, message: str) -> None:
    """The plugin's own module or attribute is a contract error, not the environment."""
    site.platform("fake", priorities=FIRST)
    package = site.backend("first")
    site.backend("second")
    (path,) = site.folder.glob("fake_first-1.0.dist-info/entry_points.txt")
    path.write_text(f"[hardpoint.backends]\nfirst = {value.format(package=package)}\n")
    hardpoint.reset()
    selection = hardpoint.current_platform().select_backend(config())
    (first,) = [item for item in selection.candidates if item.name == "first"]
    assert (first.outcome, first.reasons[0].code) == (Outcome.CONTRACT, ReasonCode.CONTRACT)
    assert message in first.reasons[0].message


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{package}.implementation:Missing", "has no attribute 'Missing'"),
        ("{package}.nowhere:Backend", "No module named"),
        ("{package}.implementation:Number", "is 7; expected a class"),
        ("{package}.implementation:Other", "is no subclass of hardpoint.attention.AttentionBackend"),
        ("{package}.implementation:backnd", "has no attribute 'backnd'; did you mean 'Backend'?"),
        ("{package}.implementation:sly.other", "has no attribute 'other'"),
        ("{package}.implementation:Backend.create", "has no attribute 'create'; did you mean 'create_layer'?"),
        ("{package}.implementation:Half", "does not define create_layer, kv_cache_spec, plan"),
        ("{package}.implementation:Strange", "cannot be called with (device_capability, config)"),
    ],
)
def test_a_target_that_is_no_backend_is_the_plugins_fault(
    site: Site, target: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Found when the class is loaded, never at first use."""
    body = (
        "pass\n\nNumber = 7\nclass Other: pass\nclass Half(AttentionBackend): pass\n"
        "class Sly:\n    def __dir__(self): raise KeyError\nsly = Sly()\n"
        "class Strange(Backend):\n    @classmethod\n    def validate_configuration(cls, config): return []\n"
    )
    site.platform("fake", priorities=FIRST)
    package = site.backend("first")
    site.backend("second")
    implementation = site.folder / package / "implementation.py"
    implementation.write_text(implementation.read_text() + body.removeprefix("pass\n"))
    plugin = site.folder / package / "plugin.py"
    plugin.write_text(plugin.read_text().replace(f"{package}.implementation:Backend", target.format(package=package)))
    selection = hardpoint.current_platform().select_backend(config())
    assert selection.backend == "second"
    first = selection.candidates[0]
    assert first.outcome is Outcome.CONTRACT
    assert message in first.reasons[0].message
    # The plugin stands at the end of the warning, and nowhere else in it.
    (warning,) = [text for text in caplog.messages if "backend first" in text]
    assert message in warning
    assert warning.count("fake-first 1.0") == 1
    with pytest.raises(ContractError):
        hardpoint.current_platform().select_backend(config(), "first")


def test_a_platform_without_its_abstract_members_is_told_which(site: Site) -> None:
    """All missing names, at activation."""
    package = site.platform("odd")
    site.platform("host", rank="CPU")
    module = site.folder / package / "platform.py"
    module.write_text(module.read_text().replace('vendor = "Fake"', "").replace('dispatch_key = "CPU"', ""))
    odd = outcome("odd")
    assert odd.outcome is Outcome.CONTRACT
    assert "does not define dispatch_key, vendor" in odd.reasons[0].message


def test_a_platform_that_calls_itself_otherwise_is_refused(site: Site) -> None:
    """One name: the entry point's."""
    site.platform("odd", called="something_else")
    site.platform("host", rank="CPU")
    assert "calls itself 'something_else'; the entry point says 'odd'" in outcome("odd").reasons[0].message


def test_a_platform_that_skips_the_base_constructor_is_refused(site: Site) -> None:
    """A clear contract error, not an AttributeError later."""
    site.platform("odd", body="def __init__(self, machine, devices):\n    pass")
    site.platform("host", rank="CPU")
    assert "does not call super().__init__(machine, devices)" in outcome("odd").reasons[0].message


@pytest.mark.parametrize("api", ["(2, 0)", "(1, 99)", "(0, 9)"])
def test_a_plugin_for_another_contract_is_refused_before_its_target_is_imported(site: Site, api: str) -> None:
    """B26: the reason shows both versions and quotes the distribution's own requirement."""
    package = site.platform("new", api=api, requires=("hardpoint>=9,<10",))
    site.platform("host", rank="CPU")
    new = outcome("new")
    assert new.reasons[0].code is ReasonCode.INCOMPATIBLE_API
    shown = api.strip("()").replace(", ", ".")
    assert f"written for plugin contract {shown}, and this hardpoint offers 1.0" in new.reasons[0].message
    assert "Requires-Dist: hardpoint>=9,<10" in new.reasons[0].message.replace("hardpoint<10,>=9", "hardpoint>=9,<10")
    assert not imported(package, "platform")


def test_a_plugin_that_declares_no_version_is_loaded_with_a_warning(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Taken as the present contract."""
    site.platform("host", rank="CPU", api="None")
    with caplog.at_level(logging.WARNING, "hardpoint"):
        assert hardpoint.resolve().platform.name == "host"
    assert "declares no contract version (api=); taken as 1.0" in caplog.text


def test_an_import_of_what_this_hardpoint_lacks_is_an_incompatible_version(site: Site) -> None:
    """`ImportError` whose name is hardpoint's own."""
    site.platform("new", plugin_top="from hardpoint import a_name_of_tomorrow")
    site.platform("newer", plugin_top="import hardpoint.a_module_of_tomorrow")
    site.platform("host", rank="CPU")
    for name in ("new", "newer"):
        assert outcome(name).outcome is Outcome.CONTRACT
        assert outcome(name).reasons[0].code is ReasonCode.INCOMPATIBLE_API


def test_a_missing_dependency_is_the_environment(site: Site) -> None:
    """`ModuleNotFoundError` that names something else than the plugin."""
    site.platform("vendor", plugin_top="import vendor_runtime_that_is_missing")
    site.platform("host", rank="CPU")
    vendor = outcome("vendor")
    assert vendor.outcome is Outcome.FAILED
    assert vendor.reasons[0].code is ReasonCode.MISSING_DEPENDENCY


def test_a_circular_import_is_told_apart(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """B21: always a WARNING, with its own code, whatever else stands among the modules."""

    class Proxy:
        def __getattr__(self, name: str) -> None:
            raise RuntimeError(name)

    site.monkeypatch.setitem(sys.modules, "proxy_of_tests", Proxy())
    site.platform("vendor", plugin_top="from half_engine import X")
    site.platform("host", rank="CPU")
    (site.folder / "half_engine.py").write_text("from half_engine_part import Y\nX = 1\n")
    (site.folder / "half_engine_part.py").write_text("from half_engine import X as Y\n")
    with caplog.at_level(logging.WARNING, "hardpoint"):
        vendor = outcome("vendor")
    assert vendor.reasons[0].code is ReasonCode.CIRCULAR_IMPORT
    assert "partially initialized" in caplog.text


def test_a_heavy_light_module_is_reported(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """The plugin works, and its fault is named."""
    (site.folder / "some_vendor_library.py").write_text("")
    site.platform("heavy", plugin_top="import some_vendor_library")
    with caplog.at_level(logging.WARNING, "hardpoint"):
        assert hardpoint.resolve().platform.name == "heavy"
    assert "is not light" in caplog.text
    assert "some_vendor_library" in caplog.text
    (remark,) = outcome("heavy").reasons
    assert "some_vendor_library" in remark.message


def test_a_property_of_the_plugin_is_not_evaluated(site: Site) -> None:
    """B28: registration runs no code of the plugin's but its descriptor hook."""
    site.platform(
        "host",
        hooks="@property\ndef device(self):\n    raise RuntimeError('opened')\n\n"
        "@property\ndef hardpoint_x(self):\n    raise RuntimeError",
    )
    assert hardpoint.resolve().platform.name == "host"


def test_three_entry_points_in_every_order(site: Site) -> None:
    """B22: good, bad, good: the same two are loaded and one is recorded, whatever the names' order."""
    for number, order in enumerate(itertools.permutations(["good", "bad", "fine"])):
        names = [f"{chr(97 + place)}_{kind}_{number}" for place, kind in enumerate(order)]
        for name, kind in zip(names, order, strict=True):
            site.backend(name, plugin_top="raise ImportError('broken')" if kind == "bad" else "")
        site.platform(f"fake{number}")
        valid, rejected = hardpoint.resolve(f"fake{number}").platform.get_valid_backends(None, config())
        assert {item.name for item in valid} >= {name for name in names if "bad" not in name}
        assert [name for name in rejected if name in names] == [name for name in names if "bad" in name]


@pytest.mark.parametrize("mode", ["error", "replaces", "both", "disabled"])
def test_two_distributions_with_one_name(site: Site, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """An error naming both, unless exactly one takes the other's place; names count after normalisation."""
    old = "replaces='new-kernels'" if mode == "both" else ""
    new = "replaces='Old_Kernels'" if mode in ("replaces", "both") else ""
    site.platform("fake")
    site.backend("fast_one", distribution="old-kernels", spec=old)
    package = site.backend("Fast-One", distribution="new-kernels", spec=new)
    if mode == "disabled":
        monkeypatch.setenv("HARDPOINT_DISABLED_PLUGINS", "old_kernels")
    platform = hardpoint.current_platform()
    if mode in ("replaces", "disabled"):
        selection = platform.select_backend(config(), "fast_one")
        assert selection.provenance is not None
        assert selection.provenance.distribution == "new-kernels"
        assert imported(package, "implementation")
        return
    with pytest.raises(ContractError) as caught:
        platform.select_backend(config(), "fast_one")
    assert "old-kernels" in str(caught.value)
    assert "new-kernels" in str(caught.value)
    assert caught.value.code is ReasonCode.DUPLICATE
    _, rejected = platform.get_valid_backends(None, config())
    assert rejected["fast_one"].reasons[0].code is ReasonCode.DUPLICATE


@pytest.mark.parametrize(
    ("item", "guess"),
    [
        ("acme", "; did you mean backend/acme or platform/acme?"),
        ("platform/acne", "; did you mean platform/acme?"),
        ("something-else", ""),
    ],
)
def test_a_disabled_plugin_that_nobody_knows_is_told(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, item: str, guess: str
) -> None:
    """Once, with what was probably meant; an item that disables something is fine."""
    site.platform("acme", distribution="first-chips")
    site.backend("acme", distribution="first-kernels")
    site.backend("other")
    monkeypatch.setenv("HARDPOINT_DISABLED_PLUGINS", f"{item}, fake_other")
    with caplog.at_level(logging.WARNING, "hardpoint"):
        hardpoint.resolve()
        hardpoint.resolve()
    assert [record.getMessage() for record in caplog.records] == [
        f"HARDPOINT_DISABLED_PLUGINS: there is no plugin or distribution {item} to disable{guess}"
    ]


class GoodBackend:
    """A backend plugin for `hardpoint.register`."""

    def __init__(self, target: str = "nowhere:Backend") -> None:
        self.target = target

    @hookimpl
    def hardpoint_backend(self) -> BackendSpec:
        from hardpoint.attention import AttentionSupport

        return BackendSpec(
            api=(1, 0), kind="attention", platforms=("fake",), target=self.target, support=AttentionSupport(())
        )


def test_registering_by_hand_is_checked_like_metadata(site: Site) -> None:
    """Wrong kind, name and object, the same object twice, and a name twice."""
    plugin = GoodBackend()
    arguments: list[tuple[Any, ...]] = [
        ("backends", "one", plugin),
        ("backend", "", plugin),
        ("backend", 7, plugin),
        ("backend", "one", None),
        ("backend", "one", GoodBackend),
        ("platform", "one", plugin),
    ]
    for wrong in arguments:
        with pytest.raises(ContractError):
            hardpoint.register(*wrong)
    hardpoint.register("backend", "one", plugin)
    with pytest.raises(ContractError, match="registered already"):
        hardpoint.register("backend", "ONE", GoodBackend())
    with pytest.raises(ContractError, match="this very object, or its equal, is a plugin already, backend/one"):
        hardpoint.register("backend", "two", plugin)
    assert "fake-nothing" not in str(hardpoint.report())


def test_a_registration_that_fails_leaves_nothing(site: Site) -> None:
    """The same object and name can be registered once the fault is mended."""
    plugin = GoodBackend(target="not a target")
    with pytest.raises(ContractError, match="is not of the form"):
        hardpoint.register("backend", "one", plugin)
    plugin.target = "somewhere:Backend"
    hardpoint.register("backend", "one", plugin)


class Host:
    """A platform plugin for `hardpoint.register`."""

    @hookimpl
    def hardpoint_platform(self) -> PlatformSpec:
        return PlatformSpec(api=(1, 0), target="nowhere_at_all:Platform")

    @hookimpl
    def hardpoint_detect(self, machine: object) -> Detection:
        return Detection.absent("never")


def test_a_platform_registered_after_the_fact_waits_for_reset(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """The current platform never changes; a WARNING says when the new one takes part."""
    site.platform("host", rank="CPU")
    before = hardpoint.current_platform()
    with caplog.at_level(logging.WARNING, "hardpoint"):
        hardpoint.register("platform", "late", Host(), distribution="late-chips")
    assert hardpoint.current_platform() is before
    assert "takes part after hardpoint.reset()" in caplog.text


def test_a_module_can_be_the_plugin_object(site: Site) -> None:
    """Functions with the marker, in the module that the entry point names."""
    package = site.platform("host", rank="CPU")
    (site.folder / package / "plugin.py").write_text(
        "from hardpoint import DeviceCapability\n"
        "from hardpoint.hookspecs import Detection, Device, PlatformSpec, hookimpl\n"
        "@hookimpl\ndef hardpoint_platform():\n"
        f"    return PlatformSpec(api=(1, 0), target='{package}.platform:FakePlatform')\n"
        "@hookimpl\ndef hardpoint_detect():\n    return Detection.usable([Device(index=0, name='x')])\n"
    )
    (path,) = site.folder.glob("fake_host-1.0.dist-info/entry_points.txt")
    path.write_text(f"[hardpoint.platforms]\nhost = {package}.plugin\n")
    assert hardpoint.resolve().platform.name == "host"


def test_an_untrusted_distribution_is_not_loaded_unless_named(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder that everybody may write to brings no code into the process."""
    package = site.platform("vendor", distribution="vendor-chips")
    site.platform("host", rank="CPU", distribution="host-chips")
    site.folder.chmod(0o777)
    monkeypatch.setenv("HARDPOINT_PLUGINS", "host-chips,platform/vendor")
    with caplog.at_level(logging.WARNING, "hardpoint"):
        assert outcome("vendor").outcome is Outcome.UNTRUSTED
    assert not imported(package, "plugin")
    assert "vendor-chips" in caplog.text
    with pytest.raises(PlatformUnavailableError, match="not trusted"):
        hardpoint.resolve("vendor")
    monkeypatch.setenv("HARDPOINT_PLUGINS", "host-chips,vendor-chips")
    hardpoint.reset()
    assert hardpoint.resolve().platform.name == "vendor"


def test_the_allow_list_limits_only_the_kinds_that_it_mentions(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """`platform/NAME` leaves every backend in."""
    site.platform("fake")
    site.platform("other")
    site.backend("mine")
    monkeypatch.setenv("HARDPOINT_PLUGINS", "platform/fake")
    platform = hardpoint.current_platform()
    assert platform.name == "fake"
    assert platform.select_backend(config(), "mine").backend == "mine"


def test_a_distribution_of_backends_limits_backends_only(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Naming what brings backends leaves every platform in; a name that nobody knows lets nothing in."""
    site.platform("fake")
    site.backend("mine", distribution="my-kernels")
    site.backend("other")
    monkeypatch.setenv("HARDPOINT_PLATFORM", "fake")
    monkeypatch.setenv("HARDPOINT_PLUGINS", "My_Kernels")
    _, rejected = hardpoint.current_platform().get_valid_backends(None, config())
    assert rejected["other"].outcome is Outcome.BLOCKED
    assert "mine" not in rejected
    monkeypatch.setenv("HARDPOINT_PLUGINS", "my-kernals")
    hardpoint.reset()
    with pytest.raises(PlatformUnavailableError, match="not among HARDPOINT_PLUGINS"):
        hardpoint.current_platform()


def test_a_blocked_backend_asked_for_by_name_says_who_blocks_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable and the item are named."""
    site.platform("fake")
    site.backend("mine")
    monkeypatch.setenv("HARDPOINT_DISABLED_PLUGINS", "backend/mine")
    with pytest.raises(BackendUnavailableError, match="disabled by HARDPOINT_DISABLED_PLUGINS"):
        hardpoint.current_platform().select_backend(config(), "mine")


def test_a_vendor_that_asks_at_module_scope_is_named(site: Site) -> None:
    """B21: importing such a package first is an immediate error that names the module, in this order too."""
    package = site.platform("vendor")
    (site.folder / package / "__init__.py").write_text("import hardpoint\nhardpoint.current_platform()\n")
    site.platform("host", rank="CPU")
    with pytest.raises(ResolutionInProgressError, match=f"module '{package}' asks hardpoint"):
        __import__(package)
    assert package not in sys.modules
    words = f"and platform/vendor .* asked for it while its module '{package}' was being imported"
    with pytest.raises(ResolutionInProgressError, match=words):
        hardpoint.current_platform()


@pytest.mark.parametrize(
    ("detect", "message"),
    [
        ("return Detection(status='usable', devices=(Device(index=0, name='x'),))", "the status 'usable'; use Detec"),
        ("return Detection(status=DetectionStatus.USABLE)", "devices numbered []; a usable machine has at least one"),
        ("return Detection(status=DetectionStatus.UNUSABLE, reasons=('no',))", "reasons ('no',); expected a tuple of"),
        ("return Detection(status=DetectionStatus.ABSENT, devices=['x'])", "devices ['x']; expected a tuple of Dev"),
        ("return Detection.usable([Device(index=0, name='x', capability='9.0')])", "with the capability '9.0'; exp"),
        *(
            (f"return Detection.usable([Device(**{{'index': 0, 'name': 'x', {given}}})])", f"device 0 with {words}")
            for given, words in (
                ("'name': None", "name None; expected text"),
                ("'uuid': b'x'", "uuid b'x'; expected text or None"),
                ("'physical_id': 0.5", "physical_id 0.5; expected a number, text or None"),
                ("'numa_node': True", "numa_node True; expected a number or None"),
                ("'total_memory_bytes': '80 GB'", "total_memory_bytes '80 GB'; expected a number or None"),
                ("'total_memory_bytes': 0", "total_memory_bytes 0; unknown is None"),
                ("'properties': None", "properties None; expected a mapping"),
                ("'properties': {3: 4}", "the property 3; expected text"),
            )
        ),
    ],
)
def test_a_detection_that_nobody_could_use_breaks_the_contract(site: Site, detect: str, message: str) -> None:
    """It is told where it was made, not by whoever stumbles over it later; the others go on."""
    site.platform("odd", plugin_top="from hardpoint.hookspecs import DetectionStatus", detect=detect)
    site.platform("host", rank="CPU")
    assert outcome("odd").outcome is Outcome.CONTRACT
    assert message in outcome("odd").reasons[0].message


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"rank": 7}, "rank is 7; expected one of Rank.VENDOR, Rank.IN_TREE, Rank.CPU"),
        ({"rank": "vendor"}, "rank is 'vendor'; expected one of"),
        ({"replaces": 5}, "replaces is 5; expected the name of a distribution"),
    ],
)
def test_a_descriptor_of_a_platform_is_checked(spec: dict[str, Any], message: str) -> None:
    """A rank that is none would otherwise stop every resolution."""

    class Plugin:
        @hookimpl
        def hardpoint_platform(self) -> PlatformSpec:
            return PlatformSpec(api=(1, 0), target="no.such:Class", **spec)

        @hookimpl
        def hardpoint_detect(self, machine: hardpoint.Machine) -> Detection:
            return Detection.absent("never asked")

    with pytest.raises(ContractError) as caught:
        hardpoint.register("platform", "odd", Plugin())
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("'torch_sdpa'", "order is 'torch_sdpa'; expected an Order"),
        ("Order(before='torch_sdpa')", "order.before is 'torch_sdpa'; expected a tuple of strings"),
    ],
)
def test_an_order_that_would_be_read_letter_by_letter_is_refused(site: Site, order: str, message: str) -> None:
    """A text is a sequence too, of names that nobody has."""
    site.platform("host")
    site.backend("odd", spec=f"order={order}")
    with pytest.raises(ContractError) as caught:
        hardpoint.current_platform().select_backend(config(), "odd")
    assert message in str(caught.value)


def test_the_documented_plugins_are_plugins() -> None:
    """What the module of the hooks shows, run as it stands: each block is a plugin whose hook answers."""
    blocks = re.findall(r"::\n\n((?: {4}.*\n|\n)+)", hookspecs.__doc__ or "")
    found = []
    for block in blocks:
        names: dict[str, Any] = {}
        exec(textwrap.dedent(block), names)
        found.append(names["plugin"])
    platform, backend = found
    assert platform.hardpoint_platform().api == hookspecs.API_VERSION
    assert platform.hardpoint_detect(hardpoint.InMemoryMachine()).status == "absent"
    machine = hardpoint.InMemoryMachine(files={"/dev/my_device0": ""})
    assert [device.name for device in platform.hardpoint_detect(machine).devices] == ["My Device"]
    (variant,) = backend.hardpoint_backend().support.variants
    assert variant.refused_fields(config(head_size=64, dtype="bfloat16", block_size=16)) == []
