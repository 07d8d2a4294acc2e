"""Agreement of ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import hardpoint
from hardpoint import Fingerprint
from hardpoint._fingerprint import Decision
from hardpoint.agreement import check_agreement, common_choice
from hardpoint.errors import DisagreementError
from tests.plugins import config

if TYPE_CHECKING:
    from tests.plugins import Site

FULL = Decision(kind="attention", config="head_size=64", backend="a", version="1.0", layout="key:block")
LINEAR = Decision(kind="linear", config="head_size=64", backend="c", version="1.0", layout=None)


def fingerprint(*decisions: Decision, platform: str = "cuda") -> Fingerprint:
    """A rank's fingerprint."""
    return Fingerprint(hardpoint_version="0.1.0", platform=platform, platform_version="1.0", decisions=decisions)


def test_equal_decisions_agree() -> None:
    """Reasons do not count."""
    check_agreement([fingerprint(FULL), fingerprint(replace(FULL, reasons=("b: rejected",)))])
    check_agreement([])


def test_a_different_backend_lists_ranks_backends_and_reasons() -> None:
    """B39: what happened on rank 1 is visible."""
    other = replace(FULL, backend="b", reasons=("a: failed at import: OSError: libx.so",))
    with pytest.raises(DisagreementError) as caught:
        check_agreement({0: fingerprint(FULL), 1: fingerprint(other)})
    text = str(caught.value)
    for part in ("rank 0: a", "rank 1: b", "rank 1: a: failed at import: OSError: libx.so"):
        assert part in text


def test_a_different_layout_or_platform_is_a_disagreement() -> None:
    """One cache read in two ways is silent corruption; CPU among CUDA ranks is a lost device."""
    with pytest.raises(DisagreementError, match="layout value:block"):
        check_agreement([fingerprint(FULL), fingerprint(replace(FULL, layout="value:block"))])
    with pytest.raises(DisagreementError, match="rank 1: cpu"):
        check_agreement([fingerprint(FULL), fingerprint(FULL, platform="cpu")])


def test_ranks_may_hold_different_layer_kinds() -> None:
    """Only what is shared is compared: a pipeline is no disagreement."""
    check_agreement([fingerprint(LINEAR), fingerprint(LINEAR, FULL)])


def test_the_common_choice() -> None:
    """The best that is valid everywhere, whatever the order of ranks."""
    assert common_choice([["a", "b"], ["b"]]) == "b"
    assert common_choice([["b"], ["a", "b"]]) == "b"
    assert common_choice([["a", "b", "c"], ["b", "a", "c"]]) == "a"
    assert common_choice({3: ["b", "a", "c"], 1: ["a", "b", "c"]}) == "a"
    with pytest.raises(DisagreementError, match="rank 0: a; rank 1: b"):
        common_choice([["a"], ["b"]])
    with pytest.raises(DisagreementError, match="rank 1: none"):
        common_choice([["a"], []])
    with pytest.raises(DisagreementError):
        common_choice([])


def test_no_common_choice_tells_each_rank_s_reasons(site: Site) -> None:
    """What `get_valid_backends` gave on each rank is enough: every refusal of what another rank could take is told."""
    site.platform("chip")
    site.backend("first", validate="return ['no float32'] if config.dtype == 'float32' else []")
    site.backend("second", validate="return [] if config.dtype == 'float32' else ['float32 only']")
    platform = hardpoint.current_platform()
    judged = [platform.get_valid_backends(None, config(dtype=dtype)) for dtype in ("float32", "float16")]
    with pytest.raises(DisagreementError) as caught:
        common_choice(judged)
    assert str(caught.value).splitlines() == [
        "no backend is valid on every rank: rank 0: second; rank 1: first",
        "  rank 1: second: rejected: float32 only",
        "  rank 0: first: rejected: no float32",
    ]
    assert common_choice([judged[0], judged[0]]) == common_choice([judged[0], ["second"]]) == "second"
