"""The cases of plugin discovery, B20 to B28, from an installed distribution to the platform and back to the message."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hardpoint
from hardpoint import Outcome, ReasonCode
from hardpoint.errors import (
    ContractError,
    DiscoveryError,
    PlatformUnavailableError,
)
from tests.distributions import add, copy_core
from tests.plugins import Site, config, imported, usable


def program(site: Site, code: str, *arguments: str, cwd: Path | None = None, **variables: str) -> str:
    """What a fresh interpreter prints that finds the site's distributions by its path."""
    path = os.pathsep.join([str(site.folder), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, *arguments, "-c", code],
        capture_output=True, text=True, check=False, timeout=120, cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def candidate(found: Any, name: str) -> hardpoint.Candidate:
    """One candidate of a resolution or selection."""
    result: hardpoint.Candidate = next(item for item in found.candidates if item.name == name)
    return result


@pytest.mark.parametrize("where", ["module", "descriptor", "detection", "class"])
def test_b20_a_plugin_whose_runtime_is_gone(site: Site, caplog: pytest.LogCaptureFixture, where: str) -> None:
    """B20: a WARNING with plugin, distribution, version and the error; CPU is marked as the fallback it is."""
    missing = "raise ModuleNotFoundError('No module named vendor_rt', name='vendor_rt')"
    site.platform(
        "vendor",
        version="2.3",
        plugin_top=missing if where == "module" else "",
        detect=missing if where == "detection" else "",
        spec=f"settings=exec({missing!r})" if where == "descriptor" else "",
        platform_top=missing if where == "class" else "",
    )
    site.platform("host", rank="CPU")
    with caplog.at_level(logging.WARNING, "hardpoint"):
        found = hardpoint.resolve()
    assert found.platform.name == "host"
    assert found.is_fallback
    assert "fallback" in found.explain()
    (record,) = [item for item in caplog.records if item.levelno == logging.WARNING]
    for part in ("platform/vendor", "fake-vendor 2.3", "ModuleNotFoundError: No module named vendor_rt", "host"):
        assert part in record.getMessage()
    with pytest.raises(ValueError, match="vendor_rt") as caught:
        hardpoint.resolve("vendor")
    assert isinstance(caught.value, PlatformUnavailableError)
    assert isinstance(caught.value.__cause__, (ModuleNotFoundError, hardpoint.EnvironmentFailure))


@pytest.mark.parametrize("where", ["module", "descriptor", "detection", "class"])
@pytest.mark.parametrize("asked", [None, "vendor"])
def test_b20_a_bug_of_a_plugin(site: Site, where: str, asked: str | None) -> None:
    """B20: a programming error propagates as itself and names the plugin, asked for or not."""
    site.platform(
        "vendor",
        plugin_top="1 / 0" if where == "module" else "",
        detect="1 / 0" if where == "detection" else "",
        spec="settings=1 / 0" if where == "descriptor" else "",
        platform_top="1 / 0" if where == "class" else "",
    )
    site.platform("host", rank="CPU")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as caught:
            hardpoint.resolve(asked)
        assert any("platform/vendor (fake-vendor 1.0)" in note for note in caught.value.__notes__)
    assert hardpoint.resolve("host").platform.name == "host"


@pytest.mark.parametrize("where", ["descriptor", "detection"])
def test_b20_a_plugin_that_answers_nothing(site: Site, caplog: pytest.LogCaptureFixture, where: str) -> None:
    """B20: None is "declined", INFO at most, no failure, and no platform where it was asked for by name."""
    site.platform("vendor", detect="return None" if where == "detection" else "")
    if where == "descriptor":
        (path,) = site.folder.glob("fake_platform_*/plugin.py")
        path.write_text(path.read_text().replace("return PlatformSpec", "return None and PlatformSpec"))
    site.platform("host", rank="CPU")
    with caplog.at_level(logging.INFO, "hardpoint"):
        found = hardpoint.resolve(strict=True)
    assert found.platform.name == "host"
    assert not found.is_fallback
    assert candidate(found, "vendor").outcome is Outcome.DECLINED
    assert [item for item in caplog.records if item.levelno > logging.INFO] == []
    with pytest.raises(PlatformUnavailableError, match="declined"):
        hardpoint.resolve("vendor")


def test_b20_a_backend_that_answers_nothing(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """The same of a backend."""
    site.platform("fake")
    site.backend("quiet")
    (path,) = site.folder.glob("fake_backend_*/plugin.py")
    path.write_text(path.read_text().replace("return BackendSpec", "return None and BackendSpec"))
    site.backend("second")
    with caplog.at_level(logging.WARNING, "hardpoint"):
        found = hardpoint.current_platform().select_backend(config())
    assert found.backend == "second"
    assert not caplog.records
    assert candidate(found, "quiet").outcome is Outcome.DECLINED
    with pytest.raises(ValueError, match="declined"):
        hardpoint.current_platform().select_backend(config(), "quiet")


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ("7", "7"),
        ("'vendor.platform.Class'", "'vendor.platform.Class'"),
        ("PlatformSpec(api=(1, 0), target=7)", "7"),
        ("PlatformSpec(api=(1, 0), target='vendor.platform.Class')", "'vendor.platform.Class'"),
        ("PlatformSpec(api=(1, 0), target='no_such_vendor.platform:Class')", "no_such_vendor"),
        ("PlatformSpec(api=(1, 0), target='json:NoSuchClass')", "NoSuchClass"),
    ],
)
def test_b20_an_answer_that_is_none(site: Site, caplog: pytest.LogCaptureFixture, answer: str, shown: str) -> None:
    """B20: a wrong type, and a target that leads nowhere, are errors that name the plugin and the value."""
    site.platform("vendor")
    (path,) = site.folder.glob("fake_platform_*/plugin.py")
    path.write_text(path.read_text().replace("return PlatformSpec", f"return {answer}\n        return PlatformSpec"))
    site.platform("host", rank="CPU")
    with caplog.at_level(logging.WARNING, "hardpoint"):
        assert hardpoint.resolve().platform.name == "host"
    assert shown in caplog.text
    assert "platform/vendor" in caplog.text
    with pytest.raises(ContractError) as caught:
        hardpoint.resolve("vendor")
    assert shown in str(caught.value)
    assert "vendor" in str(caught.value)


ENGINE = """
import sys
import hardpoint
first = hardpoint.current_platform().name
second = hardpoint.resolve().platform.name
X = 1
"""


def test_b21_a_circular_import_is_not_the_last_word(site: Site) -> None:
    """B21: CPU that was taken because an engine was half imported is not kept once the engine is whole."""
    (site.folder / "half_engine.py").write_text(ENGINE)
    site.platform("vendor", plugin_top="from half_engine import X")
    site.platform("host", rank="CPU")
    code = (
        "import half_engine, hardpoint\n"
        "print(half_engine.first, half_engine.second, hardpoint.current_platform().name,\n"
        "      hardpoint.current_platform() is hardpoint.current_platform(), hardpoint.resolve().is_fallback)"
    )
    assert program(site, code).split() == ["host", "host", "vendor", "True", "False"]


def test_b21_the_same_of_a_backend(site: Site) -> None:
    """A selection made while the engine was half imported does not bind the later ones."""
    (site.folder / "half_engine.py").write_text(
        "import hardpoint\n"
        "c = hardpoint.AttentionConfig(head_size=64, num_heads=4, dtype='float32', block_size=16)\n"
        "first = hardpoint.current_platform().select_backend(c).backend\n"
        "X = 1\n"
    )
    site.platform("fake", priorities="BackendPriority('first', ''), BackendPriority('second', '')")
    site.backend("first", top="from half_engine import X")
    site.backend("second")
    code = (
        "import half_engine as e, hardpoint\nprint(e.first, hardpoint.current_platform().select_backend(e.c).backend)"
    )
    assert program(site, code).split() == ["second", "first"]


@pytest.mark.parametrize("misspelt", ["hardpoint_detects", "hardpoint_dectect"])
def test_b22_a_misspelt_hook_is_answered_with_the_nearest(
    site: Site, caplog: pytest.LogCaptureFixture, misspelt: str
) -> None:
    """B22: a WARNING names the plugin and the closest hook, and the other plugins are there."""
    site.platform("vendor")
    (path,) = site.folder.glob("fake_platform_*/plugin.py")
    path.write_text(path.read_text().replace("hardpoint_detect", misspelt))
    site.platform("host", rank="CPU")
    with caplog.at_level(logging.WARNING, "hardpoint"):
        assert hardpoint.resolve().platform.name == "host"
    assert "platform/vendor" in caplog.text
    assert "did you mean hardpoint_detect?" in caplog.text


def test_b22_one_probe_that_fails_keeps_the_others(site: Site) -> None:
    """B22: every other plugin is asked, and its answer counts."""
    site.platform("a_first", detect=usable(), rank="IN_TREE")
    site.platform("b_broken", detect="raise OSError('/dev/b: gone')")
    site.platform("c_last", detect="return Detection.absent('no c')")
    found = hardpoint.resolve()
    assert found.platform.name == "a_first"
    assert candidate(found, "b_broken").reasons[0].message == "OSError: /dev/b: gone"
    assert candidate(found, "c_last").reasons[0].message == "no c"


def test_b22_a_plugin_that_fails_half_way_leaves_nothing(site: Site) -> None:
    """B22: nobody keeps a plugin whose descriptor could not be had; a second attempt is no duplicate."""
    package = site.platform("vendor", plugin_top="fails = [True]", spec="settings=(1 / 0,) if fails.pop() else ()")
    site.platform("host", rank="CPU")
    with pytest.raises(ZeroDivisionError):
        hardpoint.resolve()
    sys.modules[f"{package}.plugin"].fails.append(False)
    assert hardpoint.resolve().platform.name == "vendor"


@pytest.mark.parametrize("second", ["link", "again", "slash", "cwd", "relative"])
def test_b23_a_folder_that_is_reached_twice(site: Site, tmp_path: Path, second: str) -> None:
    """B23: by a link, twice, with a slash or as the current directory: loaded once, no error, nothing said."""
    site.platform("vendor")
    site.backend("mine")
    link = tmp_path / "link"
    link.symlink_to(site.folder)
    extra = {
        "link": str(link), "again": str(site.folder), "slash": f"{site.folder}/", "cwd": "", "relative": "site/../site",
    }[second]  # fmt: skip
    code = (
        f"import sys; sys.path.insert(1, {extra!r})\n"
        "import hardpoint\n"
        "found = hardpoint.resolve()\n"
        "c = hardpoint.AttentionConfig(head_size=64, num_heads=4, dtype='float32', block_size=16)\n"
        "count = sum(item.name == 'vendor' for item in found.candidates)\n"
        "print(found.platform.name, count, found.platform.select_backend(c).backend)"
    )
    cwd = site.folder if second == "cwd" else tmp_path
    names = "fake-vendor,fake-mine,no-such-distribution"
    assert program(site, code, cwd=cwd, HARDPOINT_PLUGINS=names).split() == ["vendor", "1", "mine"]


def test_b23_an_editable_install_beside_stale_metadata(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """B23: the development folder's egg-info, and what an earlier install left, are one plugin."""
    package = site.platform("vendor", version="2.0")
    source = tmp_path / "source"
    source.mkdir()
    (site.folder / package).rename(source / package)
    entry_points = f"[hardpoint.platforms]\nvendor = {package}.plugin:plugin\n"
    metadata = "Metadata-Version: 2.1\nName: fake-vendor\nVersion: 2.0.dev1\n\n"
    add(source, "fake_vendor.egg-info", entry_points, metadata=metadata, file="PKG-INFO")
    site.monkeypatch.syspath_prepend(str(source))
    hardpoint.reset()
    found = hardpoint.resolve()
    assert [item.name for item in found.candidates].count("vendor") == 1
    provenance = found.chosen.provenance
    assert provenance is not None
    assert provenance.version == "2.0.dev1"


def test_b23_old_and_new_metadata(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """B23: one plugin, of the version that Python itself reports, and a WARNING that names the other folder."""
    from importlib.metadata import version

    package = site.platform("vendor", version="2.0")
    add(
        site.folder, "fake_vendor-1.0.dist-info", f"[hardpoint.platforms]\nvendor = {package}.plugin:plugin\n",
        metadata="Metadata-Version: 2.1\nName: fake-vendor\nVersion: 1.0\n\n",
    )  # fmt: skip
    hardpoint.reset()
    with caplog.at_level(logging.WARNING, "hardpoint"):
        found = hardpoint.resolve()
    (only,) = [item for item in found.candidates if item.name == "vendor"]
    assert only.provenance is not None
    assert only.provenance.version == version("fake-vendor")
    (record,) = [item for item in caplog.records if "fake_vendor-" in item.getMessage()]
    assert "is of the same distribution" in record.getMessage()


@pytest.mark.parametrize("spoiled", ["[console_scripts]\nnothing here\n", b"[a]\nb = \xff\n"])
def test_b25_a_malformed_neighbour(site: Site, caplog: pytest.LogCaptureFixture, spoiled: str | bytes) -> None:
    """B25: our plugins load, one WARNING names the folder, and no TypeError escapes."""
    broken = add(site.folder, "unrelated-3.dist-info", spoiled)
    site.platform("vendor")
    with caplog.at_level(logging.WARNING, "hardpoint"):
        assert hardpoint.resolve().platform.name == "vendor"
        hardpoint.resolve()
    (record,) = [item for item in caplog.records if "unrelated-3" in item.getMessage()]
    assert str(broken) in record.getMessage()


def test_b25_an_enumeration_that_fails_once(site: Site, tmp_path: Path) -> None:
    """B25: the group is not marked as read; the next call finds the plugin."""
    site.platform("vendor")
    code = (
        "import os, hardpoint\n"
        "from hardpoint.errors import DiscoveryError\n"
        "real = os.scandir, os.listdir\n"
        "def fail(*path):\n"
        "    raise OSError(24, 'Too many open files')\n"
        "os.scandir = os.listdir = fail\n"
        "try:\n"
        "    hardpoint.resolve()\n"
        "except DiscoveryError as error:\n"
        "    assert 'Too many open files' in str(error), error\n"
        "    print('failed')\n"
        "os.scandir, os.listdir = real\n"
        "print(hardpoint.resolve().platform.name, hardpoint.current_platform().name)"
    )
    assert program(site, code, cwd=tmp_path).split() == ["failed", "vendor", "vendor"]
    assert issubclass(DiscoveryError, RuntimeError)


def test_b25_a_distribution_without_metadata(site: Site) -> None:
    """B25: the plugin loads, and is shown as of an unknown distribution."""
    package = site.platform("vendor")
    (site.folder / "fake_vendor-1.0.dist-info" / "METADATA").unlink()
    (site.folder / "fake_vendor-1.0.dist-info").rename(site.folder / "nameless.dist-info")
    site.allow("platform/vendor")
    hardpoint.reset()
    found = hardpoint.resolve()
    assert found.platform.name == "vendor"
    assert imported(package, "platform")
    assert "unknown distribution" in str(found.chosen.provenance)


MANUAL = """
import sys
import hardpoint
from hardpoint.hookspecs import hookimpl, PlatformSpec, Detection, Device
from hardpoint.errors import NoPlatformError, NoBackendError
from hardpoint.platforms import Platform

print(hardpoint.__version__)
try:
    hardpoint.resolve()
except NoPlatformError as error:
    print(error)

class Mine(Platform):
    name = "mine"
    vendor = "Nobody"
    device_type = "cpu"
    dispatch_key = "CPU"
    supported_dtypes = ("float32",)
    torch_features = frozenset({"aten"})
    def backend_priorities(self, device_capability, config):
        return []

class Plugin:
    @hookimpl
    def hardpoint_platform(self):
        return PlatformSpec(api=(1, 0), target="__main__:Mine")
    @hookimpl
    def hardpoint_detect(self, machine):
        return Detection.usable([Device(index=0, name="mine")])

hardpoint.register("platform", "mine", Plugin())
print(hardpoint.current_platform().name)
try:
    hardpoint.current_platform().select_backend(
        hardpoint.AttentionConfig(head_size=64, num_heads=1, dtype="float32"))
except NoBackendError as error:
    print(error)
"""


def test_b25_no_metadata_at_all(tmp_path: Path) -> None:
    """B25, B13: from a bare folder the version is unknown, the errors say what to do, and `register` works."""
    import pluggy

    core = tmp_path / "bare"
    copy_core(core)
    (core / "pluggy").symlink_to(Path(pluggy.__file__).parent)
    # Neither this environment's site-packages nor its metadata: as in a frozen program.
    done = subprocess.run(
        [sys.executable, "-SEs", "-W", "error", "-c", f"import sys; sys.path.insert(0, {str(core)!r})\n{MANUAL}"],
        capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    version, no_platform, name, *no_backend = done.stdout.splitlines()
    assert version == "unknown"
    for part in ("no platform plugin is installed", "pip install", "hardpoint.register('platform'"):
        assert part in no_platform
    assert name == "mine"
    for part in ("no backend plugin of this kind is installed", "pip install", "hardpoint.register('backend'"):
        assert part in " ".join(no_backend)
    assert done.stderr.count("\n") <= 1


def test_b26_every_missing_method_is_told_when_the_class_is_loaded(site: Site) -> None:
    """B26: not at first use, and all of them at once; the next candidate is taken."""
    site.platform("vendor")
    (path,) = site.folder.glob("fake_platform_*/platform.py")
    text = path.read_text()
    for member in ("vendor", "device_type"):
        text = "\n".join(line for line in text.splitlines() if not line.strip().startswith(f"{member} ="))
    path.write_text(text)
    site.platform("host", rank="CPU")
    found = hardpoint.resolve()
    assert found.platform.name == "host"
    assert "does not define device_type, vendor" in candidate(found, "vendor").reasons[0].message


@pytest.mark.parametrize(
    ("signature", "works"),
    [
        ("cls, device_capability, config", True),
        ("cls, capability, c", True),
        ("cls, *arguments", True),
        ("cls, device_capability, config, extra=None", True),
        ("cls, device_capability", False),
        ("cls, head_size, dtype, block_size", False),
        ("cls, device_capability, config, *, scale", False),
    ],
)
def test_b26_a_validate_of_another_version(site: Site, signature: str, works: bool) -> None:
    """B26: positional names are free; what cannot be called is a version error, no TypeError from the middle."""
    site.platform("fake", priorities="BackendPriority('first', ''), BackendPriority('second', '')")
    site.backend("first", body=f"@classmethod\ndef validate_configuration({signature}):\n    return []")
    site.backend("second")
    found = hardpoint.current_platform().select_backend(config())
    assert found.backend == ("first" if works else "second")
    if not works:
        reason = candidate(found, "first").reasons[0]
        assert reason.code is ReasonCode.INCOMPATIBLE_API
        assert "plugin contract 1.0" in reason.message


def test_b26_cpu_asked_for_never_imports_an_incompatible_plugin(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """B26: with a platform named, the skewed vendor's light module is not even imported, and nothing is said of it."""
    package = site.platform("cuda", api="(2, 0)", plugin_top="import os\nos.abort()")
    site.platform("host", rank="CPU")
    with caplog.at_level(logging.INFO, "hardpoint"):
        assert hardpoint.resolve("host").platform.name == "host"
    assert not imported(package, "plugin")
    assert "cuda" not in caplog.text


@pytest.mark.parametrize("spelling", ["cpu", "CPU", " host ", "Host", "HOST"])
def test_b26_names_are_read_in_any_spelling(site: Site, spelling: str) -> None:
    """Case and blanks around a name do not matter."""
    site.platform("host", rank="CPU")
    site.platform("cpu", rank="CPU")
    assert hardpoint.resolve(spelling).platform.name == spelling.strip().lower()


COUNT = """
import sys
reads, lists = [], []
def hook(event, arguments):
    if event in ("os.listdir", "os.scandir"):
        lists.append(str(arguments[0]))
    elif event == "open" and "dist-info" in str(arguments[0]):
        reads.append(str(arguments[0]))
sys.addaudithook(hook)
import hardpoint, hardpoint.errors, hardpoint.platforms, hardpoint.hookspecs, hardpoint.attention
hardpoint.AttentionConfig
at_import = len(reads) + sum(path == SITE for path in lists)
platform = hardpoint.current_platform()
config = hardpoint.AttentionConfig(head_size=64, num_heads=4, dtype='float32', block_size=16)
platform.select_backend(config, depth="static")
hardpoint.resolve(); hardpoint.current_platform(); platform.select_backend(config); hardpoint.resolve("one")
platform.get_valid_backends(None, config)
import json
print(json.dumps([
    at_import,
    sorted({path for path in reads if reads.count(path) > 1}),
    lists.count(SITE),
    len([path for path in reads if "other" in path and path.endswith("METADATA")]),
]))
"""


def test_b28_metadata_is_enumerated_once(site: Site, tmp_path: Path) -> None:
    """B28: 500 strangers, 3 of ours: not at import, once for both groups, and a stranger's METADATA never."""
    for number in range(500):
        add(site.folder, f"other_{number}-1.0.dist-info", "[console_scripts]\nx = y:z\n")
    site.platform("one", requires=("hardpoint>=0.1",))
    site.backend("two")
    site.backend("three")
    code = f"SITE = {str(site.folder)!r}\n{COUNT}"
    at_import, twice, listed, strangers = json.loads(program(site, code, cwd=tmp_path))
    assert (at_import, twice, strangers) == (0, [], 0)
    # Python's own import system lists the folder too, once.
    assert listed <= 2


def test_b28_nothing_is_loaded_for_a_kind_that_nobody_asks_for(site: Site) -> None:
    """B28: resolving loads no backend's light module, and listing backends loads no implementation."""
    site.platform("fake")
    package = site.backend("one", plugin_top="LOADED = True")
    hardpoint.resolve()
    assert not imported(package, "plugin")
    hardpoint.current_platform().select_backend(config(), depth="static")
    assert imported(package, "plugin")
    assert not imported(package, "implementation")


def test_b28_a_property_that_opens_a_device(site: Site) -> None:
    """B28: a property of the plugin object is not evaluated, from metadata or by hand."""
    package = site.platform(
        "vendor",
        plugin_top="opened = []",
        hooks="@property\ndef handle(self):\n    opened.append(1)\n    raise OSError('device is busy')",
    )
    assert hardpoint.resolve().platform.name == "vendor"
    module: Any = sys.modules[f"{package}.plugin"]
    assert module.opened == []
    hardpoint.register("platform", "again", module.Plugin())
    assert module.opened == []
