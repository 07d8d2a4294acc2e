"""The example engine's scheduler and block allocator: nothing leaks, nothing is shared, every request ends."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.tiny_engine.cache import BlockAllocator
from examples.tiny_engine.errors import RequestError
from examples.tiny_engine.scheduler import Chunk, Request, Scheduler

END = 0


class Memory:
    """A model that keeps tokens in cache slots, reads them back through block tables, and answers from them."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.slots: dict[int, int] = {}

    def step(self, chunks: list[Chunk]) -> list[int]:
        for chunk in chunks:
            for position in range(chunk.start, chunk.end):
                self.slots[self._slot(chunk, position)] = chunk.request.tokens[position]
        return [self._next(chunk) for chunk in chunks if chunk.samples]

    def _slot(self, chunk: Chunk, position: int) -> int:
        return chunk.request.blocks[position // self.block_size] * self.block_size + position % self.block_size

    def _next(self, chunk: Chunk) -> int:
        seen = tuple(self.slots[self._slot(chunk, position)] for position in range(chunk.end))
        assert seen == tuple(chunk.request.tokens), "the cache holds another request's tokens"
        return sum((place + 1) * token for place, token in enumerate(seen)) % 11


def request(number: int, prompt: list[int], max_tokens: int) -> Request:
    """A request that token 0 ends."""
    return Request(
        number=number,
        tokens=list(prompt),
        prompt_len=len(prompt),
        max_tokens=max_tokens,
        stop_tokens=frozenset([END]),
    )


def run(scheduler: Scheduler, block_size: int, *, limit: int = 10_000) -> int:
    """Run to the end; after every step each taken block has exactly one owner. Returns the number of steps."""
    memory = Memory(block_size)
    steps = 0
    while scheduler.unfinished:
        chunks = scheduler.schedule()
        assert chunks, "requests wait and nothing is computed"
        assert sum(chunk.end - chunk.start for chunk in chunks) <= scheduler.max_step_tokens
        assert len(chunks) <= scheduler.max_running
        owned = [block for running in scheduler.running for block in running.blocks]
        assert len(owned) == len(set(owned)) == scheduler.allocator.num_blocks - scheduler.allocator.num_free
        assert not any(waiting.blocks for waiting in scheduler.waiting)
        scheduler.complete(chunks, memory.step(chunks))
        steps += 1
        assert steps < limit, "no end in sight"
    return steps


prompts = st.lists(st.integers(1, 9), min_size=1, max_size=20)


@settings(deadline=None)
@given(
    st.lists(st.tuples(prompts, st.integers(1, 15)), min_size=1, max_size=8),
    st.integers(1, 5),
    st.integers(6, 40),
    st.integers(1, 24),
    st.integers(1, 6),
)
def test_every_request_ends_with_the_tokens_it_gets_alone(
    asked: list[tuple[list[int], int]], block_size: int, num_blocks: int, budget: int, max_running: int
) -> None:
    """Whatever the batch, the cache's size and the budget, a request's tokens are those of a run of its own."""

    def scheduler() -> Scheduler:
        return Scheduler(
            BlockAllocator(num_blocks, block_size),
            max_model_len=64,
            max_step_tokens=budget,
            max_running=max_running,
        )

    def served(some: list[Request]) -> list[list[int]]:
        together = scheduler()
        accepted = []
        for one in some:
            try:
                together.add(one)
            except RequestError:
                assert one.prompt_len >= together.max_len
            else:
                accepted.append(one)
        run(together, block_size)
        assert together.allocator.num_free == num_blocks
        assert all(one.finish_reason is not None for one in accepted)
        return [one.output for one in some]

    requests = [request(number, prompt, max_tokens) for number, (prompt, max_tokens) in enumerate(asked)]
    alone = [served([request(0, prompt, max_tokens)])[0] for prompt, max_tokens in asked]
    assert served(requests) == alone


def test_a_long_prompt_is_computed_in_chunks_beside_running_decodes() -> None:
    """A step's budget goes to the running request first, and what is left to a chunk of the new prompt."""
    scheduler = Scheduler(BlockAllocator(32, 4), max_model_len=100, max_step_tokens=8)
    first, second = request(1, [1, 2, 3], 50), request(2, [4] * 20, 50)
    scheduler.add(first)
    scheduler.complete(scheduler.schedule(), [5])
    scheduler.add(second)
    parts = []
    for _ in range(3):
        chunks = scheduler.schedule()
        parts.append([(chunk.request.number, chunk.start, chunk.end, chunk.samples) for chunk in chunks])
        scheduler.complete(chunks, [5] * sum(chunk.samples for chunk in chunks))
    assert parts == [
        [(1, 3, 4, True), (2, 0, 7, False)],
        [(1, 4, 5, True), (2, 7, 14, False)],
        [(1, 5, 6, True), (2, 14, 20, True)],
    ]


def test_a_full_cache_preempts_the_youngest_and_the_oldest_goes_on() -> None:
    """Where two grow into the last block, the younger gives its blocks back, waits, and is computed anew."""
    scheduler = Scheduler(BlockAllocator(4, 2), max_model_len=100, max_step_tokens=64)
    old, young = request(1, [1, 2, 3], 4), request(2, [4, 5, 6], 4)
    scheduler.add(old)
    scheduler.add(young)
    run(scheduler, 2)
    assert (old.num_preemptions, young.num_preemptions) == (0, 1)
    assert len(old.output) == len(young.output) == 4


def test_what_was_preempted_waits_before_younger_requests_and_not_in_the_same_step() -> None:
    """Who was preempted is first in the queue, and does not take back at once what the older one is about to need."""
    scheduler = Scheduler(BlockAllocator(6, 1), max_model_len=100, max_step_tokens=3, max_running=2)
    old, young, youngest = request(1, [1, 2], 4), request(2, [1, 2], 4), request(3, [1, 2], 1)
    for one in (old, young, youngest):
        scheduler.add(one)
    queues = []
    while scheduler.unfinished:
        chunks = scheduler.schedule()
        queues.append([waiting.number for waiting in scheduler.waiting])
        scheduler.complete(chunks, [5] * sum(chunk.samples for chunk in chunks))
    assert queues[:3] == [[3], [3], [2, 3]]
    assert (old.num_preemptions, young.num_preemptions, youngest.num_preemptions) == (0, 1, 0)


def test_a_sequence_ends_where_the_cache_ends() -> None:
    """A request that would outgrow the whole cache stops at its length; nothing fails."""
    scheduler = Scheduler(BlockAllocator(2, 4), max_model_len=100)
    only = request(1, [1, 2, 3], 50)
    only.stop_tokens = frozenset()
    scheduler.add(only)
    run(scheduler, 4)
    assert (len(only.tokens), only.finish_reason) == (8, "length")


def test_the_end_token_ends_a_request() -> None:
    """A stop token is the last token, with its own reason, and frees the blocks."""
    scheduler = Scheduler(BlockAllocator(2, 4), max_model_len=100)
    only = request(1, [1, 2, 3], 5)
    scheduler.add(only)
    assert scheduler.complete(scheduler.schedule(), [END]) == [(only, END)]
    assert (only.finish_reason, scheduler.unfinished, scheduler.allocator.num_free) == ("stop", 0, 2)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "num_blocks", "message"),
    [
        ([], 4, 8, "prompt 7 is empty"),
        ([1], 0, 8, "prompt 7 asks for 0 tokens"),
        ([1] * 8, 4, 2, "prompt 7 is too long: 8 tokens and one to generate, where the cache holds 8"),
        ([1] * 20, 4, 8, "prompt 7 is too long: 20 tokens and one to generate, where the longest sequence is 20"),
    ],
)
def test_a_request_that_can_never_be_served_is_refused_at_once(
    prompt: list[int], max_tokens: int, num_blocks: int, message: str
) -> None:
    """The refusal says what was asked and what there is, and nothing is queued."""
    scheduler = Scheduler(BlockAllocator(num_blocks, 4), max_model_len=20)
    with pytest.raises(RequestError, match=message):
        scheduler.add(request(7, prompt, max_tokens))
    assert not scheduler.unfinished


def test_a_scheduler_without_room_for_a_token_is_refused() -> None:
    """A budget of nothing would wait for ever."""
    with pytest.raises(RequestError, match="room for at least one token"):
        Scheduler(BlockAllocator(2, 4), max_model_len=20, max_step_tokens=0)


def test_growing_takes_all_the_blocks_or_none() -> None:
    """A request that does not get what it needs keeps what it had, and the rest stays free."""
    allocator = BlockAllocator(3, 4)
    mine: list[int] = []
    assert allocator.grow(mine, 5)
    held = list(mine)
    assert not allocator.grow(mine, 13)
    assert (mine, allocator.num_free) == (held, 1)


def test_a_block_cannot_be_released_twice() -> None:
    """A block that is free already would get two owners."""
    allocator = BlockAllocator(3, 4)
    blocks: list[int] = []
    allocator.grow(blocks, 4)
    twice = list(blocks)
    allocator.release(blocks)
    with pytest.raises(ValueError, match="was not taken"):
        allocator.release(twice)
