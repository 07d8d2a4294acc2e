"""Names of plugins: one spelling for one plugin, and the nearest name to a misspelt one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def normalise_name(name: str) -> str:
    """The registry's spelling: lower case, with ``_`` for ``-``. ``Torch-SDPA`` is ``torch_sdpa``."""
    return name.strip().lower().replace("-", "_")


def normalise_distribution(name: str) -> str:
    """A distribution's comparable name, as PEP 503 has it, with ``-``."""
    normal = name.strip().lower().replace("_", "-").replace(".", "-")
    while "--" in normal:
        normal = normal.replace("--", "-")
    return normal


def near_miss(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` most likely meant, or None.

    Of several that are close the one that begins alike: ``flash_attention`` means `flash_attn`, though `flex_attention`
    shares more letters with it.
    """
    import difflib
    from itertools import takewhile

    asked = normalise_name(name)
    close = difflib.get_close_matches(asked, list(known), n=3, cutoff=0.6)

    def likeness(item: str) -> float:
        alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(asked, item, strict=False)))
        return difflib.SequenceMatcher(None, item, asked).ratio() + alike / max(len(asked), 1) / 2

    return max(close, key=likeness, default=None)


def unknown_name_text(what: str, name: str, installed: Iterable[str], also_known: Iterable[str] = ()) -> str:
    """``unknown platform 'cdua'; did you mean 'cuda'? Installed: cpu, cuda``. The guess may be a known one."""
    names = sorted(installed)
    close = near_miss(name, sorted({*names, *also_known}))
    guess = f"; did you mean {close!r}?" if close else "."
    return f"unknown {what} {name!r}{guess} Installed: {', '.join(names) if names else 'none'}"
