"""The error tree: what each is, what it carries, and that it survives pickling and copying."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from hardpoint import Outcome, Reason, ReasonCode, errors
from hardpoint._reasons import Candidate

EVERY = [
    cls for _, cls in sorted(inspect.getmembers(errors, inspect.isclass)) if issubclass(cls, errors.HardpointError)
]


def made(cls: type[errors.HardpointError]) -> errors.HardpointError:
    """One error of the class, with every field set."""
    reason = Reason(code=ReasonCode.DRIVER, message="too old", requested=1, remedy="update it")
    candidate = Candidate(name="one", outcome=Outcome.FAILED, reasons=(reason,))
    fields: dict[str, object] = {
        "code": "driver", "remedy": "update it", "plugin": "platform/one", "setting": "HARDPOINT_X", "value": "y",
        "field": "dtype", "candidates": (candidate,), "reasons": (reason,),
        "profile": "h1000", "known": ("h100",), "path": "/tmp/file",
    }  # fmt: skip
    known = inspect.signature(cls.__init__).parameters
    return cls("what happened\nand where", **{name: value for name, value in fields.items() if name in known})


@pytest.mark.parametrize("cls", EVERY)
def test_every_error_pickles_and_copies(cls: type[errors.HardpointError]) -> None:
    """Type, text, fields and notes; a copy shares no traceback."""
    error = made(cls)
    error.add_note("a note")
    try:
        raise error
    except errors.HardpointError as caught:
        copies = [pickle.loads(pickle.dumps(caught)), caught.copy()]
    for copy in copies:
        assert type(copy) is cls
        assert str(copy) == "what happened\nand where"
        assert vars(copy) == vars(error)
        assert copy.__traceback__ is None
    copies[1].add_note("another")
    assert error.__notes__ == ["a note"]


@pytest.mark.parametrize("cls", EVERY)
def test_every_error_is_in_the_tree_at_the_top(cls: type[errors.HardpointError]) -> None:
    """The drawing in the docstring names each class and its built-in base."""
    lines = [line for line in (errors.__doc__ or "").splitlines() if re.search(rf"\b{cls.__name__}\b", line)]
    assert lines
    if named := re.search(rf"{cls.__name__} \((\w+)\)", lines[0]):
        base = getattr(__builtins__, named[1], None) or dict(inspect.getmembers(__import__("builtins")))[named[1]]
        assert issubclass(cls, base)


def test_an_environment_failure_is_an_os_error_with_a_code() -> None:
    """One positional argument; the code's text becomes the enum."""
    error = errors.EnvironmentFailure("no GPU is visible", code="no_device", remedy="check /dev/dri")
    assert isinstance(error, OSError)
    assert error.code is ReasonCode.NO_DEVICE
    assert str(error) == "no GPU is visible"
    assert errors.EnvironmentFailure("x").code is ReasonCode.OTHER
    with pytest.raises(ValueError, match="no such code"):
        errors.EnvironmentFailure("x", code="no such code")
