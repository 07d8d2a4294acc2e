"""How devices are connected, by the kernel's topology."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hardpoint_rocm._topology import NODES, read_properties

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hardpoint import Machine

# Of the kernel's kfd_crat.h.
_XGMI: Final = 11
_IS_ENABLED: Final = 1 << 0
_HAS_NO_PEER_ACCESS: Final = 1 << 4


class Link(NamedTuple):
    """A connection between two devices; `allows_access`: one reads and writes the other's memory over it."""

    is_xgmi: bool
    allows_access: bool


def read_links(machine: Machine, node: int) -> Mapping[int, Link] | None:
    """The links of a node, by the node at their other end; None: the kernel does not say."""
    links: dict[int, Link] = {}
    is_known = False
    # Those over PCIe stand in the second folder, which older kernels do not have.
    for kind in ("io_links", "p2p_links"):
        folder = f"{NODES}/{node}/{kind}"
        try:
            names = machine.list_directory(folder)
            found = [read_properties(machine, f"{folder}/{name}/properties") for name in names]
        except OSError:
            continue
        is_known = is_known or bool(found)
        for values in found:
            flags = values.get("flags", 0)
            if "node_to" in values and flags & _IS_ENABLED:
                link = Link(values.get("type") == _XGMI, not flags & _HAS_NO_PEER_ACCESS)
                links.setdefault(values["node_to"], link)
    return links if is_known else None
