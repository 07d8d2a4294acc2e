"""Telling frames from whatever else comes through the same pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Frames:
    """Takes a stream apart: ``(kind, content)`` of each frame, and ``("o", bytes)`` for what lies between them.

    A frame is ``NUL nonce < kind content > nonce NUL``; a program that does not know the nonce cannot make one.
    """

    def __init__(self, nonce: str) -> None:
        self._opening, self._closing = f"\0{nonce}<".encode(), f">{nonce}\0".encode()
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[tuple[str, bytes]]:
        """What is complete with this chunk."""
        data = self._rest + chunk
        while True:
            start = data.find(self._opening)
            if start < 0:
                # The beginning of a frame may be all that has come.
                keep = self._overlap(data)
                if len(data) > keep:
                    yield "o", data[: len(data) - keep]
                self._rest = data[len(data) - keep :]
                return
            if start:
                yield "o", data[:start]
            stop = data.find(self._closing, start)
            if stop < 0:
                self._rest = data[start:]
                return
            content = data[start + len(self._opening) : stop]
            yield content[:1].decode("ascii"), content[1:]
            data = data[stop + len(self._closing) :]

    def _overlap(self, data: bytes) -> int:
        """How many bytes at the end could be the beginning of an opening."""
        most = min(len(data), len(self._opening) - 1)
        return next((size for size in range(most, 0, -1) if self._opening.startswith(data[-size:])), 0)
