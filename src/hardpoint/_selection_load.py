"""From a selection, which is data, to the class that it names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint._names import normalise_distribution
from hardpoint._probing import Failure
from hardpoint._process import process
from hardpoint._reasons import Phase
from hardpoint.errors import BackendUnavailableError, NotRecorded

if TYPE_CHECKING:
    from hardpoint._selection import Selection
    from hardpoint.attention import AttentionBackend


def load_selected(selection: Selection) -> type[AttentionBackend]:
    """The class that a selection names, through the plugins of this process."""
    from hardpoint.attention import AttentionBackend

    name = selection.backend
    if name is None:
        raise BackendUnavailableError(f"there is nothing to load: {selection.note}")
    if not selection.live:
        raise NotRecorded(f"{name} was selected on a machine that is not live; nothing is loaded for it")
    registry = process().registry
    wanted = normalise_distribution((selection.provenance.distribution if selection.provenance else None) or "")

    def unavailable(failure: Failure) -> BackendUnavailableError:
        return BackendUnavailableError(
            f"{selection.kind} backend {failure.as_candidate(name, selection.provenance).describe()}",
            candidates=selection.candidates,
        )

    for entry in registry.entries("backend"):
        if entry.name == name and normalise_distribution(entry.provenance.distribution or "") == wanted:
            loaded = registry.load(entry, raise_as=unavailable)
            if not isinstance(loaded, Failure):
                cls = registry.load_class(loaded, AttentionBackend, phase=Phase.IMPORT, raise_as=unavailable)
                if not isinstance(cls, Failure):
                    return cls
    raise BackendUnavailableError(
        f"{selection.kind} backend {name} ({selection.provenance}) is not known to this process any more",
        candidates=selection.candidates,
    )
