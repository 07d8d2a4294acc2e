"""Text to tokens and back, from the vocabulary and merges that a GGUF file carries."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

import jinja2.sandbox
import tokenizers

from examples.tiny_engine.errors import WeightsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.tiny_engine.weights import Checkpoint

_CONTROL, _USER_DEFINED = 3, 4
"""Token types of the GGUF format that are matched whole in a text."""
_SPLITS = ("smollm", "gpt-2", "default")
"""Ways of cutting a text before merging that the byte-level pre-tokenizer's own pattern serves."""


def _byte_alphabet() -> dict[str, int]:
    """Which byte each character of a byte-level vocabulary stands for: itself if printable, the others from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + number): byte for number, byte in enumerate(others)}


class Tokenizer:
    """Byte-level BPE. Errors: `WeightsError` for a file whose vocabulary is of another kind."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        model, split = checkpoint.value("tokenizer.ggml.model"), checkpoint.value("tokenizer.ggml.pre", "default")
        if model != "gpt2" or split not in _SPLITS:
            raise WeightsError(
                f"the weights {checkpoint.path} have a tokenizer of kind {model!r}, cut {split!r}; this engine has"
                f" 'gpt2', cut {' or '.join(map(repr, _SPLITS))}"
            )
        tokens: list[str] = checkpoint.value("tokenizer.ggml.tokens")
        merges = [tuple(merge.split(" ")) for merge in checkpoint.value("tokenizer.ggml.merges")]
        self._tokenizer = tokenizers.Tokenizer(
            tokenizers.models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges)
        )
        self._tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._tokens = tokens
        self._byte_of = _byte_alphabet()
        kinds: list[int] = checkpoint.value("tokenizer.ggml.token_type", [])
        for kind, add in ((_CONTROL, self._tokenizer.add_special_tokens), (_USER_DEFINED, self._tokenizer.add_tokens)):
            whole = [token for token, its_kind in zip(tokens, kinds, strict=False) if its_kind == kind]
            add([tokenizers.AddedToken(token, normalized=False, special=kind == _CONTROL) for token in whole])
        self._begin = tokens[checkpoint.value("tokenizer.ggml.bos_token_id", 0)]
        self.stop_token: int = checkpoint.value("tokenizer.ggml.eos_token_id")
        self._end = tokens[self.stop_token]
        self._template: str = checkpoint.value("tokenizer.chat_template", "")

    def encode(self, text: str) -> list[int]:
        """The text's tokens; nothing is added."""
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return tokens

    def encode_chat(self, prompt: str) -> list[int]:
        """The tokens of a conversation that `prompt` opens; the bare prompt if the file has no template."""
        if not self._template:
            return self.encode(prompt)
        # The template is code that came with the weights.
        sandbox = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        text = sandbox.from_string(self._template).render(
            messages=[{"role": "user", "content": prompt}],
            add_generation_prompt=True,
            bos_token=self._begin,
            eos_token=self._end,
        )
        return self.encode(text)

    def bytes_of(self, token: int) -> bytes:
        """The UTF-8 that a token stands for, which may begin or end inside a character."""
        text = self._tokens[token]
        try:
            return bytes(self._byte_of[character] for character in text)
        except KeyError:
            return text.encode()

    def decode(self, tokens: Sequence[int]) -> str:
        """The tokens' text; bytes that are no character become a replacement character."""
        return b"".join(map(self.bytes_of, tokens)).decode(errors="replace")


class TextStream:
    """Text of tokens as they come: a character that takes several tokens is held back until it is whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._bytes_of = tokenizer.bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that this token completes, maybe none."""
        return self._decoder.decode(self._bytes_of(token))

    def finish(self) -> str:
        """What was still held back."""
        return self._decoder.decode(b"", final=True)
