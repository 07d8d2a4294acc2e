"""What can go wrong that is neither Hardpoint's nor Python's to say. Each ends in one message on the command line."""

from __future__ import annotations


class EngineError(Exception):
    """The root. `str(error)` is the whole message."""


class WeightsError(EngineError, OSError):
    """The weights are missing, cut short, or of a kind that this engine does not run."""

    def __str__(self) -> str:
        return str(self.args[0])


class RequestError(EngineError, ValueError):
    """A request that can never be served, such as a prompt longer than the cache."""


class CacheExhaustedError(EngineError, MemoryError):
    """The cache cannot hold even one block, or there is no memory to allocate it."""


class WorkerError(EngineError, RuntimeError):
    """The worker process ended without an answer."""
