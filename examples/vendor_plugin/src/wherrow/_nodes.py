"""Where the driver is, which devices it has a node for, and which of them this process sees. Asks the machine only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hardpoint import EnvironmentFailure

if TYPE_CHECKING:
    from hardpoint import Machine

ROOT: Final = "WHERROW_ROOT"
VISIBLE: Final = "WHERROW_VISIBLE_DEVICES"
_MAX_DEVICES: Final = 16


def root(machine: Machine) -> str:
    """The folder in which the driver is installed; empty: the system's own."""
    return (machine.variable(ROOT) or "").strip().rstrip("/")


def node(machine: Machine, number: int) -> str:
    """The path of a device's node."""
    return f"{root(machine)}/dev/wherrow{number}"


def numbers(machine: Machine) -> tuple[int, ...]:
    """The devices that have a node, by the driver's own numbers."""
    found = 0
    while found < _MAX_DEVICES and machine.exists(node(machine, found)):
        found += 1
    return tuple(range(found))


def visible(machine: Machine) -> tuple[int, ...]:
    """The numbers of the devices that this process sees, in logical order.

    Errors: `EnvironmentFailure` with code ``masked``: with a remedy where the mask is a mistake, without one where it
    says that every device is to be hidden.
    """
    known, text = numbers(machine), machine.variable(VISIBLE)
    if text is None:
        return known
    chosen = [item.strip() for item in text.split(",") if item.strip()]
    if not chosen:
        raise EnvironmentFailure(f"{VISIBLE} is empty: it hides every device", code="masked")
    # Python refuses to read a number of thousands of digits.
    shown = [int(item) for item in chosen if item.isascii() and item.isdigit() and len(item) < 10]
    if len(shown) != len(chosen) or len(set(shown)) != len(shown) or not set(shown) <= set(known):
        raise EnvironmentFailure(
            f"{VISIBLE}={text!r:.200}: expected different ones of {', '.join(map(str, known))}",
            code="masked",
            remedy=f"correct {VISIBLE}, or unset it",
        )
    return tuple(shown)
