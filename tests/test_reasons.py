"""Reasons hold text and numbers only, whatever a plugin puts into them."""

from __future__ import annotations

import gc
import json
import pickle
import weakref
from typing import Any

import pytest

from hardpoint import EnvironmentFailure, Reason, ReasonCode
from hardpoint._probing import Failure, attempt
from hardpoint._reasons import Phase, Provenance
from hardpoint.errors import ContractError

pytestmark = pytest.mark.usefixtures("young_objects")


class Alive:
    """Something that a record may not keep."""

    def __str__(self) -> str:
        return "alive"


class Mute:
    def __str__(self) -> str:
        raise ValueError("not printable")


class Text(str):
    """A text with a life of its own."""

    __slots__ = ("__weakref__", "owner")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (None, None),
        (True, True),
        (64, 64),
        (0.5, 0.5),
        (float("inf"), "inf"),
        ("fp8", "fp8"),
        (Text("fp8"), "fp8"),
        (ReasonCode.DTYPE, "dtype"),
        ([64, Alive()], (64, "alive")),
        (Alive(), "alive"),
        (Mute(), "<Mute that raises ValueError when printed>"),
    ],
)
def test_the_value_asked_for_is_kept_as_a_scalar(given: Any, kept: object) -> None:
    """So that a reason compares, pickles, and is JSON."""
    reason = Reason(code=ReasonCode.DTYPE, message="no", requested=given)
    assert reason.requested == kept
    assert type(reason.requested) is type(kept)
    assert pickle.loads(pickle.dumps(reason)) == reason
    assert hash(reason) == hash(pickle.loads(pickle.dumps(reason)))
    json.dumps(reason.as_dict(), allow_nan=False)


def test_texts_are_kept_without_their_owners() -> None:
    """A subclass of `str` may hold an engine."""
    texts: dict[str, Any] = {name: Text(name) for name in ("message", "accepted", "remedy", "detail")}
    marks = [weakref.ref(text) for text in texts.values()]
    reason = Reason(code=ReasonCode.OTHER, **texts)
    texts.clear()
    gc.collect()
    assert [mark() for mark in marks] == [None] * 4
    assert (str(reason), reason.accepted, reason.remedy, reason.detail) == ("message", "accepted", "remedy", "detail")


@pytest.mark.parametrize("kind", [ContractError, EnvironmentFailure])
def test_a_failure_keeps_nothing_of_the_error_that_it_records(kind: Any) -> None:
    """Neither the text object that the error was made with, nor its remedy."""
    marks: list[weakref.ref[Text]] = []

    def fail() -> None:
        message, remedy = Text("it broke"), Text("mend it")
        marks.extend((weakref.ref(message), weakref.ref(remedy)))
        raise kind(message, remedy=remedy)

    failure = attempt(fail, phase=Phase.DETECT, provenance=Provenance(plugin="platform/odd"))
    gc.collect()
    assert isinstance(failure, Failure)
    assert failure.reason.remedy == "mend it"
    assert [mark() for mark in marks] == [None, None]
