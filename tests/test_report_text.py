"""The report as text: every kind of line that it has."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

import hardpoint
from hardpoint import _log_node
from hardpoint._report_text import kernels_state
from tests.plugins import config

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugins import Site

BROKEN = """
def kernel_modules(self):
    return (KernelModule(name="kernels_that_break", required=True), KernelModule(name="no_such_package._kernels"))
"""


def test_a_machine_on_which_much_is_wrong(site: Site) -> None:
    """Kernels that are not all right, reasons of several lines, remedies, remarks and fallbacks."""
    (site.folder / "kernels_that_break.py").write_text("raise ImportError('libk.so: undefined symbol\\nsecond line')")
    site.platform("fake", body=BROKEN, api="None", detect="return Detection.usable([Device(index=0, name='One')])")
    site.platform("lost", detect="raise OSError('libl.so: no\\nmore of it')")
    site.backend("first", spec="order=Order(before=('second',))", validate="raise OSError('nothing')")
    site.backend("second")
    platform = hardpoint.current_platform()
    assert not platform.import_kernels().ok
    platform.select_backend(config(block_size=None, causal=False))
    text = str(hardpoint.report())
    for part in (
        "kernels: NOT OK",
        "      second line",
        "declares no contract version",
        "device 0: One (capability unknown)",
        "attention: second (automatic, as a fallback",
        "      more of it",
    ):
        assert part in text
    assert "selectable" not in text


def test_a_platform_without_selectable_attention(site: Site) -> None:
    """Its own words stand where a backend's name would."""
    site.platform("fake", body="attention_note = 'attention lives in the compiled graph'")
    report = hardpoint.inspect([config()])
    assert "no selectable backend: attention lives in the compiled graph" in str(report)


def test_inspection_from_within_a_probe_is_told(site: Site) -> None:
    """As every other question that needs the answer that is being made."""
    site.platform("curious", detect="import hardpoint\nhardpoint.inspect()")
    with pytest.raises(hardpoint.errors.ResolutionInProgressError, match="platform/curious"):
        hardpoint.resolve()


def test_a_rank_claims_a_text_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a local rank the text is locked for this process; without a usable folder it is logged all the same."""
    pytest.importorskip("fcntl")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    _log_node.release()
    assert _log_node.claim("no GPU")
    assert _log_node.claim("no GPU")  # a process has its own lock already
    (file,) = tmp_path.iterdir()
    assert file.name.endswith(".ranks")
    _log_node.release()
    _log_node.release()
    file.unlink()
    file.mkdir()
    assert _log_node.claim("no GPU")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    assert _log_node.claim("another")
    _log_node.release()


def test_losses_are_said_where_logging_is_configured(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """One record, from the core's own logger."""
    site.platform("lost", detect="raise OSError('libl.so: no')")
    site.platform("host", rank="CPU")
    with caplog.at_level(logging.DEBUG, "hardpoint"):
        hardpoint.resolve()
    assert {record.name for record in caplog.records} == {"hardpoint"}
    assert any(record.levelno == logging.DEBUG and "Traceback" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("ok", "outcomes", "state"),
    [
        (True, ["imported", "not_run", "absent"], "ok"),
        (True, ["not_run", "not_run"], "ok"),
        (True, ["absent", "absent", "not_run"], "none is here, and none is required"),
        (True, [], "none declared"),
        (False, ["absent"], "NOT OK"),
        (True, ["broken", "absent"], "ok"),
    ],
)
def test_what_is_said_of_kernels_that_are_absent(ok: bool, outcomes: list[str], state: str) -> None:
    """Where nothing is there and nothing has to be, that is no ``ok`` of kernels."""
    assert kernels_state({"ok": ok, "modules": [{"outcome": outcome} for outcome in outcomes]}) == state
