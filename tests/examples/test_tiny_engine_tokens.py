"""The example engine against `transformers` on the same weights: the same tokens, near logits, the same tokenizer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from examples.tiny_engine.engine import Engine
    from examples.tiny_engine.scheduler import Request

pytestmark = [pytest.mark.long, pytest.mark.torch, pytest.mark.model, pytest.mark.plugins]

LENGTHS = (5, 9, 16, 17, 40, 75, 130, 200, 300, 400)
NUM_TOKENS = 64
TIE = 1e-4
"""Two logits this near may change places: float32 sums in another order."""
BFLOAT16_TOLERANCE = 1.5
BFLOAT16_MEAN_TOLERANCE = 0.15
"""Measured: 0.79 at most, 0.09 in the mean, where the best logit is about 20."""

STORY = """\
The ferry to the island leaves twice a day, once before the fishermen come home and once after they have slept.
Marta had missed the first one by the length of a red light, so she sat down on the harbour wall, put her bag
between her feet, and began to read the manual of the machine that she had been sent to repair. It was an old
weather station. It measured the wind, the rain, the temperature of the water and, on good days, the height of the
waves. Since March it had sent nothing but zeros. The office on the mainland had tried three things: they had turned
it off and on again, they had asked the lighthouse keeper to look at the cable, and they had written a letter to the
company that had built it, which no longer existed. Now they had sent Marta, who had a soldering iron, a box of
fuses and eleven years of experience with machines that nobody wanted to talk about. "Does it rain a lot over
there?" she asked the man who sold the tickets. He thought about it for a while. "Yesterday it did not," he said.
"The day before, I was not looking." At ten past four the second ferry came in, and with it forty sheep, two
priests, and a boy who carried a broken radio under his arm as if it were a sleeping cat. Marta looked at the radio,
the boy looked at her box of fuses, and neither of them said a word until the harbour had become a thin grey line.
Then she opened the box. The list of what she found inside the radio was short: 1 dead battery, 2 loose screws, 3
dead ants, and a folded note on which somebody had written a frequency, 98.6, and the words: listen after midnight.
def frequency(note): return float(note.split(",")[0]) was the first thing that came to her mind, because she had
been a programmer before she became a person who repairs things, and she still thought in short functions when she
was tired. The boy said that the note was not his. The sheep said nothing."""


class Reference(NamedTuple):
    """The model and the tokenizer as `transformers` loads them from the same file."""

    model: Any
    tokenizer: Any

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """The logits at every position, ``(len(tokens), vocabulary)``."""
        import torch

        with torch.inference_mode():
            result: torch.Tensor = self.model(torch.tensor([tokens])).logits[0]
        return result


@pytest.fixture(scope="module")
def reference() -> Reference:
    """The reference, in float32."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate", reason="transformers reads a GGUF file only where accelerate is installed")
    import torch

    from examples.tiny_engine.weights import default_path

    folder, name = os.path.split(default_path())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    return Reference(model.eval(), tokenizer)


@pytest.fixture(scope="module")
def engine() -> Engine:
    """The engine on the platform and backend that Hardpoint picks here."""
    from examples.tiny_engine.engine import Engine
    from examples.tiny_engine.interface import EngineSettings

    # A step's budget below the longest prompts, so that they are computed in chunks, beside the others' decodes.
    return Engine(EngineSettings(dtype="float32", max_step_tokens=160))


@pytest.fixture(scope="module")
def prompts(engine: Engine) -> list[list[int]]:
    """Ten prompts of 5 to 400 tokens, each from another place of the story."""
    story = engine.tokenizer.encode(" ".join(STORY.split()))
    assert len(story) >= max(LENGTHS)
    spare = [len(story) - length for length in LENGTHS]
    return [story[(37 * n) % (spare[n] + 1) :][:length] for n, length in enumerate(LENGTHS)]


def generate(engine: Engine, prompts: Sequence[Sequence[int]], num_tokens: int = NUM_TOKENS) -> list[list[int]]:
    """Greedy tokens of prompts that run together."""
    requests = [engine.add(prompt, max_tokens=num_tokens, stop_tokens=()) for prompt in prompts]
    while engine.scheduler.unfinished:
        engine.step()
    return [request.output for request in requests]


@pytest.fixture(scope="module")
def batched(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    """The tokens of the prompts, run together."""
    return generate(engine, prompts)


def assert_greedy(reference: Reference, prompt: list[int], output: list[int]) -> None:
    """Each token is the reference's best after the tokens before it, or ties with it: so all are its greedy tokens."""
    assert len(output) == NUM_TOKENS
    logits = reference.logits(prompt + output[:-1])[len(prompt) - 1 :]
    best, runner_up = logits.topk(2).values.unbind(-1)
    for place, token in enumerate(output):
        if int(logits[place].argmax()) != token:
            assert float(best[place] - runner_up[place]) <= TIE, f"token {place}"
            assert float(best[place] - logits[place, token]) <= TIE, f"token {place}"


@pytest.mark.parametrize("number", range(len(LENGTHS)), ids=[f"{length} tokens" for length in LENGTHS])
def test_tokens_of_a_batch_are_the_references(
    number: int, reference: Reference, prompts: list[list[int]], batched: list[list[int]]
) -> None:
    """In float32, ten prompts that run together, prefills in chunks, get the greedy tokens of `transformers`."""
    assert_greedy(reference, prompts[number], batched[number])


@pytest.mark.parametrize("number", range(len(LENGTHS)), ids=[f"{length} tokens" for length in LENGTHS])
def test_tokens_of_a_prompt_alone_are_the_references(
    number: int, engine: Engine, reference: Reference, prompts: list[list[int]], batched: list[list[int]]
) -> None:
    """In float32, a prompt that runs alone gets the greedy tokens of `transformers`."""
    (output,) = generate(engine, [prompts[number]])
    # The same tokens as in the batch have been compared already.
    if output != batched[number]:
        assert_greedy(reference, prompts[number], output)


def test_tokens_are_those_of_the_references_own_generation(
    reference: Reference, prompts: list[list[int]], batched: list[list[int]]
) -> None:
    """The shortest prompt's tokens are also those of `transformers`' own greedy loop with its own cache."""
    import torch

    made = reference.model.generate(
        torch.tensor([prompts[0]]), max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS, do_sample=False
    )
    assert made[0, len(prompts[0]) :].tolist() == batched[0]


def test_bfloat16_logits_stay_near_the_references(
    reference: Reference, prompts: list[list[int]], batched: list[list[int]]
) -> None:
    """After the same tokens, bfloat16 logits differ from float32 ones by at most the stated tolerances."""
    import torch

    from examples.tiny_engine.engine import Engine
    from examples.tiny_engine.interface import EngineSettings

    rows: dict[int, list[torch.Tensor]] = {}

    def follow(logits: torch.Tensor, requests: Sequence[Request]) -> list[int]:
        """Keep the logits, and go on with the float32 engine's token whatever they say."""
        tokens = []
        for row, request in zip(logits, requests, strict=True):
            kept = rows.setdefault(request.number - 1, [])
            tokens.append(batched[request.number - 1][len(kept)])
            kept.append(row.clone())
        return tokens

    engine = Engine(EngineSettings(dtype="bfloat16", max_step_tokens=160), sampler=follow)
    assert generate(engine, prompts, 16) == [output[:16] for output in batched]
    differences = torch.cat(
        [
            torch.stack(rows[number]) - reference.logits(prompt + batched[number][:15])[len(prompt) - 1 :]
            for number, prompt in enumerate(prompts)
        ]
    ).abs()
    assert float(differences.max()) <= BFLOAT16_TOLERANCE
    assert float(differences.mean()) <= BFLOAT16_MEAN_TOLERANCE


TEXTS = [
    "",
    "Hello, world!",
    "  two spaces  7\n\n\n8 tabs\t\tand   12345",
    "it's we're I'LL don't",
    "naïve café, Ελληνικά, 世界, 🙂👩‍👩‍👧, \u200bzero\ufffd",
    "<|im_start|>user\nno<|im_end|> <|endoftext|><repo_name>x",
    STORY,
]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_texts_are_cut_as_the_reference_cuts_them(text: str, engine: Engine, reference: Reference) -> None:
    """Tokens of a text, and of a conversation that it opens, are those of `transformers`; they give the text back."""
    tokens = engine.tokenizer.encode(text)
    assert tokens == reference.tokenizer.encode(text)
    assert engine.tokenizer.decode(tokens) == text
    chat = reference.tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)
    assert engine.tokenizer.encode_chat(text) == chat["input_ids"]


def test_a_stream_holds_a_character_back_until_it_is_whole(engine: Engine) -> None:
    """The pieces of a stream are valid text, and together they are the text."""
    from examples.tiny_engine.tokenizer import TextStream

    text = "a 🙂👩‍👩‍👧 世"
    tokens = engine.tokenizer.encode(text)
    stream = TextStream(engine.tokenizer)
    pieces = [*map(stream.push, tokens), stream.finish()]
    assert "".join(pieces) == text
    assert "" in pieces[:-1]


def test_what_is_no_character_is_replaced_at_the_end(engine: Engine) -> None:
    """A stream that ends inside a character says so."""
    from examples.tiny_engine.tokenizer import TextStream

    stream = TextStream(engine.tokenizer)
    assert stream.push(engine.tokenizer.encode("🙂")[0]) == ""
    assert stream.finish() == "\ufffd"
