"""The cases of detection that need no accelerator, B10 to B14, with platform plugins that a test wrote."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import hardpoint
from hardpoint import DeviceCapability, InMemoryMachine, Outcome, ReasonCode
from hardpoint.errors import (
    AmbiguousPlatformError,
    NoPlatformError,
    PlatformUnavailableError,
    ResolutionInProgressError,
    UnknownPlatformError,
)
from tests.plugins import Site, imported, usable

if TYPE_CHECKING:
    from pathlib import Path

needs_posix = pytest.mark.skipif(os.name == "nt", reason="a shell script as a tool")


def candidate(found: hardpoint.Resolution, name: str) -> hardpoint.Candidate:
    """One candidate of a resolution."""
    return next(item for item in found.candidates if item.name == name)


def messages(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    """The texts at that level and above."""
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


def test_b10_a_probe_that_warns_and_fails(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """B10: its warning is there once, the reason is the permission, the next platform is taken."""
    site.platform(
        "gpu",
        plugin_top="import logging, hardpoint",
        detect=(
            "hardpoint.log_once(logging.getLogger('vendor'), logging.WARNING, 'no access to %s', 'the node')\n"
            "raise PermissionError(13, 'Permission denied', '/dev/dri/renderD128')"
        ),
    )
    site.platform("host", rank="CPU")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            found = hardpoint.resolve()
    assert found.platform.name == "host"
    assert messages(caplog).count("no access to the node") == 1
    reason = candidate(found, "gpu").reasons[0]
    assert reason.code is ReasonCode.PERMISSION
    assert reason.message.startswith("PermissionError: ")
    assert "/dev/dri/renderD128" in reason.message


def test_b10_a_log_filter_that_asks_for_the_platform(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """B10: while resolution is running it is told so at once, logs as of unknown rank, and nothing recurses."""
    seen: list[str] = []

    class Rank(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            try:
                rank = hardpoint.current_platform().name
            except ResolutionInProgressError:
                rank = "unknown rank"
            seen.append(f"{rank}: {record.getMessage()}")
            return True

    logger = logging.getLogger("vendor.of.rank")
    rank = Rank()
    logger.addFilter(rank)
    try:
        site.platform(
            "gpu",
            plugin_top="import logging, hardpoint",
            detect=(
                "logging.getLogger('vendor.of.rank').warning('plain')\n"
                "hardpoint.log_once(logging.getLogger('vendor.of.rank'), logging.WARNING, 'once')\n" + usable()
            ),
        )
        assert hardpoint.current_platform().name == "gpu"
        logger.warning("later")
    finally:
        logger.removeFilter(rank)
    assert seen == ["unknown rank: plain", "unknown rank: once", "gpu: later"]


@pytest.mark.parametrize("level", [logging.DEBUG, logging.WARNING])
def test_b10_a_log_filter_that_fails(site: Site, level: int) -> None:
    """B10: one of a handler's that does not expect the answer raises; that is no reason to have no platform."""

    class Rank(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            record.rank = hardpoint.current_platform().name
            return True

    logger, handler = logging.getLogger("hardpoint"), logging.StreamHandler()
    handler.addFilter(Rank())
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        site.platform("gpu", detect="raise PermissionError(13, 'Permission denied', '/dev/dri/renderD128')")
        site.platform("host", rank="CPU", body="def kernel_modules(self): return [KernelModule(name='no_such_kernel')]")
        assert hardpoint.current_platform().name == "host"
        assert hardpoint.current_platform().import_kernels().ok
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@pytest.mark.parametrize("how", ["current_platform()", "resolve()", "platform('host')", "report()", "fingerprint()"])
def test_b10_a_plugin_that_asks_in_its_own_probe(site: Site, how: str) -> None:
    """B10: an immediate error that names the plugin, whatever it asks; a report is an answer without a resolution."""
    site.platform("asks", plugin_top="import hardpoint", detect=f"hardpoint.{how}\n{usable()}")
    site.platform("host", rank="CPU")
    if how in {"report()", "fingerprint()"}:
        try:
            assert hardpoint.current_platform().name == "asks"
        except ResolutionInProgressError as error:
            assert "platform/asks" in str(error)  # noqa: PT017  # either is a right answer
        return
    with pytest.raises(ResolutionInProgressError, match="platform/asks"):
        hardpoint.current_platform()


def test_b11_a_build_for_the_other_one(site: Site) -> None:
    """B11: hardware seen by both, and the one whose build it is wins; the other's rejection is on record."""
    other_build = "return Detection.unusable(Reason(code='other_build', message='this torch is built for HIP'))"
    site.platform("cuda", rank="IN_TREE", detect=other_build)
    site.platform("rocm", rank="IN_TREE")
    site.platform("host", rank="CPU")
    found = hardpoint.resolve()
    assert found.platform.name == "rocm"
    cuda = candidate(found, "cuda")
    assert (cuda.outcome, cuda.reasons[0].code) == (Outcome.UNUSABLE, ReasonCode.OTHER_BUILD)
    assert "this torch is built for HIP" in found.explain()


def test_b11_a_build_for_the_other_one_is_no_loss(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """B11: of two of one rank torch's build settles which: no warning, no fallback, strict mode agrees."""
    other_build = "return Detection.unusable(Reason(code='other_build', message='this torch is built for HIP'))"
    site.platform("cuda", rank="IN_TREE", detect=other_build)
    site.platform("host", rank="CPU")
    with pytest.raises(ValueError, match="strict mode does not fall back to host"):
        hardpoint.resolve(strict=True)
    site.platform("rocm", rank="IN_TREE")
    hardpoint.reset()
    with caplog.at_level("WARNING"):
        found = hardpoint.resolve(strict=True)
    assert (found.platform.name, found.is_fallback, caplog.records) == ("rocm", False, [])
    with pytest.raises(ValueError, match="this torch is built for HIP"):
        hardpoint.resolve("cuda")
    site.platform("broken", rank="IN_TREE", detect="raise OSError('driver is gone')")
    hardpoint.reset()
    assert hardpoint.resolve().is_fallback


def test_b11_masked_devices(site: Site) -> None:
    """B11: an empty mask takes the platform out, and CPU is chosen without it being a fallback."""
    site.platform(
        "cuda",
        rank="IN_TREE",
        detect=(
            "if machine.variable('CUDA_VISIBLE_DEVICES') == '':\n"
            "    return Detection.unusable(Reason(code='masked', message='CUDA_VISIBLE_DEVICES is empty'))\n" + usable()
        ),
    )
    site.platform("host", rank="CPU")
    assert hardpoint.resolve().platform.name == "cuda"
    site.monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = hardpoint.resolve()
    assert (found.platform.name, found.is_fallback) == ("host", False)
    assert "CUDA_VISIBLE_DEVICES is empty" in found.explain()


@pytest.mark.parametrize("names", [("avendor", "bvendor"), ("zvendor", "bvendor")])
def test_b11_two_vendors(site: Site, names: tuple[str, str]) -> None:
    """B11: an error with both plugins, both distributions and the variable, not the order of names or imports."""
    for name in names:
        site.platform(name, distribution=f"dist-of-{name}")
    site.platform("cuda", rank="IN_TREE")
    site.platform("host", rank="CPU")
    with pytest.raises(AmbiguousPlatformError) as caught:
        hardpoint.resolve()
    for part in (*names, *(f"dist-of-{name} 1.0" for name in names), "HARDPOINT_PLATFORM="):
        assert part in str(caught.value)
    assert "cuda" not in str(caught.value)
    for name in names:
        site.monkeypatch.setenv("HARDPOINT_PLATFORM", name)
        assert hardpoint.resolve().platform.name == name
    site.monkeypatch.setenv("HARDPOINT_PLATFORM", ",".join(names))
    assert hardpoint.resolve().platform.name == names[0]


def test_b11_two_cpu_platforms_do_not_disturb_an_accelerator(site: Site) -> None:
    """B11: CPU never counts towards "more than one"; two of them alone are ambiguous like any two."""
    site.platform("host", rank="CPU")
    site.platform("other_host", rank="CPU")
    package = site.platform("cuda", rank="IN_TREE")
    assert hardpoint.resolve().platform.name == "cuda"
    site.monkeypatch.setenv("HARDPOINT_DISABLED_PLUGINS", "platform/cuda")
    with pytest.raises(AmbiguousPlatformError):
        hardpoint.resolve()
    assert imported(package, "plugin")


def test_b11_cpu_asked_for_on_a_gpu_host(site: Site) -> None:
    """B11: no accelerator plugin is probed, nor its module imported."""
    package = site.platform("cuda", rank="IN_TREE", detect="raise SystemExit('probed')")
    site.platform("host", rank="CPU")
    site.monkeypatch.setenv("HARDPOINT_PLATFORM", "host")
    assert hardpoint.resolve().platform.name == "host"
    assert hardpoint.current_platform().name == "host"
    assert not imported(package, "plugin")


@pytest.mark.parametrize(
    "detect",
    [
        "import fake_vendor_module\nreturn Detection.absent('fake_vendor_module is installed, no device')",
        "import fake_vendor_module\nraise EnvironmentFailure('installed, no device', code='no_device')",
        "return Detection.unusable('installed, no device')",
    ],
)
def test_b12_an_installed_package_without_a_device(site: Site, detect: str) -> None:
    """B12: it is rejected as such, and probing goes on to the device that is there."""
    (site.folder / "fake_vendor_module.py").write_text("def devices():\n    return []\n")
    site.platform("vendor", detect=detect)
    site.platform("cuda", rank="IN_TREE")
    site.platform("host", rank="CPU")
    found = hardpoint.resolve()
    assert found.platform.name == "cuda"
    assert "installed, no device" in candidate(found, "vendor").reasons[0].message


def test_b12_usable_without_a_device_is_a_bug(site: Site) -> None:
    """No devices is absent or unusable, never usable; the error names the plugin."""
    site.platform("vendor", detect="return Detection.usable([])")
    site.platform("host", rank="CPU")
    with pytest.raises(ValueError, match="needs devices numbered") as caught:
        hardpoint.resolve()
    assert any("platform/vendor" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_b12_an_override_is_one_probe(site: Site, how: str) -> None:
    """B12: one probe of that platform, none of another, no recursion."""
    package = site.platform("cuda", rank="IN_TREE", plugin_top="probes = []", detect=f"probes.append(1)\n{usable()}")
    other = site.platform("rocm", rank="IN_TREE")
    if how == "variable":
        site.monkeypatch.setenv("HARDPOINT_PLATFORM", "cuda")
    assert hardpoint.resolve("cuda" if how == "argument" else None).platform.name == "cuda"
    module: Any = sys.modules[f"{package}.plugin"]
    assert module.probes == [1]
    assert not imported(other, "plugin")


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_b12_an_unknown_platform(site: Site, how: str) -> None:
    """B12: a ValueError with all known names and who asked; no platform is probed."""
    packages = [site.platform("cuda", rank="IN_TREE"), site.platform("host", rank="CPU")]
    if how == "variable":
        site.monkeypatch.setenv("HARDPOINT_PLATFORM", "cdua")
    with pytest.raises(ValueError, match="cdua") as caught:
        hardpoint.resolve("cdua" if how == "argument" else None)
    assert isinstance(caught.value, UnknownPlatformError)
    for part in ("cuda", "host", "did you mean 'cuda'", "HARDPOINT_PLATFORM" if how == "variable" else "argument"):
        assert part in str(caught.value)
    assert not any(imported(package, "plugin") for package in packages)
    for name in ("cdua", "current"):
        with pytest.raises(UnknownPlatformError):
            hardpoint.platform(name)


def test_b13_no_platform_at_all(site: Site) -> None:
    """B13: the error itself lists every candidate with its reason, the first-rejected ones too."""
    site.platform("amd", detect="return Detection.absent('no /dev/kfd')")
    site.platform("nvidia", detect="raise OSError('libcuda.so.1: cannot open shared object file')")
    site.platform("quiet", detect="return None")
    site.platform("skewed", api="(9, 0)")
    site.platform("weird", detect="return Detection.unusable('driver too old', 'and masked')")
    with pytest.raises(NoPlatformError) as caught:
        hardpoint.resolve()
    lines = [" ".join(line.split()) for line in str(caught.value).splitlines()]
    for part in (
        "amd absent no /dev/kfd",
        "nvidia failed at detect OSError: libcuda.so.1: cannot open shared object file",
        "weird unusable driver too old",
        "and masked",
    ):
        assert part in lines
    for part in ("quiet declined", "skewed breaks contract"):
        assert any(line.startswith(part) for line in lines)


@pytest.mark.plugins
@pytest.mark.parametrize("system", ["Linux", "Darwin", "Windows", "FreeBSD", ""])
@pytest.mark.parametrize(
    "architecture", ["arm64", "aarch64", "ppc64le", "s390x", "riscv64", "", "x86_64", "AMD64", "loongarch64"]
)
def test_b13_every_architecture_has_a_cpu(site: Site, system: str, architecture: str) -> None:
    """B13: the CPU platform, each time, on a machine of which nothing else is known."""
    site.allow("hardpoint-cpu")
    machine = InMemoryMachine(system=system, architecture=architecture, variables={})
    found = hardpoint.resolve(machine=machine)
    assert found.platform.name == "cpu"
    assert found.platform.device_count() == 1
    assert found.platform.supported_dtypes
    capability = found.platform.get_device_capability()
    assert isinstance(capability, DeviceCapability)


@needs_posix
def test_b14_a_tool_that_never_ends(site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """B14: a typed reason with limit and command, the next platform, the child killed and reaped, asked again later."""
    tools = tmp_path / "bin"
    tools.mkdir()
    tool = tools / "fake-smi"
    pid = tmp_path / "pid"
    tool.write_text(f"#!/bin/sh\necho $$ >> '{pid}'\nexec sleep 100000\n")
    tool.chmod(0o755)
    site.monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    site.monkeypatch.setenv("HARDPOINT_PROBE_TIMEOUT", "0.5")
    site.platform("gpu", detect=f"machine.run_tool(['fake-smi', '-q'])\n{usable()}")
    site.platform("host", rank="CPU")
    with caplog.at_level(logging.WARNING, "hardpoint"):
        found = hardpoint.resolve()
    assert (found.platform.name, found.is_fallback) == ("host", True)
    reason = candidate(found, "gpu").reasons[0]
    assert reason.code is ReasonCode.TIMEOUT
    assert "timed out after 0.5 s running fake-smi -q" in reason.message
    assert any("timed out after 0.5 s running fake-smi -q" in text for text in messages(caplog))
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text().split()[0]), 0)
    with pytest.raises(ChildProcessError):
        os.waitpid(int(pid.read_text().split()[0]), os.WNOHANG)
    with pytest.raises(PlatformUnavailableError, match="timed out after") as caught:
        hardpoint.resolve("gpu")
    assert isinstance(caught.value.__cause__, hardpoint.EnvironmentFailure)
    tool.write_text("#!/bin/sh\nexit 0\n")
    assert hardpoint.resolve().platform.name == "gpu"


def test_b14_a_plugins_own_timeout_expired_is_its_bug(site: Site) -> None:
    """B14: `subprocess.TimeoutExpired` is no OSError: a plugin that does not convert it is named."""
    site.platform(
        "gpu",
        plugin_top="import subprocess, sys",
        detect="subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'], timeout=0.1)",
    )
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        hardpoint.resolve()
    assert any("platform/gpu" in note for note in caught.value.__notes__)
