"""Resolving the platform: who wins, who is asked, and what the answer remembers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

import hardpoint
from hardpoint import Outcome, ReasonCode
from hardpoint.errors import (
    AmbiguousPlatformError,
    NoPlatformError,
    PlatformUnavailableError,
    ResolutionInProgressError,
    SettingsError,
    UnknownPlatformError,
)
from tests.plugins import Site, imported, usable

if TYPE_CHECKING:
    from pathlib import Path

ABSENT = "return Detection.absent('no such device node')"


def outcomes(resolution: hardpoint.Resolution) -> dict[str, Outcome]:
    """What became of each candidate, by name, without the plugins of the environment."""
    return {
        candidate.name: candidate.outcome
        for candidate in resolution.candidates
        if candidate.outcome is not Outcome.BLOCKED
    }


def test_a_vendor_goes_before_an_in_tree_platform_and_that_before_cpu(site: Site) -> None:
    """Rank decides among usable platforms, whatever their names."""
    site.platform("zz_vendor", rank="VENDOR")
    site.platform("aa_tree", rank="IN_TREE")
    site.platform("aa_cpu", rank="CPU")
    found = hardpoint.resolve()
    assert found.platform.name == "zz_vendor"
    assert not found.is_fallback
    assert outcomes(found) == {"zz_vendor": Outcome.CHOSEN, "aa_tree": Outcome.VALID, "aa_cpu": Outcome.VALID}


def test_cpu_is_no_rival_of_an_accelerator(site: Site) -> None:
    """One accelerator and CPU is no ambiguity."""
    site.platform("accelerator", rank="IN_TREE")
    site.platform("host", rank="CPU")
    assert hardpoint.current_platform().name == "accelerator"


def test_two_usable_vendors_are_an_error_that_names_both(site: Site) -> None:
    """The error names plugins, distributions and the variable to set."""
    site.platform("left", distribution="left-chips")
    site.platform("right", distribution="right-chips")
    with pytest.raises(AmbiguousPlatformError) as caught:
        hardpoint.resolve()
    text = str(caught.value)
    for part in ("platform/left", "left-chips", "platform/right", "right-chips", "HARDPOINT_PLATFORM=left"):
        assert part in text


def test_naming_one_of_two_vendors_settles_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the ambiguity error says to type works."""
    site.platform("left")
    site.platform("right")
    monkeypatch.setenv("HARDPOINT_PLATFORM", " Right ")
    found = hardpoint.resolve()
    assert found.platform.name == "right"
    assert found.source == "HARDPOINT_PLATFORM"


def test_an_explicit_platform_loads_no_other_plugin(site: Site) -> None:
    """With a platform named, no other platform plugin's module is imported and none is asked."""
    other = site.platform("accelerator")
    site.platform("host", rank="CPU")
    assert hardpoint.resolve("host").platform.name == "host"
    assert not imported(other, "plugin")


def test_an_unknown_platform_lists_the_known_ones_and_guesses(site: Site) -> None:
    """A misspelt name is answered with the nearest real one."""
    site.platform("neuronal")
    with pytest.raises(UnknownPlatformError, match=r"unknown platform 'neuronla'; did you mean 'neuronal'\?") as caught:
        hardpoint.resolve("neuronla")
    assert isinstance(caught.value, ValueError)


def test_a_named_platform_without_its_device_is_an_error_not_cpu(site: Site) -> None:
    """An explicit choice binds: CPU is never a substitute."""
    site.platform("accelerator", detect=ABSENT)
    site.platform("host", rank="CPU")
    with pytest.raises(PlatformUnavailableError, match="no such device node"):
        hardpoint.resolve("accelerator")


def test_a_list_is_tried_in_its_order(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """The next name is taken with a WARNING that says why the first was not."""
    site.platform("accelerator", detect=ABSENT)
    site.platform("host", rank="CPU")
    site.platform("other")
    with caplog.at_level(logging.WARNING, "hardpoint"):
        found = hardpoint.resolve(["missing", "accelerator", "host"])
    assert found.platform.name == "host"
    assert found.is_fallback
    assert "no such device node" in caplog.text
    assert "unknown platform 'missing'" in caplog.text


def test_nothing_outside_a_list_is_taken(site: Site) -> None:
    """A list that fails lists everything in it, and no other platform."""
    site.platform("accelerator", detect=ABSENT)
    site.platform("host", rank="CPU")
    with pytest.raises(PlatformUnavailableError) as caught:
        hardpoint.resolve(["accelerator", "hosst"])
    assert "no such device node" in str(caught.value)
    assert "did you mean 'host'?" in str(caught.value)


def test_auto_at_the_end_opens_the_list(site: Site) -> None:
    """After the names, the automatic order."""
    site.platform("accelerator", detect=ABSENT)
    site.platform("host", rank="CPU")
    assert hardpoint.resolve("accelerator,auto").platform.name == "host"
    with pytest.raises(SettingsError, match="stands last"):
        hardpoint.resolve("auto,host")


def test_an_argument_beats_the_variable_and_says_so(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One WARNING names both values."""
    site.platform("left")
    site.platform("right")
    monkeypatch.setenv("HARDPOINT_PLATFORM", "left")
    with caplog.at_level(logging.WARNING, "hardpoint"):
        assert hardpoint.resolve("right").platform.name == "right"
    assert "platform=right (argument) is taken, not HARDPOINT_PLATFORM=left" in caplog.text


def test_no_plugin_at_all_says_how_to_get_one(site: Site) -> None:
    """The error is about installing, not about devices."""
    with pytest.raises(
        NoPlatformError, match=r"(?s)(pip install hardpoint-cpu.*hardpoint\.register|HARDPOINT_PLUGINS)"
    ):
        hardpoint.resolve()


def test_when_all_reject_the_error_lists_every_candidate(site: Site) -> None:
    """Each candidate with its own reason, in order."""
    site.platform("first", detect="return Detection.absent('no node A')")
    site.platform("second", detect="return Detection.unusable('driver too old')")
    site.platform("third", detect="raise OSError('libthird.so: cannot open shared object file')")
    with pytest.raises(NoPlatformError) as caught:
        hardpoint.resolve()
    text = str(caught.value)
    assert text.index("no node A") < text.index("driver too old") < text.index("OSError: libthird.so")


def test_declining_is_no_failure(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A detection of None is recorded as declined, without a WARNING."""
    site.platform("shy", detect="return None")
    site.platform("host", rank="CPU")
    with caplog.at_level(logging.WARNING, "hardpoint"):
        found = hardpoint.resolve()
    assert outcomes(found)["shy"] is Outcome.DECLINED
    assert not found.is_fallback
    assert not caplog.records


def test_a_broken_vendor_plugin_never_becomes_cpu_in_silence(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """CPU is taken with a WARNING that names plugin, distribution, version and cause, and is marked a fallback."""
    site.platform("vendor", detect="import vendor_rt_that_is_missing", distribution="vendor-chips", version="3.1")
    site.platform("host", rank="CPU")
    with caplog.at_level(logging.WARNING, "hardpoint"):
        found = hardpoint.resolve()
    assert found.platform.name == "host"
    assert found.is_fallback
    (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    for part in (
        "platform/vendor",
        "vendor-chips 3.1",
        "ModuleNotFoundError: No module named 'vendor_rt",
        "using host",
    ):
        assert part in record.getMessage()


def test_strict_mode_makes_the_loss_the_error(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """By argument and by variable."""
    site.platform("vendor", detect="raise PermissionError(13, 'Permission denied', '/dev/dri/renderD128')")
    site.platform("host", rank="CPU")
    with pytest.raises(PlatformUnavailableError, match="renderD128") as caught:
        hardpoint.resolve(strict=True)
    assert isinstance(caught.value.__cause__, OSError)
    monkeypatch.setenv("HARDPOINT_STRICT", "1")
    with pytest.raises(PlatformUnavailableError):
        hardpoint.current_platform()


def test_masked_devices_are_the_users_own_word(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A mask that hides every device gives CPU without a WARNING."""
    site.platform("accelerator", detect="return Detection.unusable(Reason(code='masked', message='mask is empty'))")
    site.platform("host", rank="CPU")
    with caplog.at_level(logging.WARNING, "hardpoint"):
        assert not hardpoint.resolve(strict=True).is_fallback
    assert not caplog.records


def test_a_mask_that_is_a_mistake_is_a_loss(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """One with something to mend was not meant to hide everything: a WARNING says so, and strict mode stops."""
    reason = "Reason(code='masked', message='MASK=GPU-typo leaves no device', remedy='correct MASK')"
    site.platform("accelerator", detect=f"return Detection.unusable({reason})")
    site.platform("host", rank="CPU")
    with caplog.at_level(logging.WARNING, "hardpoint"):
        assert hardpoint.resolve().is_fallback
    (record,) = caplog.records
    assert "MASK=GPU-typo leaves no device (correct MASK)" in record.getMessage()
    with pytest.raises(PlatformUnavailableError, match="MASK=GPU-typo"):
        hardpoint.resolve(strict=True)


def test_activation_that_fails_takes_the_next_usable_platform(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """The detected winner's class may still not import."""
    site.platform("vendor", platform_top="raise OSError('libvendor.so: cannot open shared object file')")
    site.platform("host", rank="CPU")
    with caplog.at_level(logging.WARNING, "hardpoint"):
        found = hardpoint.resolve()
    assert found.platform.name == "host"
    assert found.is_fallback
    (lost,) = [candidate for candidate in found.candidates if candidate.name == "vendor"]
    assert lost.outcome is Outcome.FAILED
    assert lost.reasons[0].code is ReasonCode.MISSING_LIBRARY
    assert lost.reasons[0].message == "OSError: libvendor.so: cannot open shared object file"
    assert "libvendor.so" in caplog.text


def test_the_current_platform_is_one_object_until_reset(site: Site) -> None:
    """Kept, and forgotten by reset."""
    site.platform("host", rank="CPU")
    first = hardpoint.current_platform()
    assert hardpoint.current_platform() is first
    assert hardpoint.platform("host") is first
    hardpoint.reset()
    assert hardpoint.current_platform() is not first


def test_resolve_is_fresh_every_time(site: Site) -> None:
    """The process's own answer is not touched by it."""
    site.platform("host", rank="CPU")
    assert hardpoint.resolve().platform is not hardpoint.resolve().platform


def test_a_platform_beside_the_current_one(site: Site) -> None:
    """By name, any usable platform, the same object every time."""
    site.platform("vendor")
    site.platform("host", rank="CPU")
    assert hardpoint.current_platform().name == "vendor"
    assert hardpoint.platform("Host") is hardpoint.platform("host")


def test_override_nests_and_ends(site: Site) -> None:
    """The innermost override answers; after the block the former answer is back."""
    site.platform("vendor")
    site.platform("host", rank="CPU")
    with hardpoint.override_platform("host") as host:
        assert hardpoint.current_platform() is host
        other = hardpoint.resolve("vendor").platform
        with hardpoint.override_platform(other):
            assert hardpoint.current_platform() is other
        assert hardpoint.current_platform() is host
    assert hardpoint.current_platform().name == "vendor"


def test_a_failure_is_not_kept(site: Site, tmp_path: Path) -> None:
    """What was absent at the first question is found at the next."""
    node = tmp_path / "node"
    site.platform("vendor", detect=f"if not machine.exists({str(node)!r}):\n    {ABSENT}\n{usable()}")
    with pytest.raises(NoPlatformError):
        hardpoint.current_platform()
    node.touch()
    assert hardpoint.current_platform().name == "vendor"


def test_a_plugin_that_asks_for_the_platform_while_it_is_resolved_is_told(site: Site) -> None:
    """The error names the plugin, and nothing becomes CPU."""
    site.platform("curious", detect="import hardpoint\nhardpoint.current_platform()")
    site.platform("host", rank="CPU")
    for ask in (hardpoint.current_platform, hardpoint.resolve):
        with pytest.raises(ResolutionInProgressError, match="platform/curious"):
            ask()


def test_a_plugin_that_logs_and_fails_is_recorded(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Logging inside a probe asks nothing of the resolution; the real cause is on record."""
    site.platform(
        "vendor",
        detect="""
            import logging
            from hardpoint import log_once
            log_once(logging.getLogger("vendor"), logging.WARNING, "cannot open the node")
            raise PermissionError(13, "Permission denied", "/dev/dri/renderD128")
        """,
    )
    site.platform("host", rank="CPU")
    with caplog.at_level(logging.WARNING):
        found = hardpoint.resolve()
    assert found.platform.name == "host"
    (lost,) = [candidate for candidate in found.candidates if candidate.name == "vendor"]
    assert lost.reasons[0].code is ReasonCode.PERMISSION
    assert lost.reasons[0].message == "PermissionError: [Errno 13] Permission denied: '/dev/dri/renderD128'"
    assert [r.getMessage() for r in caplog.records].count("cannot open the node") == 1


def test_what_a_detection_may_answer_is_checked(site: Site) -> None:
    """Another type is a contract error that shows the value."""
    site.platform("odd", detect="return 'cuda'")
    site.platform("host", rank="CPU")
    found = hardpoint.resolve()
    (odd,) = [candidate for candidate in found.candidates if candidate.name == "odd"]
    assert odd.outcome is Outcome.CONTRACT
    assert "returned 'cuda'; expected a Detection" in odd.reasons[0].message


def test_the_explanation_says_who_asked_and_what_became_of_each(site: Site) -> None:
    """One line per candidate."""
    site.platform("accelerator", detect=ABSENT)
    site.platform("host", rank="CPU")
    lines = [line for line in hardpoint.resolve().explain().splitlines() if "HARDPOINT_PLUGINS" not in line]
    assert lines == [
        "platform host (automatic)",
        "  accelerator: absent: no such device node",
        "  host: chosen",
    ]


def test_a_platform_without_a_name_is_not_the_current_one(site: Site) -> None:
    """An empty text is a mistake of the caller's, not a request for anything."""
    site.platform("host")
    with pytest.raises(SettingsError, match="platform='': expected a name"):
        hardpoint.platform("")


def test_a_blocked_platform_that_was_asked_for_is_told_in_plain_words(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence says who asked, and each line why not."""
    site.platform("host")
    monkeypatch.setenv("HARDPOINT_DISABLED_PLUGINS", "platform/host")
    with pytest.raises(PlatformUnavailableError) as caught:
        hardpoint.resolve("host")
    assert str(caught.value).splitlines()[0] == "no platform can be used here (asked for by the argument: host):"
