"""The two file formats of installed metadata, read the way `importlib_metadata` reads them, without importing it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def normalise(name: str) -> str:
    """The form in which two spellings of a distribution's name are equal."""
    name = name.lower().replace("-", "_").replace(".", "_")
    while "__" in name:
        name = name.replace("__", "_")
    return name


def looks_odd(data: bytes) -> bool:
    """Whether an ``entry_points.txt`` may be malformed; a fifth of the price of parsing it.

    Never False for one that `parse_entry_points` refuses. True for some that it takes, such as one with comments.
    """
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        return True
    for line in lines:  # noqa: SIM110  # any() costs twice as much on lines as few as these
        if "=" not in line and line and (line[0] != "[" or line[-1] != "]"):
            return True
    return False


def parse_entry_points(data: bytes) -> list[tuple[str, str, str]]:
    """All (group, name, value) of an ``entry_points.txt``, in order. A malformed file raises `ValueError`.

    Lenient and strict where the authority is: repeated sections and names are kept, what stands before the first
    section is ignored, and one line without an equals sign spoils the file.
    """
    group = None
    found = []
    for number, line in enumerate(map(str.strip, data.decode("utf-8").splitlines()), 1):
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            group = line.strip("[]")
        elif group is not None:
            name, equals, value = line.partition("=")
            if not equals:
                raise ValueError(f"line {number} is neither a [section] nor 'name = value': {line[:80]!r}")
            found.append((group, name.strip(), value.strip()))
    return found


def parse_headers(text: str) -> Iterator[tuple[str, str]]:
    """The header lines of a ``METADATA`` or ``PKG-INFO``, names in lower case, up to the description."""
    name, lines = "", [""]
    head = text.replace("\r\n", "\n").replace("\r", "\n").partition("\n\n")[0]
    for line in head.split("\n"):
        if line.startswith((" ", "\t")):
            lines.append(line)
            continue
        if name:
            yield name, "\n".join(lines).lstrip(" \t")
            name = ""
        # The e-mail format, which metadata once was, skips these two instead of ending at them.
        if line.startswith((":", "From ")):
            continue
        title, colon, value = line.partition(":")
        if not (colon and title.isascii() and title.isprintable() and " " not in title):
            return
        name, lines = title.lower(), [value]
    if name:
        yield name, "\n".join(lines).lstrip(" \t")
