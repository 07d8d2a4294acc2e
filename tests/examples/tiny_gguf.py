"""A very small Llama-type GGUF file with random weights: it says nothing sensible, and loads at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NUM_LAYERS, HIDDEN, MLP, HEADS, KV_HEADS, HEAD_SIZE, MAX_LEN = 2, 32, 48, 4, 2, 8, 256
MERGES = ["t h", "th e"]


def write(path: Path) -> Path:
    """Write the file; its tokens are the 256 bytes, two special ones, a tool's, and what two merges make."""
    import gguf
    import numpy as np

    random = np.random.default_rng(0)
    tokens = [*_alphabet(), "<start>", "<end>", "<tool>", *(merge.replace(" ", "") for merge in MERGES)]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(MAX_LEN)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(NUM_LAYERS)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 256 + [3, 3, 4, 1, 1])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)

    def matrix(name: str, rows: int, columns: int) -> None:
        values = random.standard_normal((rows, columns)) / columns**0.5
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    def ones(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, dtype=np.float32))

    matrix("token_embd", len(tokens), HIDDEN)
    for number in range(NUM_LAYERS):
        layer = f"blk.{number}"
        ones(f"{layer}.attn_norm")
        matrix(f"{layer}.attn_q", HEADS * HEAD_SIZE, HIDDEN)
        matrix(f"{layer}.attn_k", KV_HEADS * HEAD_SIZE, HIDDEN)
        matrix(f"{layer}.attn_v", KV_HEADS * HEAD_SIZE, HIDDEN)
        matrix(f"{layer}.attn_output", HIDDEN, HEADS * HEAD_SIZE)
        ones(f"{layer}.ffn_norm")
        matrix(f"{layer}.ffn_gate", MLP, HIDDEN)
        matrix(f"{layer}.ffn_up", MLP, HIDDEN)
        matrix(f"{layer}.ffn_down", HIDDEN, MLP)
    ones("output_norm")
    matrix("output", len(tokens), HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _alphabet() -> list[str]:
    """How a byte-level vocabulary writes each byte, in the order of the bytes."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
