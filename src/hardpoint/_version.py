"""Hardpoint's own version, from its metadata; ``unknown`` in a source tree or frozen program without them."""

from __future__ import annotations


def own_version() -> str:
    """The installed distribution's version, or ``unknown``."""
    from hardpoint._discovery import installed_version

    return installed_version("hardpoint") or "unknown"
