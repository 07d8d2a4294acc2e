"""Hugging Face configurations: every kind of layer, by the fields that the models really have."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("click")

from click import UsageError

from hardpoint.attention import AttentionConfig
from hardpoint.cli._model import read_model
from hardpoint.cli._model_defaults import DEFAULTS
from hardpoint.cli._select import read_configs
from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command
    from tests.plugins import Site

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
GEMMA_2 = {
    "model_type": "gemma2",
    "hidden_size": 2304,
    "head_dim": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 26,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "torch_dtype": "float32",
}
# As published: the head counts are the class's own, and so are not in the file.
GEMMA_3 = {
    "model_type": "gemma3",
    "architectures": ["Gemma3ForConditionalGeneration"],
    "torch_dtype": "bfloat16",
    "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024},
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 1152,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
    },
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 24,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "num_hidden_layers": 61,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "torch_dtype": "bfloat16",
}
LAYERS: dict[str, tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]] = {
    "Llama": (
        LLAMA,
        [
            (
                "full attention (32 of 32 layers)",
                {"head_size": 128, "num_kv_heads": 8, "max_model_len": 131072, "dtype": "bfloat16"},
            )
        ],
    ),
    "Mistral": (
        {**LLAMA, "model_type": "mistral", "sliding_window": 4096, "head_dim": 96},
        [("sliding window 4096 (32 of 32 layers)", {"sliding_window": 4096, "head_size": 96})],
    ),
    "Mistral without a window": (
        {**LLAMA, "model_type": "mistral", "sliding_window": None},
        [("full attention (32 of 32 layers)", {"sliding_window": None})],
    ),
    "Gemma 2": (
        GEMMA_2,
        [
            ("sliding window 4096, soft cap 50 (13 of 26 layers)", {"soft_cap": 50.0, "sliding_window": 4096}),
            ("soft cap 50 (13 of 26 layers)", {"soft_cap": 50.0, "sliding_window": None, "head_size": 256}),
        ],
    ),
    "Gemma 3": (
        GEMMA_3,
        [
            ("sliding window 1024 (29 of 34 layers)", {"head_size": 256, "num_heads": 8, "num_kv_heads": 4}),
            ("full attention (5 of 34 layers)", {"sliding_window": None}),
            (
                "vision: full attention (27 of 27 layers)",
                {"head_size": 72, "attention_type": "encoder_only", "block_size": None},
            ),
        ],
    ),
    "Gemma 3n": (
        {
            "model_type": "gemma3n",
            "text_config": {
                "model_type": "gemma3n_text",
                "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
            },
        },
        [
            ("sliding window 512 (16 of 35 layers)", {"kv_sharing": False}),
            ("full attention (4 of 35 layers)", {"kv_sharing": False}),
            ("sliding window 512, shared cache (12 of 35 layers)", {"kv_sharing": True}),
            ("full attention, shared cache (3 of 35 layers)", {"kv_sharing": True}),
        ],
    ),
    "GPT-OSS": (
        GPT_OSS,
        [
            ("sliding window 128, sinks (12 of 24 layers)", {"sinks": True, "sliding_window": 128, "head_size": 64}),
            ("sinks (12 of 24 layers)", {"sinks": True, "sliding_window": None}),
        ],
    ),
    "DeepSeek V3": (
        DEEPSEEK_V3,
        [
            (
                "latent attention (MLA) (61 of 61 layers)",
                {
                    "kind": "mla_attention",
                    "head_size": 576,
                    "v_head_size": 512,
                    "num_kv_heads": 1,
                    "qk_nope_head_dim": 128,
                },
            ),
            (
                "prefill of latent attention (61 of 61 layers)",
                {"kind": "attention", "head_size": 192, "v_head_size": 128},
            ),
        ],
    ),
    "Qwen 2 with windows": (
        {**LLAMA, "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 32768, "max_window_layers": 28},
        [("full attention (28 of 32 layers)", {}), ("sliding window 32768 (4 of 32 layers)", {})],
    ),
    "Qwen 2 with windows switched off": (
        {**LLAMA, "model_type": "qwen2", "use_sliding_window": False, "sliding_window": 32768},
        [("full attention (32 of 32 layers)", {"sliding_window": None})],
    ),
    "Qwen 3 Next": (
        {**LLAMA, "model_type": "qwen3_next", "head_dim": 256, "num_hidden_layers": 48},
        [("full attention (12 of 48 layers)", {"head_size": 256})],
    ),
    "Phi 3": (
        {**LLAMA, "model_type": "phi3", "hidden_size": 3072, "sliding_window": 2047},
        [("sliding window 2047 (32 of 32 layers)", {"head_size": 96})],
    ),
    "Phi": (
        {**LLAMA, "model_type": "phi", "num_key_value_heads": None},
        [("full attention (32 of 32 layers)", {"num_kv_heads": 32})],
    ),
    "Cohere 2": (
        {**LLAMA, "model_type": "cohere2", "sliding_window": 4096},
        [("sliding window 4096 (24 of 32 layers)", {}), ("full attention (8 of 32 layers)", {})],
    ),
    "BERT": (
        {
            "model_type": "bert",
            "architectures": ["BertModel"],
            "hidden_size": 768,
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
        },
        [("full attention (12 of 12 layers)", {"attention_type": "encoder_only", "causal": False, "block_size": None})],
    ),
    "BERT as a decoder": (
        {
            "model_type": "bert",
            "is_decoder": True,
            "hidden_size": 768,
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
        },
        [("full attention (12 of 12 layers)", {"attention_type": "decoder", "causal": True})],
    ),
    "DistilBERT": (
        {"model_type": "distilbert", "dim": 768, "n_heads": 12, "n_layers": 6},
        [("full attention (6 of 6 layers)", {"head_size": 64, "attention_type": "encoder_only"})],
    ),
    "ModernBERT": (
        {
            "model_type": "modernbert",
            "hidden_size": 768,
            "num_attention_heads": 12,
            "num_hidden_layers": 22,
            "local_attention": 128,
        },
        [
            ("full attention (8 of 22 layers)", {"causal": False}),
            ("sliding window 65 (14 of 22 layers)", {"causal": False}),
        ],
    ),
    "T5": (
        {"model_type": "t5", "d_model": 512, "d_kv": 64, "num_heads": 8, "num_layers": 6, "num_decoder_layers": 4},
        [
            ("encoder: full attention (6 of 6 layers)", {"attention_type": "encoder", "causal": False}),
            ("decoder: full attention (4 of 4 layers)", {"attention_type": "decoder"}),
            ("cross attention: full attention (4 of 4 layers)", {"attention_type": "encoder_decoder"}),
        ],
    ),
    "Whisper": (
        {
            "model_type": "whisper",
            "is_encoder_decoder": True,
            "d_model": 1280,
            "encoder_layers": 32,
            "encoder_attention_heads": 20,
            "decoder_layers": 4,
            "decoder_attention_heads": 10,
            "max_source_positions": 1500,
            "max_target_positions": 448,
        },
        [
            ("encoder: full attention (32 of 32 layers)", {"num_heads": 20, "head_size": 64, "max_model_len": 1500}),
            ("decoder: full attention (4 of 4 layers)", {"num_heads": 10, "head_size": 128, "max_model_len": 448}),
            ("cross attention: full attention (4 of 4 layers)", {"num_heads": 10}),
        ],
    ),
    "LLaVA": (
        {
            "model_type": "llava",
            "text_config": {"model_type": "llama", "torch_dtype": "float16"},
            "vision_config": {
                "model_type": "clip_vision_model",
                "hidden_size": 1024,
                "num_attention_heads": 16,
                "num_hidden_layers": 24,
            },
        },
        [
            ("full attention (32 of 32 layers)", {"num_heads": 32, "dtype": "float16"}),
            ("vision: full attention (24 of 24 layers)", {"head_size": 64}),
        ],
    ),
    "Falcon 7B": (
        {
            "model_type": "falcon",
            "hidden_size": 4544,
            "num_attention_heads": 71,
            "num_hidden_layers": 32,
            "multi_query": True,
            "alibi": False,
        },
        [("full attention (32 of 32 layers)", {"num_kv_heads": 1, "alibi": False, "head_size": 64})],
    ),
    "BLOOM": (
        {"model_type": "bloom", "hidden_size": 4096, "n_head": 32, "n_layer": 30},
        [("ALiBi (30 of 30 layers)", {"alibi": True, "head_size": 128})],
    ),
    "MPT": (
        {
            "model_type": "mpt",
            "d_model": 4096,
            "n_heads": 32,
            "n_layers": 32,
            "max_seq_len": 2048,
            "attn_config": {"alibi": True},
        },
        [("ALiBi (32 of 32 layers)", {"alibi": True, "max_model_len": 2048})],
    ),
    "GPT-2": (
        {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12},
        [("full attention (12 of 12 layers)", {"causal": True})],
    ),
    "GPT-Neo": (
        {
            "model_type": "gpt_neo",
            "hidden_size": 2048,
            "num_heads": 16,
            "num_layers": 24,
            "attention_types": [[["global", "local"], 12]],
            "window_size": 256,
        },
        [("full attention (12 of 24 layers)", {}), ("sliding window 256 (12 of 24 layers)", {})],
    ),
    "Jamba": (
        {**LLAMA, "model_type": "jamba", "attn_layer_period": 8, "attn_layer_offset": 4},
        [("full attention (4 of 32 layers)", {})],
    ),
}
MORE: dict[str, tuple[dict[str, Any], list[str]]] = {
    "T5Gemma": (
        {"model_type": "t5gemma", "is_encoder_decoder": True, "encoder": GEMMA_2, "decoder": GEMMA_2},
        [
            "encoder: sliding window 4096, soft cap 50 (13 of 26 layers)",
            "encoder: soft cap 50 (13 of 26 layers)",
            "decoder: sliding window 4096, soft cap 50 (13 of 26 layers)",
            "decoder: soft cap 50 (13 of 26 layers)",
            "cross attention: soft cap 50 (26 of 26 layers)",
        ],
    ),
    "EmbeddingGemma": (
        {**GEMMA_3["text_config"], "use_bidirectional_attention": True},  # type: ignore[dict-item]  # a mapping
        ["sliding window 1024 (29 of 34 layers)", "full attention (5 of 34 layers)"],
    ),
    "EXAONE 4": (
        {**LLAMA, "model_type": "exaone4", "sliding_window": 4096, "sliding_window_pattern": "LLLG"},
        ["sliding window 4096 (24 of 32 layers)", "full attention (8 of 32 layers)"],
    ),
    "NemotronH": (
        {**LLAMA, "model_type": "nemotron_h", "hybrid_override_pattern": "M-M*" * 8},
        ["full attention (8 of 32 layers)"],
    ),
    "Bamba": (
        {**LLAMA, "model_type": "bamba", "attn_layer_indices": [9, 18, 27]},
        ["full attention (3 of 32 layers)"],
    ),
    "MiniMax": (
        {**LLAMA, "model_type": "minimax_text_01", "attn_type_list": [0, 0, 0, 1]},
        ["full attention (8 of 32 layers)"],
    ),
    "Baichuan 13B": (
        {**LLAMA, "model_type": "baichuan", "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 40},
        ["ALiBi (32 of 32 layers)"],
    ),
    "Baichuan 7B": ({**LLAMA, "model_type": "baichuan"}, ["full attention (32 of 32 layers)"]),
    "ChatGLM": (
        {
            "model_type": "chatglm",
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_layers": 28,
            "kv_channels": 128,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
        },
        ["full attention (28 of 28 layers)"],
    ),
    "MiMo": (
        {
            **LLAMA,
            "model_type": "mimo_v2_flash",
            "v_head_dim": 64,
            "sliding_window": 128,
            "layer_types": ["full_attention", "sliding_attention"] * 16,
            "add_swa_attention_sink_bias": True,
        },
        ["full attention (16 of 32 layers)", "sliding window 128, sinks (16 of 32 layers)"],
    ),
    "DeepSeek V3.2": (
        {**DEEPSEEK_V3, "index_topk": 2048},
        ["latent attention (MLA) (61 of 61 layers)", "prefill of latent attention (61 of 61 layers)"],
    ),
    "a tower without heads": (
        {"text_config": LLAMA, "vision_config": {"depth": 3}},
        ["full attention (32 of 32 layers)"],
    ),
}
NOTES = {
    "Qwen 3 Next": "36 of 48 layers are no attention (linear_attention)",
    "Jamba": "28 of 32 layers are no attention (mamba)",
    "T5": "encoder: the layers add a learned position bias, which no field describes",
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_layers_of_a_model(name: str) -> None:
    """Each kind with its number of layers, and the fields that tell it from others."""
    data, expected = LAYERS[name]
    found = read_model(data)
    assert [label for label, _ in found.layers] == [label for label, _ in expected]
    for layer, (_, fields) in zip(found.layers, expected, strict=True):
        config = AttentionConfig(**{**layer.fields, "dtype": layer.fields["dtype"] or "float32"})
        for field, value in fields.items():
            assert getattr(config, field) == value, (layer.label, field)
    assert NOTES.get(name, found.notes[0] if found.notes else None) in (*found.notes, None)


@pytest.mark.parametrize("name", MORE)
def test_the_kinds_of_layers_of_more_models(name: str) -> None:
    """Every way to say which layer attends how."""
    data, expected = MORE[name]
    found = read_model(data)
    assert [layer.label for layer in found.layers] == expected
    for layer in found.layers:
        AttentionConfig(**{**layer.fields, "dtype": layer.fields["dtype"] or "float32"})
    if name == "EmbeddingGemma":
        assert {layer.fields["attention_type"] for layer in found.layers} == {"encoder_only"}
    if name == "ChatGLM":
        assert {layer.fields["num_kv_heads"] for layer in found.layers} == {2}
    if name == "MiMo":
        assert {layer.fields["v_head_size"] for layer in found.layers} == {64}
    if name in ("DeepSeek V3.2", "a tower without heads"):
        assert found.notes


def test_what_no_config_describes_is_a_note() -> None:
    """Chunked attention is left out and told, never taken for something else."""
    found = read_model({"model_type": "llama4", "text_config": {"model_type": "llama4_text"}})
    assert [layer.label for layer in found.layers] == ["full attention (12 of 48 layers)"]
    assert found.notes == ("36 of 48 layers attend within chunks of 8192 tokens, which no field describes",)


def test_tensor_parallelism_shares_the_heads() -> None:
    """Query heads must divide; a key head is on every rank at least."""
    (layer,) = read_model(LLAMA, tensor_parallel=16).layers
    assert (layer.fields["num_heads"], layer.fields["num_kv_heads"]) == (2, 1)
    with pytest.raises(ConfigError, match="32 heads cannot be split over 5 ranks"):
        read_model(LLAMA, tensor_parallel=5)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "JSON object"),
        ({}, "no attention layers"),
        ({"num_attention_heads": 7, "hidden_size": 100}, "give no head size"),
        ({"text_config": "no"}, "no attention layers"),
    ],
)
def test_what_is_no_model(data: Any, said: str) -> None:
    """A sentence that says what is missing."""
    with pytest.raises(ConfigError, match=said):
        read_model(data)


@pytest.mark.parametrize("model_type", sorted(DEFAULTS))
def test_the_defaults_are_those_of_the_classes(model_type: str) -> None:
    """A bare configuration gives the layers of the class's own: heads, sizes and windows, layer by layer."""
    transformers = pytest.importorskip("transformers")
    if model_type not in transformers.CONFIG_MAPPING:
        pytest.skip("this transformers has no such model")
    known = transformers.CONFIG_MAPPING[model_type]().to_dict()
    bare = read_model({"model_type": model_type})
    full = read_model({name: value for name, value in known.items() if name not in ("dtype", "torch_dtype")})

    def shape(model: Any) -> list[tuple[str, Any]]:
        return [
            (layer.label, {name: value for name, value in layer.fields.items() if name != "max_model_len"})
            for layer in model.layers
        ]

    assert shape(bare) == shape(full)


def test_select_reads_a_model(site: Site, hardpoint_command: Command, tmp_path: Path) -> None:
    """A selection for each kind of layer; an option of a field overrides the file; notes are told."""
    site.platform("host", rank="CPU")
    site.backend("dense", spec="order=Order()", more="")
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**GPT_OSS, "layer_types": ["sliding_attention", "full_attention", "conv"] * 8}))
    data = hardpoint_command("select", "--model", str(file), "--dtype", "float16", "--json").json()
    assert data["labels"] == ["sliding window 128, sinks (8 of 24 layers)", "sinks (8 of 24 layers)"]
    assert [item["config"]["sliding_window"] for item in data["selections"]] == [128, None]
    assert {item["config"]["dtype"] for item in data["selections"]} == {"float16"}
    assert data["notes"] == ["8 of 24 layers are no attention (conv)"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (json.dumps(GPT_OSS)[:60].encode(), "cannot be read as JSON: it ends too early"),
        (b'{"model_type": "lla', "cannot be read as JSON: it ends too early"),
        (b"{", "it ends too early"),
        (b"{'model_type': 1}", "cannot be read as JSON: Expecting property name enclosed in double quotes: line 1"),
        (b" \n", "is empty; expected a model's config.json"),
        (b"GGUF\x03\0\xff\xfe" * 20, "is no text; expected a model's config.json, not its weights"),
        (b"[" * 100_000, "nested too deeply"),
        (b" " * ((16 << 20) + 1), "is longer than 16 MiB"),
        (None, "Is a directory"),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path: Path, content: bytes | None, said: str) -> None:
    """Which file, and what is wrong with it."""
    file = tmp_path / "config.json"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_configs(str(file), 1, {})
    assert str(file) in caught.value.message
    assert said in caught.value.message


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_configuration_of_another_encoding(tmp_path: Path, encoding: str) -> None:
    """Editors of some systems write a byte order mark, or UTF-16."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(GPT_OSS), encoding=encoding)
    assert len(read_configs(str(file), 1, {})[0]) == 2


def test_layers_that_attend_to_a_picture() -> None:
    """Llama 3.2 Vision: some of the text's layers are cross attention; its tower names its heads in its own way."""
    text = {"model_type": "mllama_text_model", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 40}
    vision = {"model_type": "mllama_vision_model", "hidden_size": 1280, "attention_heads": 16, "num_hidden_layers": 32}
    text |= {"num_key_value_heads": 8, "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38]}
    found = read_model({"model_type": "mllama", "text_config": text, "vision_config": vision})
    assert [(layer.label, layer.fields.get("attention_type", "decoder")) for layer in found.layers] == [
        ("full attention (32 of 40 layers)", "decoder"),
        ("cross attention: full attention (8 of 40 layers)", "encoder_decoder"),
        ("vision: full attention (32 of 32 layers)", "encoder_only"),
    ]
    assert not found.notes
