"""Configurations that no model has: an error that names the field, and nothing else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardpoint.attention import AttentionConfig
from hardpoint.cli import _model
from hardpoint.cli._model import read_model
from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command
    from tests.plugins import Site

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 4,
}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "architectures": ({"architectures": 5}, "architectures=5: accepted is a list"),
    "a number as text": ({"num_attention_heads": "32"}, "num_attention_heads='32': accepted is an integer of 1"),
    "a model type that is a list": ({"model_type": ["llama"]}, "model_type=['llama']: accepted is a string"),
    "a dtype that is a number": ({"torch_dtype": 16}, "torch_dtype=16: accepted is a string"),
    "shared layers": ({"num_kv_shared_layers": "2"}, "num_kv_shared_layers='2': accepted is an integer from 0 to 4"),
    "more shared layers than layers": ({"num_kv_shared_layers": 5}, "accepted is an integer from 0 to 4"),
    "a soft cap beyond floats": ({"attn_logit_softcapping": 10**400}, "accepted is a finite number"),
    "a soft cap that is true": ({"attn_logit_softcapping": True}, "attn_logit_softcapping=True: accepted is"),
    "groups": (
        {"model_type": "gpt_neo", "attention_types": [[["global"], "x"]]},
        "attention_types=[[['global'], 'x']]",
    ),
    "many groups": ({"model_type": "gpt_neo", "attention_types": [[["global"], 10**9]]}, "accepted is a list of pairs"),
    "many layers": (
        {"num_hidden_layers": 10**9},
        "num_hidden_layers=1000000000: accepted is an integer from 1 to 10,000",
    ),
    "a head beyond 64 bits": ({"head_dim": 10**30}, "accepted is an integer from 1 to 9,223,372,036,854,775,807"),
    "layer types": ({"layer_types": "full_attention"}, "layer_types='full_attention': accepted is a list"),
    "a window": ({"sliding_window": "4096"}, "sliding_window='4096': accepted is an integer"),
    "in a tower": ({"text_config": {**LLAMA, "head_dim": []}}, "text_config.head_dim=[]: accepted is an integer"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_malformed_value_is_wrong_use(name: str, site: Site, hardpoint_command: Command, tmp_path: Path) -> None:
    """The file, the field, the value and what is accepted, with exit code 2."""
    site.platform("host", rank="CPU")
    more, said = WRONG[name]
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**LLAMA, **more}))
    shown = hardpoint_command("select", "--model", str(file))
    assert (shown.code, shown.out) == (2, "")
    assert f"{file}: " in shown.err
    assert said in shown.err


@pytest.mark.parametrize("text", ["[" * 50_000, '{"text_config":' * 500 + "{}" + "}" * 500], ids=["lists", "towers"])
def test_deep_nesting_is_wrong_use(text: str, hardpoint_command: Command, tmp_path: Path) -> None:
    """However deep a file is nested, it is told to be, and the interpreter's own limit is not met."""
    file = tmp_path / "config.json"
    file.write_text(text)
    shown = hardpoint_command("select", "--model", str(file))
    assert shown.code == 2
    assert str(file) in shown.err
    assert "nested too deeply" in shown.err


_NAMES = (
    *_model._TEXT,
    *_model._VISION,
    *_model._HEADS,
    *_model._HIDDEN,
    *_model._LAYERS,
    *_model._KV_HEADS,
    *_model._HEAD_SIZE,
    *_model._LENGTH,
    *_model._SOFT_CAP,
    *LLAMA,
    *("architectures", "torch_dtype", "layer_types", "block_types", "sliding_window", "sliding_window_pattern"),
    *("local_attention", "window_size", "use_sliding_window", "max_window_layers", "hybrid_override_pattern"),
    *("attn_layer_period", "attn_layer_offset", "attn_layer_indices", "attn_type_list", "full_attention_interval"),
    *("global_attn_every_n_layers", "attention_types", "attention_chunk_size", "no_rope_layers", "attn_config"),
    *("num_kv_shared_layers", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "index_topk"),
    *("encoder", "decoder", "is_encoder_decoder", "decoder_layers", "multi_query", "multi_query_attention"),
)
_ODD: tuple[Any, ...] = (
    0,
    1,
    2,
    -1,
    128,
    10**9,
    10**400,
    0.5,
    float("inf"),
    float("nan"),
    True,
    None,
    "",
    "LG",
    "\ud800",
    [],
    [0, 1],
)
_TYPES = ("gpt_neo", "gemma2", "qwen2", "t5", "llama4_text", "modernbert", "deepseek_v3", "jamba", "mpt", "llama")
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
_VALUES = (
    st.sampled_from(_ODD)
    | _SCALARS
    | st.lists(st.sampled_from(("full_attention", "sliding_attention", "mamba", "chunked_attention")), max_size=3)
    | st.just([[["global", "local"], 2]])
)
_JSON = st.recursive(
    _VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=6),
    max_leaves=12,
)
_MODELS = st.builds(
    lambda kind, more, base: {**({**LLAMA, "model_type": kind} if base else {}), **more},
    st.sampled_from(_TYPES),
    st.dictionaries(st.sampled_from(_NAMES), _JSON, max_size=5),
    st.booleans(),
)


@settings(max_examples=400, deadline=None)
@given(_JSON | _MODELS)
def test_any_json_is_a_model_or_an_error_of_ours(data: Any) -> None:
    """Whatever a file holds, its layers make configs, or a `ConfigError` says why not."""
    try:
        for layer in read_model(data).layers:
            AttentionConfig(**{**layer.fields, "dtype": layer.fields["dtype"] or "float32"})
    except ConfigError as error:
        assert error.field  # noqa: PT017  # an error is one of the two outcomes
        str(error).encode()
