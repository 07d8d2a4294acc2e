"""The engine, and everything that it asks of Hardpoint.

In order: the platform (`hardpoint.current_platform`), its kernels (`import_kernels`), per kind of layer a backend that
is ready to run (`select_backend`), from the backend the cache's shape, the layers, and a plan per step. What the device
is, no line here knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

import hardpoint
from examples.tiny_engine.cache import BlockAllocator
from examples.tiny_engine.errors import CacheExhaustedError, RequestError
from examples.tiny_engine.interface import Description, Event
from examples.tiny_engine.model import LlamaModel
from examples.tiny_engine.runner import LayerGroup, ModelRunner
from examples.tiny_engine.sampling import sample
from examples.tiny_engine.scheduler import Request, Scheduler
from examples.tiny_engine.tokenizer import TextStream, Tokenizer
from examples.tiny_engine.weights import Checkpoint, default_path
from hardpoint import Outcome
from hardpoint.attention import AttentionConfig, normalise_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from examples.tiny_engine.interface import EngineSettings, Prompt
    from examples.tiny_engine.weights import ModelConfig
    from hardpoint import Selection

_DEFAULT_CACHE_TOKENS = 4096


def layer_configs(model: ModelConfig, *, dtype: str, block_size: int, max_model_len: int) -> list[AttentionConfig]:
    """What each layer of the model asks of attention. Here all ask the same, so they form one group."""
    config = AttentionConfig(
        head_size=model.head_size,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        dtype=dtype,
        block_size=block_size,
        max_model_len=max_model_len,
    )
    return [config] * model.num_layers


def _why(selection: Selection) -> str:
    """One line: who chose the backend, what speaks for it, and what was lost on the way."""
    asked = "chosen automatically" if selection.source == "automatic" else f"asked for by {selection.source}"
    parts = [asked]
    if selection.chosen is not None and selection.chosen.rank_reason:
        parts.append(selection.chosen.rank_reason)
    if selection.is_fallback:
        lost = (Outcome.FAILED, Outcome.CONTRACT)
        parts += [candidate.describe() for candidate in selection.candidates if candidate.outcome in lost]
    return " ".join(", ".join(parts).split())


class Engine:
    """Loads a model for the platform of this process and serves prompts, many at a time.

    `progress` hears what is being done and how much of it is done, 0 to 1. Errors: `HardpointError`, `EngineError`.
    """

    def __init__(
        self,
        settings: EngineSettings,
        *,
        progress: Callable[[str, float], None] = lambda _what, _done: None,
        sampler: Callable[[torch.Tensor, Sequence[Request]], list[int]] = sample,
    ) -> None:
        named = settings.platform
        self.platform = hardpoint.current_platform() if named is None else hardpoint.platform(named)
        self.kernels = self.platform.import_kernels()
        self.device = self.platform.torch_device()
        progress("reading the vocabulary", 0.0)
        checkpoint = Checkpoint(settings.model or default_path())
        self.tokenizer = Tokenizer(checkpoint)
        longest = checkpoint.config.max_model_len
        max_model_len = longest if settings.max_model_len is None else min(longest, settings.max_model_len)
        self.dtype = normalise_dtype(settings.dtype or self.platform.supported_dtypes[0])
        self.platform.check_if_supports_dtype(self.dtype)
        configs = layer_configs(
            checkpoint.config, dtype=self.dtype, block_size=settings.block_size, max_model_len=max_model_len
        )
        # Before the weights: of a backend that cannot start one hears at once.
        progress("selecting a backend", 0.0)
        self.selections: dict[AttentionConfig, Selection] = {
            config: self.platform.select_backend(config, requested=settings.backend, depth="ready")
            for config in dict.fromkeys(configs)
        }
        num_blocks = settings.num_blocks
        if num_blocks is None:
            num_blocks = -(-_DEFAULT_CACHE_TOKENS // settings.block_size)
        try:
            with self.platform.inference_mode():
                groups = self._layer_groups(configs, num_blocks)
                model = LlamaModel.load(
                    checkpoint,
                    dtype=getattr(torch, self.dtype),
                    device=self.device,
                    max_model_len=max_model_len,
                    progress=lambda done: progress("loading the weights", done),
                )
        except torch.OutOfMemoryError as error:
            raise CacheExhaustedError(
                f"the device does not hold the weights and a cache of {num_blocks} blocks: {error};"
                " choose fewer --num-blocks"
            ) from error
        self.scheduler = Scheduler(
            BlockAllocator(num_blocks, settings.block_size),
            max_model_len=max_model_len,
            max_step_tokens=settings.max_step_tokens,
            max_running=settings.max_running,
        )
        self._runner = ModelRunner(model, groups, block_size=settings.block_size, device=self.device)
        self._sampler = sampler
        self._num_requests = 0

    def _layer_groups(self, configs: Sequence[AttentionConfig], num_blocks: int) -> list[LayerGroup]:
        backends = {config: selection.load() for config, selection in self.selections.items()}
        per_block = sum(backends[config].kv_cache_spec(config).bytes_per_block for config in configs)
        wanted, total = num_blocks * per_block, self.platform.get_device_total_memory()
        if num_blocks < 1:
            raise CacheExhaustedError(f"a cache of {num_blocks} blocks holds nothing; --num-blocks is at least 1")
        if total is not None and wanted > total:
            raise CacheExhaustedError(
                f"a cache of {num_blocks} blocks takes {wanted / 2**30:.1f} GiB and the device has {total / 2**30:.1f};"
                " choose fewer --num-blocks"
            )
        groups = []
        for config, backend in backends.items():
            numbers = [number for number, its_config in enumerate(configs) if its_config == config]
            groups.append(LayerGroup.build(config, backend, numbers, num_blocks=num_blocks, device=self.device))
        return groups

    def describe(self) -> Description:
        """What was decided, for people."""
        selections = self.selections.values()
        return Description(
            platform=self.platform.name,
            device=self.platform.get_device_name(),
            backend=", ".join(dict.fromkeys(selection.backend or "none" for selection in selections)),
            why="; ".join(dict.fromkeys(_why(selection) for selection in selections)),
            dtype=self.dtype,
        )

    def add(
        self,
        tokens: Sequence[int],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
        stop_tokens: Sequence[int] | None = None,
    ) -> Request:
        """Queue a prompt; by default the model's own end stops it. Errors: `RequestError` if it can never be served."""
        self._num_requests += 1
        request = Request(
            number=self._num_requests,
            tokens=list(tokens),
            prompt_len=len(tokens),
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            stop_tokens=frozenset([self.tokenizer.stop_token] if stop_tokens is None else stop_tokens),
        )
        self.scheduler.add(request)
        return request

    def step(self) -> list[tuple[Request, int]]:
        """Compute one step; the requests that got a token, and which."""
        chunks = self.scheduler.schedule()
        with self.platform.inference_mode():
            logits = self._runner.logits(chunks)
            sampled = self._sampler(logits, [chunk.request for chunk in chunks if chunk.samples])
        return self.scheduler.complete(chunks, sampled)

    def stream(self, prompts: Sequence[Prompt]) -> Iterator[Event]:
        """Serve the prompts together; events come as they happen. A refused prompt says so, the others are served."""
        numbers: dict[Request, int] = {}
        for number, prompt in enumerate(prompts):
            encode = self.tokenizer.encode_chat if prompt.chat else self.tokenizer.encode
            try:
                request = self.add(
                    encode(prompt.text), max_tokens=prompt.max_tokens, temperature=prompt.temperature, seed=prompt.seed
                )
            except RequestError as error:
                yield Event(prompt=number, finish_reason="refused", error=str(error))
            else:
                numbers[request] = number
        streams = {request: TextStream(self.tokenizer) for request in numbers}
        while self.scheduler.unfinished:
            for request, token in self.step():
                # The token that ends an answer is no part of its text.
                text = "" if token in request.stop_tokens else streams[request].push(token)
                if request.finish_reason is not None:
                    text += streams[request].finish()
                yield Event(prompt=numbers[request], text=text, finish_reason=request.finish_reason, num_tokens=1)
