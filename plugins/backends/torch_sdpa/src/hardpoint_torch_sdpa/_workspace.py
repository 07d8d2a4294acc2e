"""Scratch memory for gathered keys and values, kept between steps.

Fresh memory of this size is mapped page by page at first touch, which costs as much as the gathering itself.
"""

from __future__ import annotations

import threading
import weakref
from math import prod

import torch  # noqa: TID253  # imported only with a chosen backend

# The layers of a step ask for the same shapes; the next step asks for others.
_MAX_VIEWS = 64


class Scratch:
    """Named buffers for one forward call at a time. They grow and never shrink."""

    __slots__ = ("_buffers", "_views")

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}
        self._views: dict[tuple[str, tuple[int, ...], torch.dtype], torch.Tensor] = {}

    def get(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """An uninitialised contiguous tensor, valid until the same name is asked for again."""
        if device.type != "cpu":
            # The device's caching allocator reuses memory, and knows about streams.
            return torch.empty(shape, dtype=dtype, device=device)
        view = self._views.get((name, shape, dtype))
        if view is None:
            view = self._views[name, shape, dtype] = self._new_view(name, shape, dtype)
        return view

    # What is made in inference mode could not be written outside it.
    @torch.inference_mode(mode=False)
    def _new_view(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        size = prod(shape) * dtype.itemsize
        buffer = self._buffers.get(name)
        if len(self._views) >= _MAX_VIEWS:
            self._views.clear()
        if buffer is None or buffer.numel() < size:
            # Old views would keep the old buffer.
            self._views.clear()
            self._buffers.pop(name, None)
            del buffer
            # Contexts grow by a token a step: room for some, so that not every step allocates.
            buffer = self._buffers[name] = torch.empty(size + size // 4, dtype=torch.uint8)
        return buffer[:size].view(dtype).view(shape)

    @property
    def total_bytes(self) -> int:
        """What the buffers take."""
        return sum(buffer.numel() for buffer in self._buffers.values())


class Workspace:
    """The scratch memory of a process's layers: as many `Scratch` as forward calls ran at once."""

    def __init__(self) -> None:
        self._idle: list[Scratch] = []

    def take(self) -> Scratch:
        """A scratch that nobody else uses. Hand it back with `give`."""
        try:
            return self._idle.pop()
        except IndexError:
            return Scratch()

    def give(self, scratch: Scratch) -> None:
        """Hand back what `take` gave."""
        self._idle.append(scratch)


_lock = threading.Lock()
_shared: weakref.ref[Workspace] | None = None


def shared_workspace() -> Workspace:
    """The process's workspace. Only layers hold it, so that it goes with the last of them."""
    global _shared  # noqa: PLW0603  # a weak reference: nothing is kept
    with _lock:
        workspace = None if _shared is None else _shared()
        if workspace is None:
            workspace = Workspace()
            _shared = weakref.ref(workspace)
        return workspace
