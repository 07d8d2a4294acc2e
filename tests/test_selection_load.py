"""From a selection, which is data, to its class, and what is said where there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import hardpoint
from hardpoint.errors import BackendUnavailableError, ContractError
from tests.plugins import config

if TYPE_CHECKING:
    from tests.plugins import Site


def test_a_backend_that_breaks_after_a_static_selection_says_why(site: Site) -> None:
    """The load is an explicit request: our error, from the original one, and the same again from the record."""
    site.platform("fake")
    site.backend("one", top="raise OSError('libx.so: cannot open shared object file')")
    selection = hardpoint.current_platform().select_backend(config(), depth="static")
    for _ in range(2):
        with pytest.raises(BackendUnavailableError, match=r"one: failed at import: OSError: libx\.so") as caught:
            selection.load()
        assert isinstance(caught.value.__cause__, OSError)


def test_a_target_that_is_none_is_a_contract_error(site: Site) -> None:
    """As for every explicit request."""
    site.platform("fake")
    package = site.backend("one")
    implementation = site.folder / package / "implementation.py"
    implementation.write_text(implementation.read_text().replace("class Backend(", "class Other("))
    selection = hardpoint.current_platform().select_backend(config(), depth="static")
    with pytest.raises(ContractError, match="has no attribute 'Backend'"):
        selection.load()


def test_a_selection_of_another_installation_is_not_taken_for_ours(site: Site) -> None:
    """A name alone does not do: the distribution has to be the one that was selected."""
    site.platform("fake")
    site.backend("one", distribution="one-kernels")
    selection = hardpoint.current_platform().select_backend(config())
    assert selection.provenance is not None
    foreign = replace(selection, provenance=selection.provenance._replace(distribution="other-kernels"))
    with pytest.raises(BackendUnavailableError, match="is not known to this process any more"):
        foreign.load()
    with pytest.raises(BackendUnavailableError, match="is not known to this process any more"):
        replace(selection, backend="gone").load()
    assert replace(selection, provenance=selection.provenance).load() is selection.load()


def test_where_nothing_can_be_selected_nothing_is_loaded(site: Site) -> None:
    """The error repeats the platform's own words; the explanation says them too."""
    site.platform("fake", body="attention_note = 'attention lives in the compiled graph'")
    selection = hardpoint.current_platform().select_backend(config())
    with pytest.raises(BackendUnavailableError, match="compiled graph"):
        selection.load()
    assert selection.chosen is None
    assert selection.as_dict()["provenance"] is None


def test_an_explanation_says_who_asked(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """By argument, by variable, or nobody; and whether it is a fallback."""
    site.platform("fake", priorities="BackendPriority('first', 'fast'), BackendPriority('second', 'sure')")
    site.backend("first", top="raise ImportError('liby.so: undefined symbol')")
    site.backend("second")
    site.backend("third")
    platform = hardpoint.current_platform()
    explained = platform.select_backend(config()).explain()
    assert "second, chosen automatically, as a fallback" in explained
    assert "`hardpoint select` tries every candidate" in " ".join(explained.split())
    assert "second, asked for by argument (depth" in platform.select_backend(config(), "second").explain()
    monkeypatch.setenv("HARDPOINT_ATTENTION_BACKEND", "second")
    assert "second, asked for by HARDPOINT_ATTENTION_BACKEND" in platform.select_backend(config()).explain()
    chosen = platform.select_backend(config()).chosen
    assert chosen is not None
    assert chosen.name == "second"
