"""Edges of the core that no ordinary question meets."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

import hardpoint
from hardpoint import _flight, _process
from hardpoint._names import normalise_distribution
from hardpoint._probing import Failure
from hardpoint._reasons import Outcome, Phase, Reason, ReasonCode
from hardpoint.attention import AttentionSupport
from hardpoint.errors import ContractError, EnvironmentFailure
from hardpoint.hookspecs import BackendSpec, Detection, hookimpl
from tests.plugins import config

if TYPE_CHECKING:
    from tests.plugins import Site


class Described:
    """A backend plugin whose descriptor a test writes."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    @hookimpl
    def hardpoint_backend(self) -> BackendSpec:
        """Describe it."""
        plain: dict[str, Any] = {
            "api": (1, 0),
            "kind": "attention",
            "platforms": ("fake",),
            "target": "a:B",
            "support": AttentionSupport(()),
        }
        return BackendSpec(**{**plain, **self.fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "convolution"}, "kind 'convolution' is unknown"),
        ({"platforms": ()}, "platforms is empty"),
        ({"platforms": "cuda"}, "platforms is 'cuda'; expected a tuple of strings"),
        ({"requires": (7,)}, "requires is"),
        ({"support": None}, "support is None; expected an AttentionSupport"),
        ({"api": 1}, "expected a pair of numbers"),
        ({"target": "nothing"}, "is not of the form"),
    ],
)
def test_a_descriptor_that_says_nonsense_is_told(site: Site, fields: dict[str, Any], message: str) -> None:
    """Every member is checked before anything relies on it."""
    with pytest.raises(ContractError) as caught:
        hardpoint.register("backend", "odd", Described(**fields))
    assert message in str(caught.value)


def test_an_unusable_detection_needs_a_reason() -> None:
    """Else nobody could say why."""
    with pytest.raises(ValueError, match="at least one reason"):
        Detection.unusable()


def test_names_of_distributions_are_folded() -> None:
    """As the packaging standard has it."""
    assert normalise_distribution(" My__Dist.-Name ") == "my-dist-name"


def test_a_recorded_failure_is_raised_from_its_like() -> None:
    """A contract error from a contract error, all others from an environment failure."""
    reason = Reason(code=ReasonCode.DRIVER, message="too old")
    assert isinstance(Failure(Outcome.FAILED, Phase.DETECT, reason).as_cause(), EnvironmentFailure)
    assert isinstance(Failure(Outcome.CONTRACT, Phase.DETECT, reason).as_cause(), ContractError)


def test_overlapping_overrides_end_each_for_itself(site: Site) -> None:
    """The outer block may end before the inner one, as with two threads."""
    site.platform("one")
    site.platform("two", rank="CPU")
    first, second = hardpoint.override_platform("one"), hardpoint.override_platform("two")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert hardpoint.current_platform().name == "two"
    second.__exit__(None, None, None)
    assert hardpoint.current_platform().name == "one"


def test_the_child_of_a_fork_gets_new_locks(site: Site) -> None:
    """Before and after anything was asked."""
    hardpoint.reset()
    _process._renew_locks()
    site.platform("one")
    before = hardpoint.current_platform()
    lock = _process.process().lock
    _process._renew_locks()
    assert _process.process().lock is not lock
    assert hardpoint.current_platform() is before


@pytest.mark.parametrize("is_held", [False, True])
def test_logging_that_came_after_us_is_held_at_the_fork_and_not_before(
    monkeypatch: pytest.MonkeyPatch, is_held: bool
) -> None:
    """Whether its own guard ran before ours or was registered while we waited: its lock is held once at the end."""
    lock: Any = vars(logging)["_lock"]
    monkeypatch.setattr(_flight, "_logging_came_first", False)
    if is_held:
        lock.acquire()
    _flight.import_gate.before_fork()
    assert lock._is_owned()
    lock.release()
    assert not lock._is_owned()
    _flight.import_gate.after_fork_in_parent()


def test_valid_backends_at_every_depth(site: Site) -> None:
    """`ready` imports kernels and prepares; a platform without selectable backends has none at any depth."""
    site.platform("fake")
    site.backend("one")
    site.backend("two", prepare="raise OSError('no compiler')")
    platform = hardpoint.current_platform()
    valid, rejected = platform.get_valid_backends(None, config(), depth="ready")
    assert "one" in [item.name for item in valid]
    assert rejected["two"].phase is Phase.PREPARE
    assert platform.kernel_report is not None
    assert hardpoint.agreement.common_choice([["one"]]) == "one"
