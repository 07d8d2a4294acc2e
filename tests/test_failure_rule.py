"""The failure rule's table, cell by cell: what happened, in which phase, and how the question was asked."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import hardpoint
from hardpoint import Outcome
from hardpoint.errors import BackendUnavailableError, ContractError, PlatformUnavailableError
from tests.plugins import Site, config

FIRST = "BackendPriority('first', 'fastest here'), BackendPriority('second', 'works everywhere')"

ENVIRONMENT = {
    "ImportError": "raise ImportError('x.so: undefined symbol: _Z')",
    "ModuleNotFoundError": "import a_runtime_that_is_missing",
    "OSError": "raise OSError('libx.so.1: cannot open shared object file')",
    "PermissionError": "raise PermissionError(13, 'Permission denied', '/ro/cache')",
    "TimeoutError": "raise TimeoutError('no answer')",
    "EnvironmentFailure": (
        "from hardpoint import EnvironmentFailure\ntry:\n    {}['uid']\nexcept KeyError as error:\n"
        "    raise EnvironmentFailure('no user', code='permission', remedy='set HOME') from error"
    ),
}
PROGRAMMING = ["AttributeError", "TypeError", "AssertionError", "KeyError", "RuntimeError", "ValueError", "NameError"]
INTERRUPTS = ["KeyboardInterrupt", "SystemExit", "GeneratorExit"]
CONTRACT = "from hardpoint.errors import ContractError\nraise ContractError('broken promise')"

PLATFORM_PHASES = ["load a platform", "detect", "activate"]
BACKEND_PHASES = ["load a backend", "import", "validate", "prepare"]
PHASES = [*PLATFORM_PHASES, *BACKEND_PHASES]

LAYERS: dict[str, dict[str, Any]] = {
    "decoder": {},
    "encoder": {"attention_type": "encoder_only", "block_size": None},
    "cross": {"attention_type": "encoder_decoder"},
    "latent": {"kind": "mla_attention", "head_size": 576, "kv_lora_rank": 512, "qk_rope_head_dim": 64},
}


def install(site: Site, phase: str, code: str, kind: str = "attention") -> None:
    """A vendor and a host platform, two backends, and `code` run by the better one of the two in that phase."""
    vendor: dict[str, Any] = {}
    backend: dict[str, Any] = {}
    match phase:
        case "load a platform":
            vendor["plugin_top"] = code
        case "detect":
            vendor["detect"] = code
        case "activate":
            vendor["platform_top"] = code
        case "load a backend":
            backend["plugin_top"] = code
        case "import":
            backend["top"] = code
        case _:
            backend[phase] = code
    site.platform("vendor", priorities=FIRST, distribution="vendor-chips", **vendor)
    site.platform("host", priorities=FIRST, rank="CPU")
    site.backend("first", kind=kind, distribution="first-kernels", **backend)
    site.backend("second", kind=kind)


def ask(phase: str, *, explicit: bool, strict: bool = False, **layer: Any) -> hardpoint.Candidate:
    """Ask for a platform and a backend; returns what became of the one that fails."""
    on_platform = phase in PLATFORM_PHASES
    resolution = hardpoint.resolve("vendor" if explicit and on_platform else None, strict=strict)
    if on_platform:
        assert resolution.platform.name == "host"
        assert resolution.is_fallback
        return next(item for item in resolution.candidates if item.name == "vendor")
    selection = resolution.platform.select_backend(
        config(**layer), "first" if explicit else None, depth="ready", strict=strict
    )
    assert selection.backend == "second"
    assert selection.is_fallback
    return next(item for item in selection.candidates if item.name == "first")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kind", ENVIRONMENT)
def test_environment_failure(site: Site, caplog: pytest.LogCaptureFixture, phase: str, kind: str) -> None:
    """Scan: recorded, one WARNING, next. By name and strict: our ValueError from the original. Inspecting: recorded."""
    install(site, phase, ENVIRONMENT[kind])
    with caplog.at_level(logging.WARNING, "hardpoint"):
        lost = ask(phase, explicit=False)
    assert lost.outcome is Outcome.FAILED
    (reason,) = lost.reasons
    assert reason.message.startswith(f"{kind}: ")
    assert reason.detail
    assert "Traceback" in reason.detail
    (record,) = [item for item in caplog.records if item.levelno == logging.WARNING]
    assert reason.message in record.getMessage()
    assert record.exc_info is None
    for explicit, strict in ((True, False), (False, True)):
        hardpoint.reset()
        with pytest.raises((PlatformUnavailableError, BackendUnavailableError)) as caught:
            ask(phase, explicit=explicit, strict=strict)
        assert isinstance(caught.value, ValueError)
        assert reason.message in str(caught.value)
        assert isinstance(caught.value.__cause__, (ImportError, OSError))
        if explicit:
            assert type(caught.value.__cause__).__name__ == kind
    hardpoint.reset()
    report = hardpoint.inspect([config()], depth="ready").as_dict()
    assert report["bugs"] == []
    assert reason.message in str(report)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kind", PROGRAMMING)
def test_programming_error(site: Site, phase: str, kind: str) -> None:
    """Propagates as itself with a note, scanned or named; inspecting records a bug, shows it first, and goes on."""
    install(site, phase, f"raise {kind}('wrong')")
    for explicit in (False, True):
        with pytest.raises(Exception, match="wrong") as caught:
            ask(phase, explicit=explicit)
        assert type(caught.value).__name__ == kind
        (note,) = caught.value.__notes__
        plugin, brought = (
            ("platform/vendor", "(vendor-chips 1.0)")
            if phase in PLATFORM_PHASES
            else ("backend/first", "(first-kernels 1.0)")
        )
        assert f"{plugin} {brought}" in note
        assert f"HARDPOINT_DISABLED_PLUGINS={plugin}" in note
    report = hardpoint.inspect([config()], depth="ready")
    (bug,) = report.as_dict()["bugs"]
    assert bug["plugin"] == plugin
    assert str(report).splitlines()[0].startswith(f"BUG in {plugin}")
    assert report.as_dict()["resolution"]["platform"] == ("host" if phase in PLATFORM_PHASES else "vendor")
    assert report.as_dict()["selections"][0]["backend"] == ("first" if phase in PLATFORM_PHASES else "second")


@pytest.mark.parametrize("phase", PHASES)
def test_contract_error(site: Site, caplog: pytest.LogCaptureFixture, phase: str) -> None:
    """Recorded with a WARNING in a scan, raised where it was asked for by name, recorded while inspecting."""
    install(site, phase, CONTRACT)
    with caplog.at_level(logging.WARNING, "hardpoint"):
        assert ask(phase, explicit=False).outcome is Outcome.CONTRACT
    assert "broken promise" in caplog.text
    with pytest.raises(ContractError, match="broken promise"):
        ask(phase, explicit=True)
    assert "broken promise" in str(hardpoint.inspect([config()], depth="ready"))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kind", INTERRUPTS)
def test_interrupts(site: Site, phase: str, kind: str) -> None:
    """Untouched in every column."""
    install(site, phase, f"raise {kind}('stop')")
    for question in (
        lambda: ask(phase, explicit=False),
        lambda: ask(phase, explicit=True),
        lambda: hardpoint.inspect([config()], depth="ready"),
    ):
        with pytest.raises(BaseException, match="stop") as caught:
            question()
        assert type(caught.value).__name__ == kind
        assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("phase", BACKEND_PHASES)
def test_one_rule_for_every_kind_of_attention(site: Site, layer: str, phase: str) -> None:
    """Decoder, encoder, cross and latent attention: the next candidate, or the very error."""
    fields = LAYERS[layer]
    kind = fields.get("kind", "attention")
    install(site, phase, "raise OSError('libx.so: no')", kind)
    assert ask(phase, explicit=False, **fields).reasons[0].message == "OSError: libx.so: no"
    with pytest.raises(BackendUnavailableError, match=r"libx\.so"):
        ask(phase, explicit=True, **fields)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_bug_is_one_in_every_kind_of_attention(site: Site, layer: str) -> None:
    """None of them hides it."""
    fields = LAYERS[layer]
    install(site, "validate", "raise AttributeError('wrong')", fields.get("kind", "attention"))
    with pytest.raises(AttributeError, match="wrong"):
        ask("validate", explicit=False, **fields)


def test_an_exception_whose_text_fails_is_recorded(site: Site) -> None:
    """Not even a plugin's own exception class can break the record."""
    code = (
        "class Odd(OSError):\n    def __str__(self): raise RuntimeError('no text')\n"
        "    def __repr__(self): raise RuntimeError('no text')\nraise Odd"
    )
    install(site, "import", code)
    lost = ask("import", explicit=False)
    assert lost.reasons[0].message.startswith("Odd: ")


def test_inspecting_without_any_platform(site: Site) -> None:
    """A report all the same, with every reason."""
    site.platform("vendor", detect="return Detection.absent('no node')")
    report = hardpoint.inspect([config()])
    assert report.as_dict()["resolution"]["platform"] is None
    assert "platform: NONE" in str(report)
    assert "no node" in str(report)
