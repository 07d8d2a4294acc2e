"""Reading a Hugging Face model configuration: which kinds of attention layers a model has.

Fields and defaults are those of the models' own configuration classes (transformers, ``configuration_*.py``), and of
the published ``config.json`` files. A layer that no `AttentionConfig` can describe is a note, never a wrong config.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hardpoint.cli._model_defaults import with_defaults
from hardpoint.cli._model_fields import (
    MAX_LAYERS,
    check_nesting,
    first_name,
    inside,
    integer,
    items,
    model_type_of,
    number,
    text,
    unlimited,
)
from hardpoint.cli._model_layers import layer_types_of
from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Json = Any  # what JSON can hold

_TEXT: Final = (
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config",
    "language_model_config",
    "decoder_config",
)
_VISION: Final = ("vision_config", "vision_tower_config", "visual", "vision_encoder")
_AUDIO: Final = ("audio_config", "audio_encoder", "speech_config")
_ENCODERS: Final = frozenset(
    (
        "bert",
        "roberta",
        "xlm-roberta",
        "xlm-roberta-xl",
        "camembert",
        "distilbert",
        "electra",
        "deberta",
        "deberta-v2",
        "mpnet",
        "albert",
        "nomic_bert",
        "modernbert",
        "eurobert",
        "neobert",
        "xmod",
        "new",
        "gte",
        "jina_bert",
        "ernie",
        "esm",
        "vit",
        "deit",
        "beit",
        "dinov2",
        "dinov2_with_registers",
        "dinov3_vit",
        "siglip_vision_model",
        "siglip2_vision_model",
        "clip_vision_model",
        "pixtral",
        "intern_vit_6b",
        "internvl_vision",
        "qwen2_vl_vision",
        "qwen2_5_vl_vision",
        "mllama_vision_model",
        "llama4_vision_model",
        "idefics3_vision",
        "sam_vision_model",
    )
)
_ALIBI: Final = frozenset(("bloom", "mpt"))
_SINKS: Final = frozenset(("gpt_oss",))
_POSITION_BIAS: Final = frozenset(("t5", "mt5", "umt5", "longt5", "switch_transformers", "pop2piano"))
_NOT_ATTENTION: Final = frozenset(
    ("linear_attention", "mamba", "mamba2", "recurrent", "conv", "short_conv", "moe", "mlp", "lightning_attention")
)

_HEADS: Final = ("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads", "attention_heads")
_HIDDEN: Final = ("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "width")
_LAYERS: Final = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "depth", "encoder_layers")
_KV_HEADS: Final = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv", "num_query_groups")
_HEAD_SIZE: Final = ("head_dim", "d_kv", "kv_channels", "attention_head_dim", "attention_head_size")
_LENGTH: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
_SOFT_CAP: Final = ("attn_logit_softcapping", "attn_logit_softcap", "attention_logit_softcapping", "logits_soft_cap")


class Layer(NamedTuple):
    """A kind of attention layer: what it is, and the fields of its `AttentionConfig`."""

    label: str
    fields: dict[str, Json]


class Model(NamedTuple):
    """A model's kinds of layers, and notes on what no config describes."""

    layers: tuple[Layer, ...]
    notes: tuple[str, ...]


def read_model(data: Json, *, tensor_parallel: int = 1, block_size: int | None = None) -> Model:
    """The kinds of layers of a configuration. Errors: `ConfigError` for what is none, or lacks its head counts."""
    if not isinstance(data, dict):
        raise ConfigError("a model's configuration is a JSON object", field="model")
    check_nesting(data)
    reader = _Reader(tensor_parallel, block_size)
    reader.read(data, "", None)
    if not reader.found and not reader.notes:
        raise ConfigError(
            f"no attention layers are described here: none of {', '.join(_HEADS)} is a key, nor of a nested "
            "configuration",
            field="model",
        )
    return Model(tuple(reader.layers()), tuple(reader.notes))


def _dtype_of(data: Mapping[str, Json], outer: str | None) -> str | None:
    return text(data, ("dtype", "torch_dtype")) or outer


class _Reader:
    def __init__(self, tensor_parallel: int, block_size: int | None) -> None:
        if tensor_parallel < 1:
            raise ConfigError(f"tensor_parallel={tensor_parallel}: must be at least 1", field="tensor_parallel")
        self.tensor_parallel = tensor_parallel
        self.block_size = block_size
        self.found: dict[tuple[Json, ...], tuple[str, dict[str, Json], list[int], int]] = {}
        self.notes: list[str] = []

    def read(self, data: Mapping[str, Json], prefix: str, dtype: str | None) -> None:
        """One configuration and those nested in it."""
        data = with_defaults(dict(data))
        dtype = _dtype_of(data, dtype)
        nested = False
        for names, label in ((_TEXT, "text"), (_VISION, "vision"), (_AUDIO, "audio")):
            name = first_name(data, names)
            if name is not None and isinstance(data[name], dict):
                nested = nested or label == "text"
                with inside(name):
                    self._read_tower(data[name], prefix, label, dtype)
        for name in ("encoder", "decoder"):
            # As in T5Gemma.
            if isinstance(data.get(name), dict) and first_name(data[name], _HEADS):
                nested = True
                with inside(name):
                    inner = with_defaults(dict(data[name]))
                    self._layers(inner, f"{prefix}{name}: ", dtype, name)
                    if name == "decoder":
                        self._layers(inner, f"{prefix}cross attention: ", dtype, "encoder_decoder")
        if nested:
            return
        if self._is_encoder_decoder(data):
            self._encoder_decoder(data, prefix, dtype)
        elif integer(data, _HEADS) is not None:
            kind = "encoder_only" if self._is_encoder(data) else "decoder"
            self._layers(data, prefix, dtype, kind)

    def _read_tower(self, data: Mapping[str, Json], prefix: str, label: str, dtype: str | None) -> None:
        if label == "text":
            self.read(data, prefix, dtype)
            return
        data = with_defaults(dict(data))
        name = first_name(data, _HEADS)
        # A list: a tower of several stages, each with a number of its own.
        if name is not None and not isinstance(data[name], list):
            self._layers(data, f"{prefix}{label}: ", _dtype_of(data, dtype), "encoder_only")
        else:
            self.notes.append(f"{prefix}{label} tower: its configuration does not say how many heads it has")

    def _is_encoder(self, data: Mapping[str, Json]) -> bool:
        architectures = items(data, ("architectures",), str, "strings") or []
        causal = any("CausalLM" in name or "LMHeadModel" in name for name in architectures)
        if data.get("is_decoder") is True or causal:
            return False
        if data.get("use_bidirectional_attention") is True or data.get("is_causal") is False:
            return True
        return model_type_of(data) in _ENCODERS

    def _is_encoder_decoder(self, data: Mapping[str, Json]) -> bool:
        if data.get("is_encoder_decoder") is not None:
            return data["is_encoder_decoder"] is True
        return "decoder_attention_heads" in data or model_type_of(data) in _POSITION_BIAS

    def _encoder_decoder(self, data: Mapping[str, Json], prefix: str, dtype: str | None) -> None:
        encoder = {**data, "num_attention_heads": integer(data, _HEADS)}
        heads = integer(data, ("decoder_attention_heads", *_HEADS))
        layers = integer(data, ("decoder_layers", "num_decoder_layers", *_LAYERS), maximum=MAX_LAYERS)
        source = unlimited(data, ("max_source_positions", *_LENGTH))
        target = unlimited(data, ("max_target_positions", *_LENGTH))
        decoder = {**data, "num_attention_heads": heads, "num_hidden_layers": layers}
        self._layers({**encoder, "max_position_embeddings": source}, f"{prefix}encoder: ", dtype, "encoder")
        self._layers({**decoder, "max_position_embeddings": target}, f"{prefix}decoder: ", dtype, "decoder")
        self._layers(
            {**decoder, "max_position_embeddings": target}, f"{prefix}cross attention: ", dtype, "encoder_decoder"
        )

    def _layers(self, data: Mapping[str, Json], prefix: str, dtype: str | None, attention_type: str) -> None:
        """Every layer of one stack, alike ones together."""
        model_type = model_type_of(data)
        # Across, nobody has a position.
        if model_type in _POSITION_BIAS and attention_type != "encoder_decoder":
            note = f"{prefix}the layers add a learned position bias, which no field describes"
            self.notes.append(note)
        count = integer(data, _LAYERS, maximum=MAX_LAYERS) or 1
        types = layer_types_of(data, count, attention_type)
        times = Counter(name for name, _ in types)
        shared = integer(data, ("num_kv_shared_layers",), minimum=0, maximum=count) or 0
        chunk = integer(data, ("attention_chunk_size",)) if "chunked_attention" in times else None
        for place, (name, window) in enumerate(types):
            if name in _NOT_ATTENTION:
                self._note_once(f"{prefix}{times[name]} of {count} layers are no attention ({name})")
                continue
            if name == "chunked_attention":
                self._note_once(
                    f"{prefix}{times[name]} of {count} layers attend within chunks of "
                    f"{chunk} tokens, which no field describes"
                )
                continue
            across = name == "cross_attention"
            kind = "encoder_decoder" if across else attention_type
            for label, fields in self._fields(data, dtype, kind, window):
                label = f"cross attention: {label}" if across else label  # noqa: PLW2901  # said of this layer
                is_sharing = bool(shared) and place >= count - shared
                more = {"kv_sharing": True} if is_sharing else {}
                self._add(prefix, f"{label}, shared cache" if is_sharing else label, {**fields, **more}, place, count)

    def _fields(
        self, data: Mapping[str, Json], dtype: str | None, attention_type: str, window: int | None
    ) -> Iterator[tuple[str, dict[str, Json]]]:
        heads = integer(data, _HEADS)
        if heads is None:
            raise ConfigError("the configuration does not say how many heads a layer has", field="num_heads")
        common: dict[str, Json] = {"dtype": dtype if dtype != "auto" else None}
        length = unlimited(data, _LENGTH)
        if length is not None:
            common["max_model_len"] = length
        if attention_type != "decoder":
            common["attention_type"] = attention_type
        rank, rope = integer(data, ("kv_lora_rank",)), integer(data, ("qk_rope_head_dim",), minimum=0)
        if rank is not None and rope is not None:
            yield from self._latent(data, common, heads, rank, rope)
            return
        fields = {**common, "num_heads": self._split(heads, "num_heads")}
        fields["head_size"] = self._head_size(data, heads)
        value = integer(data, ("v_head_dim",))
        if value is not None and value != fields["head_size"]:
            fields["v_head_size"] = value
        fields["num_kv_heads"] = max(1, _kv_heads(data, heads) // self.tensor_parallel)
        if attention_type in ("decoder", "encoder_decoder"):
            fields["block_size"] = self.block_size
        words = []
        if window is not None:
            fields["sliding_window"] = window
            words.append(f"sliding window {window}")
        cap = number(data, _SOFT_CAP)
        if cap is not None:
            fields["soft_cap"] = cap
            words.append(f"soft cap {cap:g}")
        if _has_sinks(data, window):
            fields["sinks"] = True
            words.append("sinks")
        if _has_alibi(data):
            fields["alibi"] = True
            words.append("ALiBi")
        yield ", ".join(words) or "full attention", fields

    def _latent(
        self, data: Mapping[str, Json], common: dict[str, Json], heads: int, rank: int, rope: int
    ) -> Iterator[tuple[str, dict[str, Json]]]:
        """MLA: the latent form that decodes from the cache, and the plain form that prefills."""
        heads = self._split(heads, "num_heads")
        nope = integer(data, ("qk_nope_head_dim",))
        latent = {
            **common,
            "kind": "mla_attention",
            "num_heads": heads,
            "num_kv_heads": 1,
            "head_size": rank + rope,
            "v_head_size": rank,
            "kv_lora_rank": rank,
            "qk_rope_head_dim": rope,
            "block_size": self.block_size,
        }
        if nope is not None:
            latent["qk_nope_head_dim"] = nope
        yield "latent attention (MLA)", latent
        value = integer(data, ("v_head_dim",)) or nope
        if nope is not None and value is not None:
            plain = {"num_heads": heads, "num_kv_heads": heads, "head_size": nope + rope, "v_head_size": value}
            yield "prefill of latent attention", {**common, **plain}
        best = integer(data, ("index_topk",), minimum=0)
        if best:
            self._note_once(f"the layers attend to the best {best} tokens only, which no field describes")

    def _head_size(self, data: Mapping[str, Json], heads: int) -> int:
        known = integer(data, _HEAD_SIZE)
        if known is not None:
            return known
        hidden = integer(data, _HIDDEN)
        if hidden is None or hidden % heads:
            raise ConfigError(f"hidden_size={hidden} and {heads} heads give no head size", field="head_size")
        return hidden // heads

    def _split(self, heads: int, name: str) -> int:
        if heads % self.tensor_parallel:
            raise ConfigError(f"{heads} heads cannot be split over {self.tensor_parallel} ranks", field=name)
        return heads // self.tensor_parallel

    def _add(self, prefix: str, label: str, fields: dict[str, Json], place: int, count: int) -> None:
        key = (prefix, *sorted(fields.items(), key=lambda item: item[0]))
        known = self.found.get(key)
        if known is None:
            self.found[key] = (f"{prefix}{label}", fields, [place], count)
        else:
            known[2].append(place)

    def _note_once(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def layers(self) -> Iterator[Layer]:
        """The kinds of layers, each labelled with how many there are."""
        for label, fields, numbers, count in self.found.values():
            yield Layer(f"{label} ({len(numbers)} of {count} layers)", fields)


def _kv_heads(data: Mapping[str, Json], heads: int) -> int:
    if data.get("multi_query") is True and data.get("new_decoder_architecture") is not True:
        return 1
    if data.get("multi_query_attention") is False:
        return heads
    attention = data.get("attn_config")
    known = integer(data, _KV_HEADS)
    if known is None and isinstance(attention, dict):
        known = integer(attention, ("kv_n_heads",))
    return known or heads


def _has_sinks(data: Mapping[str, Json], window: int | None) -> bool:
    if model_type_of(data) in _SINKS:
        return True
    which = "add_full_attention_sink_bias" if window is None else "add_swa_attention_sink_bias"
    return any(data.get(name) is True for name in (which, "attention_sinks", "use_attention_sinks", "attn_sinks"))


def _has_alibi(data: Mapping[str, Json]) -> bool:
    model_type = model_type_of(data)
    attention = data.get("attn_config")
    if model_type == "mpt":
        return bool(isinstance(attention, dict) and attention.get("alibi", False))
    if model_type == "baichuan":
        # The 13 billion parameters' form has it; the other has rotary embedding.
        return data.get("hidden_size") == 5120
    stated = data.get("alibi")
    return model_type in _ALIBI or stated is True or data.get("position_embedding_type") == "alibi"
