from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from hardpoint.attention import DTYPE_SIZE_BYTES, AttentionConfig, AttentionType, normalise_dtype
from hardpoint.attention._config import FIELD_NAMES
from hardpoint.errors import ConfigError

DENSE: dict[str, Any] = {"head_size": 64, "num_heads": 8, "dtype": "bfloat16"}
LATENT: dict[str, Any] = {
    "kind": "mla_attention",
    "head_size": 576,
    "num_heads": 16,
    "dtype": "bfloat16",
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}
# For each field, arguments that change it and nothing else.
CHANGED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "kind": (
        {**LATENT, "kind": "attention", "v_head_size": 512, "kv_lora_rank": None, "qk_rope_head_dim": None},
        LATENT,
    ),
    "head_size": ({**DENSE, "v_head_size": 64}, {**DENSE, "v_head_size": 64, "head_size": 80}),
    "v_head_size": (DENSE, {**DENSE, "v_head_size": 32}),
    "num_heads": ({**DENSE, "num_kv_heads": 4}, {**DENSE, "num_kv_heads": 4, "num_heads": 16}),
    "num_kv_heads": (DENSE, {**DENSE, "num_kv_heads": 2}),
    "dtype": (DENSE, {**DENSE, "dtype": "float16"}),
    "kv_cache_dtype": (DENSE, {**DENSE, "kv_cache_dtype": "float8_e4m3fn"}),
    "block_size": (DENSE, {**DENSE, "block_size": 1}),
    "attention_type": ({**DENSE, "causal": True}, {**DENSE, "causal": True, "attention_type": "encoder"}),
    "causal": (DENSE, {**DENSE, "causal": False}),
    "sliding_window": (DENSE, {**DENSE, "sliding_window": 1}),
    "sinks": (DENSE, {**DENSE, "sinks": True}),
    "alibi": (DENSE, {**DENSE, "alibi": True}),
    "soft_cap": (DENSE, {**DENSE, "soft_cap": 1.0}),
    "kv_sharing": (DENSE, {**DENSE, "kv_sharing": True}),
    "batch_invariant": (DENSE, {**DENSE, "batch_invariant": True}),
    "max_model_len": (DENSE, {**DENSE, "max_model_len": 1}),
    "kv_lora_rank": (
        LATENT,
        {**LATENT, "kv_lora_rank": 256, "qk_rope_head_dim": 320},
    ),
    "qk_rope_head_dim": (
        LATENT,
        {**LATENT, "head_size": 544, "qk_rope_head_dim": 32},
    ),
    "qk_nope_head_dim": (LATENT, {**LATENT, "qk_nope_head_dim": 128}),
}


def test_defaults_follow_the_other_fields() -> None:
    """Value heads are as large and as many as query heads, and a decoder is causal."""
    config = AttentionConfig(**DENSE)
    assert (config.v_head_size, config.num_kv_heads, config.group_size) == (64, 8, 1)
    assert config.causal is True
    assert config.attention_type == AttentionType.DECODER
    assert (config.kv_cache_dtype, config.cache_dtype) == ("auto", "bfloat16")


@pytest.mark.parametrize("attention_type", [kind for kind in AttentionType if kind is not AttentionType.DECODER])
def test_only_a_decoder_is_causal_by_default(attention_type: AttentionType) -> None:
    """Encoders and cross attention see everything unless told otherwise."""
    assert AttentionConfig(**DENSE, attention_type=attention_type).causal is False
    assert AttentionConfig(**DENSE, attention_type=attention_type, causal=True).causal is True


def test_the_latent_form_has_one_key_head_and_the_latent_as_value() -> None:
    """The latent form settles value head size and key heads by itself."""
    config = AttentionConfig(**LATENT)
    assert (config.v_head_size, config.num_kv_heads, config.group_size) == (512, 1, 16)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("bf16", "bfloat16"),
        ("torch.bfloat16", "bfloat16"),
        (" Half ", "float16"),
        ("fp32", "float32"),
        ("fp8", "float8_e4m3fn"),
        ("fp8_e5m2", "float8_e5m2"),
        (SimpleNamespace(), None),
        ("float7", None),
        ("", None),
        (None, None),
        (["bfloat16"], None),
        ({"dtype": "bfloat16"}, None),
    ],
)
def test_dtypes_have_one_name(given: object, name: str | None) -> None:
    """Short names become torch's, and what is no dtype is refused by name."""
    if name is not None:
        assert normalise_dtype(given) == name
    else:
        with pytest.raises(ConfigError, match="is not a dtype; known are float64, float32") as caught:
            AttentionConfig(head_size=64, num_heads=8, dtype=given)  # type: ignore[arg-type]
        assert caught.value.field == "dtype"


@pytest.mark.parametrize("name", DTYPE_SIZE_BYTES)
def test_every_dtype_is_torchs_own(name: str) -> None:
    """The names and sizes are those of torch, and a torch dtype itself is taken."""
    torch = pytest.importorskip("torch")
    assert getattr(torch, name).itemsize == DTYPE_SIZE_BYTES[name]
    assert normalise_dtype(getattr(torch, name)) == name


def test_equal_requests_in_other_words_are_equal() -> None:
    """A cache of the model's own dtype is ``auto``, a soft cap of zero is none, and enum or text is the same."""
    plain = AttentionConfig(**DENSE)
    for other in (
        AttentionConfig(**{**DENSE, "dtype": "bf16"}, kv_cache_dtype="bfloat16"),
        AttentionConfig(**DENSE, kv_cache_dtype=" AUTO "),
        AttentionConfig(**DENSE, soft_cap=0),
        AttentionConfig(**DENSE, attention_type="decoder", num_kv_heads=8, v_head_size=64, causal=True),
    ):
        assert other == plain
        assert hash(other) == hash(plain)
        assert other.as_dict() == plain.as_dict()


def test_foreign_integers_become_pythons() -> None:
    """Numbers of numpy are taken and stored as plain integers, so that they compare, hash and pickle as such."""
    numpy = pytest.importorskip("numpy")
    config = AttentionConfig(
        head_size=numpy.int64(64), num_heads=numpy.int32(8), dtype="bf16", block_size=numpy.uint8(16)
    )
    assert config == AttentionConfig(**DENSE, block_size=16)
    assert {type(config.head_size), type(config.num_heads), type(config.block_size)} == {int}


NO_FLAGS: tuple[Any, ...] = (1, "yes", [], {})
NO_CAPS: tuple[Any, ...] = (-1.0, float("nan"), float("inf"), "30", True, [30.0], {}, 10**400)
BAD: list[tuple[str, Any, str]] = [
    ("kind", "conv", "known are 'attention' and 'mla_attention'"),
    ("kind", ["attention"], "known are 'attention' and 'mla_attention'"),
    *(
        (name, value, text)
        for name in (
            "head_size",
            "v_head_size",
            "num_heads",
            "num_kv_heads",
            "block_size",
            "sliding_window",
            "max_model_len",
        )
        for value, text in (
            (0, "must be at least 1"),
            (-1, "must be at least 1"),
            (64.0, "expected an integer, got float"),
            ("64", "expected an integer, got str"),
            (True, "expected an integer, got a bool"),
            ([64], "expected an integer, got list"),
            ({}, "expected an integer, got dict"),
        )
    ),
    ("head_size", None, "expected an integer, got NoneType"),
    ("num_heads", None, "expected an integer, got NoneType"),
    ("num_kv_heads", 3, "num_heads=8 is no multiple of num_kv_heads=3"),
    ("num_kv_heads", 16, "num_heads=8 is no multiple of num_kv_heads=16"),
    ("kv_cache_dtype", "int4", "is not a dtype"),
    ("kv_cache_dtype", None, "is not a dtype"),
    ("kv_cache_dtype", ["auto"], "is not a dtype"),
    ("attention_type", "sideways", "known are decoder, encoder, encoder_only, encoder_decoder"),
    ("attention_type", ["decoder"], "known are decoder"),
    ("attention_type", None, "known are decoder"),
    *(
        (name, value, "expected True or False, got")
        for name in ("causal", "sinks", "alibi", "kv_sharing", "batch_invariant")
        for value in NO_FLAGS
    ),
    *((name, None, "expected True or False, got") for name in ("sinks", "alibi", "kv_sharing", "batch_invariant")),
    *(("soft_cap", value, "expected a positive number or None") for value in NO_CAPS),
    *(
        (name, 64, "has a meaning for kind='mla_attention' only")
        for name in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim")
    ),
]


@pytest.mark.parametrize(("name", "value", "text"), BAD)
def test_a_bad_value_is_named(name: str, value: Any, text: str) -> None:
    """Every bad value gives a `ConfigError` that names the field and says what is expected; never 'unhashable'."""
    with pytest.raises(ConfigError) as caught:
        AttentionConfig(**{**DENSE, name: value})
    assert caught.value.field == name
    assert text in str(caught.value)
    assert name in str(caught.value)
    assert "unhashable" not in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_every_field_has_bad_values_in_this_file() -> None:
    """No field is left out of the table of bad values."""
    assert {name for name, _, _ in BAD} | {"dtype"} == set(FIELD_NAMES)


@pytest.mark.parametrize(
    ("change", "name", "text"),
    [
        ({"kv_lora_rank": None}, "kv_lora_rank", "kind='mla_attention' needs kv_lora_rank"),
        ({"qk_rope_head_dim": None}, "qk_rope_head_dim", "kind='mla_attention' needs qk_rope_head_dim"),
        ({"kv_lora_rank": [512]}, "kv_lora_rank", "expected an integer, got list"),
        ({"qk_rope_head_dim": -1}, "qk_rope_head_dim", "must be at least 0"),
        ({"qk_nope_head_dim": 0}, "qk_nope_head_dim", "must be at least 1"),
        ({"head_size": 512}, "head_size", "kv_lora_rank + qk_rope_head_dim = 576"),
        ({"v_head_size": 576}, "v_head_size", "kv_lora_rank = 512"),
        ({"num_kv_heads": 2}, "num_kv_heads", "the latent form has one"),
    ],
)
def test_a_contradiction_in_the_latent_form_is_named(change: dict[str, Any], name: str, text: str) -> None:
    """The latent form's sizes must fit one another."""
    with pytest.raises(ConfigError) as caught:
        AttentionConfig(**{**LATENT, **change})
    assert caught.value.field == name
    assert text in str(caught.value)


def test_a_latent_without_a_rotary_part_is_a_latent() -> None:
    """Zero elements of rotary embedding are allowed: models without it exist."""
    config = AttentionConfig(**{**LATENT, "qk_rope_head_dim": 0, "head_size": 512})
    assert config.qk_rope_head_dim == 0


@pytest.mark.parametrize("name", FIELD_NAMES)
def test_configs_that_differ_in_one_field_never_share(name: str) -> None:
    """Changing any single field makes another request: unequal, another dictionary key, another text."""
    one, other = (AttentionConfig(**arguments) for arguments in CHANGED[name])
    differing = {field for field in FIELD_NAMES if getattr(one, field) != getattr(other, field)}
    # In the latent form a field cannot always change alone: the sizes must still fit.
    assert name in differing
    assert differing <= {name, "num_kv_heads", "kv_lora_rank", "qk_rope_head_dim", "v_head_size", "head_size"}
    assert one != other
    assert len({one: 1, other: 2}) == 2
    assert one.describe() != other.describe()


@pytest.mark.parametrize("name", FIELD_NAMES)
def test_equal_but_distinct_configs_share(name: str) -> None:
    """Two configs built apart from equal arguments are one dictionary key."""
    one, other = (AttentionConfig(**dict(CHANGED[name][1])) for _ in range(2))
    assert one is not other
    assert one == other
    assert {one: "found"}[other] == "found"


def test_a_config_cannot_be_changed() -> None:
    """The request is frozen."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        AttentionConfig(**DENSE).head_size = 128  # type: ignore[misc]


def test_copies_are_equal() -> None:
    """Copying, replacing nothing and pickling give an equal request."""
    config = AttentionConfig(**LATENT, block_size=64)
    for other in (
        copy.copy(config),
        copy.deepcopy(config),
        dataclasses.replace(config),
        pickle.loads(pickle.dumps(config)),
    ):
        assert other == config
        assert hash(other) == hash(config)
        assert other.demands == config.demands


def test_the_hash_belongs_to_the_process() -> None:
    """A config pickled under another hash seed is found in this process's dictionaries."""
    script = (
        "import pickle, sys; from hardpoint.attention import AttentionConfig;"
        "sys.stdout.buffer.write(pickle.dumps(AttentionConfig(head_size=64, num_heads=8, dtype='bf16', soft_cap=30.0)))"
    )
    config = AttentionConfig(**DENSE, soft_cap=30.0)
    for seed in ("0", "1", "2"):
        pickled = subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        assert {config: "found"}[pickle.loads(pickled)] == "found"


@pytest.mark.parametrize("name", FIELD_NAMES)
def test_what_is_not_neutral_is_demanded(name: str) -> None:
    """A field is demanded exactly where it asks something of a backend beyond the plain case."""
    asks_nothing = {"kind", "num_heads", "max_model_len", "qk_nope_head_dim"}
    plain, other = (AttentionConfig(**arguments) for arguments in CHANGED[name])
    assert (name in other.demands) is (name not in asks_nothing)
    always = {"head_size", "dtype", "v_head_size", "kv_lora_rank", "qk_rope_head_dim", "attention_type"}
    if name not in always and plain.kind == other.kind:
        assert name not in plain.demands


def test_the_plain_config_demands_its_size_and_dtype_only() -> None:
    """Head size and dtype have no neutral value; everything else at its default is neutral."""
    assert AttentionConfig(**DENSE).demands == {"head_size", "dtype"}


def test_the_description_is_one_line_with_what_matters() -> None:
    """Neutral fields are left out, others are named with their value."""
    assert AttentionConfig(**DENSE).describe() == (
        "kind=attention, head_size=64, num_heads=8, num_kv_heads=8, dtype=bfloat16, kv_cache_dtype=auto, "
        "attention_type=decoder"
    )
    busy = AttentionConfig(**DENSE, v_head_size=32, causal=False, sinks=True, sliding_window=128, soft_cap=30.0)
    assert busy.describe() == (
        "kind=attention, head_size=64, v_head_size=32, num_heads=8, num_kv_heads=8, dtype=bfloat16, "
        "kv_cache_dtype=auto, sliding_window=128, soft_cap=30.0, attention_type=decoder, causal=False, sinks"
    )


def test_asking_needs_no_torch() -> None:
    """Building a config and naming a dtype loads neither torch nor numpy."""
    script = (
        "import sys; from hardpoint.attention import AttentionConfig, AttentionSupport, AttentionBackend, KVCacheSpec;"
        "AttentionConfig(head_size=64, num_heads=8, dtype='bf16');"
        "print({'torch', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
