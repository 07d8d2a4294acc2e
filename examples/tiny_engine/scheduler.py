"""Continuous batching: which tokens of which requests the next step computes. Numbers only, no torch."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from examples.tiny_engine.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.tiny_engine.cache import BlockAllocator


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One prompt on its way. `tokens` are prompt and output; the cache holds the first `num_computed` of them."""

    number: int
    tokens: list[int]
    prompt_len: int
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    stop_tokens: frozenset[int] = frozenset()
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    num_preemptions: int = 0
    finish_reason: str | None = None
    """``stop``: the model ended it; ``length``: `max_tokens`, or the longest sequence; None: not yet."""

    @property
    def output(self) -> list[int]:
        """The tokens generated so far."""
        return self.tokens[self.prompt_len :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A request's part of a step: compute `tokens[start:end]`. A token is sampled if that is all of them."""

    request: Request
    start: int
    end: int

    @property
    def samples(self) -> bool:
        """Whether the last of the chunk's logits give a new token."""
        return self.end == len(self.request.tokens)


class Scheduler:
    """First come, first served, within a budget of tokens per step, so that decodes and chunked prefills share a step.

    Where the cache is full, the youngest running request gives its blocks back and waits to be computed anew. The
    oldest is never preempted and always fits (`add` sees to it), so every request ends.
    """

    def __init__(
        self, allocator: BlockAllocator, *, max_model_len: int, max_step_tokens: int = 512, max_running: int = 64
    ) -> None:
        if max_step_tokens < 1 or max_running < 1:
            raise RequestError("a step needs room for at least one token of one request")
        self.allocator = allocator
        self.max_len = min(max_model_len, allocator.capacity)
        self.max_model_len = max_model_len
        self.max_step_tokens = max_step_tokens
        self.max_running = max_running
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def add(self, request: Request) -> None:
        """Queue a request. Errors: `RequestError` where it could never be served."""
        if not request.prompt_len:
            raise RequestError(f"prompt {request.number} is empty: there is nothing to continue")
        if request.max_tokens < 1:
            raise RequestError(f"prompt {request.number} asks for {request.max_tokens} tokens; at least 1 is needed")
        if request.prompt_len >= self.max_len:
            if self.allocator.capacity < self.max_model_len:
                limit, remedy = f"the cache holds {self.allocator.capacity}", "more --num-blocks"
            else:
                limit, remedy = f"the longest sequence is {self.max_model_len}", "a longer --max-model-len"
            raise RequestError(
                f"prompt {request.number} is too long: {request.prompt_len} tokens and one to generate, where {limit};"
                f" shorten it, or ask for {remedy}"
            )
        self.waiting.append(request)

    @property
    def unfinished(self) -> int:
        """Requests that are running or waiting."""
        return len(self.running) + len(self.waiting)

    def schedule(self) -> list[Chunk]:
        """Choose the next step's work and see that its blocks are there. Empty only if nothing is unfinished."""
        budget = self.max_step_tokens
        chunks: list[Chunk] = []
        preempted = False
        position = 0
        while position < len(self.running) and budget:
            request = self.running[position]
            end = min(len(request.tokens), request.num_computed + budget)
            while not self.allocator.grow(request.blocks, end):
                victim = self.running.pop()
                self._preempt(victim)
                preempted = True
                if victim is request:
                    break
            else:
                chunks.append(Chunk(request=request, start=request.num_computed, end=end))
                budget -= end - request.num_computed
                position += 1
        # What was just preempted would take back the blocks that an older request is about to need.
        while self.waiting and budget and not preempted and len(self.running) < self.max_running:
            request = self.waiting[0]
            end = min(len(request.tokens), budget)
            if not self.allocator.grow(request.blocks, end):
                break
            self.running.append(self.waiting.popleft())
            chunks.append(Chunk(request=request, start=0, end=end))
            budget -= end
        return chunks

    def complete(self, chunks: Sequence[Chunk], sampled: Sequence[int]) -> list[tuple[Request, int]]:
        """Note that a step was computed; `sampled` has one token per chunk that samples. Returns the new tokens."""
        tokens = iter(sampled)
        new = []
        for chunk in chunks:
            request = chunk.request
            request.num_computed = chunk.end
            if not chunk.samples:
                continue
            token = next(tokens)
            request.tokens.append(token)
            new.append((request, token))
            if token in request.stop_tokens:
                self._finish(request, "stop")
            elif len(request.tokens) - request.prompt_len >= request.max_tokens or len(request.tokens) >= self.max_len:
                self._finish(request, "length")
        return new

    def _preempt(self, request: Request) -> None:
        self.allocator.release(request.blocks)
        request.num_computed = 0
        request.num_preemptions += 1
        self.waiting.appendleft(request)

    def _finish(self, request: Request, reason: str) -> None:
        self.allocator.release(request.blocks)
        self.running.remove(request)
        request.finish_reason = reason
