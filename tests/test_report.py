"""The report and the fingerprint: everything that was decided, as data."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys

import pytest

import hardpoint
from tests.plugins import Site, config

FIRST = "BackendPriority('first', 'fastest here'), BackendPriority('second', 'works everywhere')"


def test_the_report_holds_every_decision(site: Site) -> None:
    """Platforms, plugins, kernels and selections, each with outcome, reasons and provenance; it is JSON."""
    site.platform("fake", priorities=FIRST, distribution="fake-chips", version="2.5")
    site.platform("broken", detect="raise OSError('libx.so: no')")
    site.backend("first", top="raise ImportError('liby.so: undefined symbol')")
    site.backend("second")
    platform = hardpoint.current_platform()
    platform.import_kernels()
    platform.select_backend(config())
    data = json.loads(hardpoint.report().to_json())
    assert data["schema"] == 1
    assert data["resolution"]["platform"] == "fake"
    assert data["resolution"]["is_fallback"] is True
    candidates = {item["name"]: item for item in data["resolution"]["candidates"]}
    assert candidates["broken"]["reasons"][0]["message"] == "OSError: libx.so: no"
    assert candidates["fake"]["provenance"]["version"] == "2.5"
    plugins = {item["plugin"]: item for item in data["plugins"]}
    assert plugins["platform/fake"]["outcome"] == "loaded"
    (selection,) = data["selections"]
    assert selection["backend"] == "second"
    assert selection["candidates"][0]["reasons"][0]["code"] == "broken_import"
    assert data["kernels"]["ok"] is True
    assert data["fingerprint"]["digest"] == str(hardpoint.fingerprint())
    text = hardpoint.report().to_text()
    for part in ("platform: fake (automatic, as a fallback)", "liby.so: undefined symbol", "fake-chips 2.5"):
        assert part in text


def test_a_report_resolves_nothing(site: Site) -> None:
    """Before the first question there is a report too."""
    package = site.platform("fake")
    data = hardpoint.report().as_dict()
    assert data["resolution"] is None
    assert data["fingerprint"] is None
    assert f"{package}.plugin" not in sys.modules
    assert "platform: not resolved yet" in str(hardpoint.report())


def test_the_report_shows_an_override_and_bad_settings(site: Site) -> None:
    """What a test has put in place is visible, and a meaningless setting does not end the report."""
    site.platform("fake")
    with hardpoint.override_platform("fake"):
        assert hardpoint.report().as_dict()["override"] == "fake"
        assert "fake (override_platform)" in str(hardpoint.report())
    site.monkeypatch.setenv("HARDPOINT_STRICT", "perhaps")
    assert "HARDPOINT_STRICT" in hardpoint.report().as_dict()["settings"]["error"]
    assert "HARDPOINT_STRICT" in str(hardpoint.report())


def test_dead_members_of_a_platform_are_reported(site: Site) -> None:
    """A method that the contract does not know is never called, and the report says so."""
    site.platform("fake", body="def supports_v1(self):\n    return True")
    hardpoint.current_platform()
    plugins = {item["plugin"]: item for item in hardpoint.report().as_dict()["plugins"]}
    assert plugins["platform/fake"]["unknown_members"] == ["supports_v1"]


@pytest.mark.parametrize("member", ["vendor", "device_type", "dispatch_key"])
def test_a_platform_that_cannot_describe_itself_is_reported(site: Site, member: str) -> None:
    """Its bug is shown first, and everything else of the report is there; inspecting goes on as well."""
    site.platform("fake", body=f"@property\ndef {member}(self):\n    raise RuntimeError('no driver call here')")
    site.backend("first")
    hardpoint.current_platform().select_backend(config())
    for report in (hardpoint.report(), hardpoint.inspect([config()])):
        data = report.as_dict()
        (bug,) = data["bugs"]
        assert (bug["plugin"], bug["phase"]) == ("platform/fake", "report")
        assert bug["message"] == data["platform"]["error"] == "RuntimeError: no driver call here"
        assert data["platform"]["devices"][0]["name"] == "Fake 9.0"
        assert data["selections"][0]["backend"] == "first"
        assert str(report).startswith("BUG in platform/fake (report): RuntimeError: no driver call here")


def test_a_platform_whose_description_fails_by_the_machine_is_no_bug(site: Site) -> None:
    """An environment failure is told where the description would stand."""
    site.platform("fake", body="@property\ndef vendor(self):\n    raise OSError('/dev/fake0 is gone')")
    hardpoint.current_platform()
    report = hardpoint.report()
    assert report.as_dict()["bugs"] == []
    assert "its own description cannot be had: OSError: /dev/fake0 is gone" in str(report)


def test_a_report_is_json_whatever_plugins_put_in(site: Site) -> None:
    """Bytes, NaN and objects, one of which cannot even be printed, are told as text."""
    site.platform(
        "fake",
        detect="""
            class Mute:
                def __repr__(self):
                    raise ValueError
            odd = {"serial": b"\\xff", "watts": float("nan"), "mute": Mute(), "sizes": (1, 2.5, None, True)}
            return Detection.usable([Device(index=0, name="odd", properties=odd)])
        """,
    )
    hardpoint.current_platform()
    data = json.loads(hardpoint.report().to_json(), parse_constant=pytest.fail)
    assert data["platform"]["devices"][0]["properties"] == {
        "serial": "b'\\xff'",
        "watts": "nan",
        "mute": "<Mute that raises ValueError when printed>",
        "sizes": [1, 2.5, None, True],
    }


def test_a_report_can_be_written_whatever_a_variable_holds(site: Site) -> None:
    """Bytes that are no UTF-8 are shown as escapes, and JSON gives back the very value."""
    site.monkeypatch.setenv("HARDPOINT_PLATFORM", "caf\udce9")
    report = hardpoint.inspect()
    assert "HARDPOINT_PLATFORM=caf\\udce9" in report.to_text().encode().decode()
    data = json.loads(report.to_json().encode())
    assert data["settings"]["variables"]["HARDPOINT_PLATFORM"] == "caf\udce9"


PROGRAM = """
import hardpoint
platform = hardpoint.current_platform()
for head_size in {sizes}:
    platform.select_backend(hardpoint.AttentionConfig(head_size=head_size, num_heads=4, dtype="float32", block_size=16))
print(hardpoint.fingerprint())
"""


def test_the_fingerprint_does_not_depend_on_hash_seeds_or_order(site: Site) -> None:
    """B39: ten hash seeds and two orders of questions give one fingerprint."""
    site.platform("fake", priorities=FIRST)
    site.backend("first")
    site.backend("second")
    digests = set()
    for seed in range(10):
        sizes = [32, 64, 128] if seed % 2 else [128, 32, 64]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(sizes=sizes)],
            capture_output=True, text=True, check=True, timeout=120,
            env={
                **os.environ,
                "PYTHONHASHSEED": str(seed),
                "PYTHONPATH": os.pathsep.join([str(site.folder), *filter(None, sys.path)]),
            },
        )  # fmt: skip
        digests.add(done.stdout)
    assert len(digests) == 1


def test_the_fingerprint_tells_decisions_apart(site: Site) -> None:
    """Another backend, another layout or another version is another fingerprint; how it was asked for is not."""
    site.platform("fake", priorities=FIRST)
    site.backend("first")
    site.backend("second", body="pass")
    platform = hardpoint.current_platform()
    platform.select_backend(config())
    one = hardpoint.fingerprint()
    platform.select_backend(config(), "first")
    assert hardpoint.fingerprint() == one
    platform.select_backend(config(), "second")
    other = hardpoint.fingerprint()
    assert other != one
    assert other.digest != one.digest
    assert pickle.loads(pickle.dumps(one)) == one
    assert hash(pickle.loads(pickle.dumps(one))) == hash(one)
