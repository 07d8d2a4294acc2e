"""The order of candidates: the platform's table, then what plugins say of their own place, then names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hardpoint.hookspecs import Order


def arrange(table: Sequence[str], orders: Mapping[str, Order], platform: str) -> list[str]:
    """Names, best first: `table` as it stands, then every name of `orders` that it does not know, at its place.

    A wish that names nobody present, or that a circle makes impossible, is none. The result depends on nothing but the
    arguments' contents.
    """
    placed = list(dict.fromkeys(table))
    waiting = {
        name: orders[name]
        for name in sorted(orders.keys() - set(placed))
        if (orders[name].before or orders[name].after)
        and (not orders[name].platforms or platform in orders[name].platforms)
    }
    # Unplaced ones stand where they would end up anyway, so that others can refer to them.
    placed += sorted(orders.keys() - set(placed) - waiting.keys())
    while waiting:
        for name, order in waiting.items():
            position = _position(placed, order)
            if position is not None:
                placed.insert(position, name)
                del waiting[name]
                break
        else:
            placed += sorted(waiting)
            break
    return placed


def _position(placed: Sequence[str], order: Order) -> int | None:
    before = [placed.index(name) for name in order.before if name in placed]
    after = [placed.index(name) + 1 for name in order.after if name in placed]
    if before and after:
        latest, earliest = max(after), min(before)
        # Both cannot always be had; then the one that goes first is kept.
        return min(latest, earliest)
    if before:
        return min(before)
    return max(after) if after else None
