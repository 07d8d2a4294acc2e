"""`AttentionConfig`: what one kind of attention layer asks of a backend. No torch is needed to ask."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

from hardpoint.errors import ConfigError


class AttentionType(StrEnum):
    """Who attends to whom."""

    DECODER = "decoder"
    """Self-attention with a cache, causal unless said otherwise."""
    ENCODER = "encoder"
    """Self-attention of the encoder of an encoder-decoder model, no cache."""
    ENCODER_ONLY = "encoder_only"
    """Self-attention of an embedding model or a vision tower, no cache."""
    ENCODER_DECODER = "encoder_decoder"
    """Cross attention: the keys come from another sequence."""


DTYPE_SIZE_BYTES: Final = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "int8": 1,
}
"""The dtypes a configuration may name, with the bytes of one element. Names are torch's."""

_DTYPE_ALIASES: Final = {
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "float": "float32",
    "fp32": "float32",
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "float8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}


def normalise_dtype(value: object, *, field_name: str = "dtype") -> str:
    """The dtype's torch name: takes ``'bf16'``, ``'torch.bfloat16'`` or a torch dtype. Errors: `ConfigError`."""
    # A torch dtype's text is its qualified name, so that none needs torch here.
    text = str(value).strip().lower().removeprefix("torch.")
    text = _DTYPE_ALIASES.get(text, text)
    if text not in DTYPE_SIZE_BYTES:
        raise ConfigError(
            f"{field_name}={value!r} is not a dtype; known are {', '.join(DTYPE_SIZE_BYTES)}", field=field_name
        )
    return text


def _integer(name: str, value: object, *, minimum: int = 1) -> int:
    if isinstance(value, bool):
        raise ConfigError(f"{name}={value!r}: expected an integer, got a bool", field=name)
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # the TypeError below is the check
    except TypeError:
        raise ConfigError(f"{name}={value!r}: expected an integer, got {type(value).__name__}", field=name) from None
    if number < minimum:
        raise ConfigError(f"{name}={number}: must be at least {minimum}", field=name)
    return number


def _soft_cap(value: object) -> float | None:
    if value is None:
        return None
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)  # type: ignore[arg-type]  # see _integer
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise ConfigError(f"soft_cap={value!r}: expected a positive number or None", field="soft_cap")
    # Model configurations write 0.0 where they mean none.
    return number or None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """One kind of layer, as this rank sees it (head counts after tensor parallelism). Frozen and hashable.

    ============================  ====================================================================================
    `kind`                        ``attention`` or ``mla_attention`` (the latent form)
    `head_size`, `v_head_size`    elements per head of query and key, and of value (default: the same)
    `num_heads`, `num_kv_heads`   query heads, and key/value heads that groups of them share (default: the same)
    `dtype`                       of query, key, value and result
    `kv_cache_dtype`              storage of the cache; ``auto``: `dtype`
    `block_size`                  tokens per cache block; None: no cache, or the backend may choose
    `attention_type`, `causal`    see `AttentionType`; causal by default exactly for ``decoder``
    `sliding_window`              w: position p sees p-w+1 … p (not causal: also p … p+w-1); None: unlimited
    `sinks`                       one extra logit per head in the softmax's denominator
    `alibi`                       slope x (key position - query position) is added to the logits
    `soft_cap`                    cap x tanh(logit / cap), after the scale and before ALiBi and the mask
    `kv_sharing`                  the layer reads another layer's cache and never writes
    `batch_invariant`             a sequence's result may not depend on what else is in the batch
    `max_model_len`               longest sequence, in tokens; None: unknown
    `kv_lora_rank`,               latent form: elements of the latent, of its rotary part, and of a head's part without
    `qk_rope_head_dim`,           rotary embedding before up-projection; `head_size` is then latent + rotary, and
    `qk_nope_head_dim`            `v_head_size` the latent
    ============================  ====================================================================================

    Dtypes may be given as torch dtypes or in short (``bf16``). A default that follows another field (`v_head_size`,
    `num_kv_heads`, `causal`) is settled when the config is built, so `dataclasses.replace` carries it on. Errors:
    `ConfigError`, which names the field.
    """

    head_size: int
    num_heads: int
    dtype: str
    kind: str = "attention"
    v_head_size: int = None  # type: ignore[assignment]  # filled in by __post_init__; the same for the next ones
    num_kv_heads: int = None  # type: ignore[assignment]
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    attention_type: str = AttentionType.DECODER
    causal: bool = None  # type: ignore[assignment]
    sliding_window: int | None = None
    sinks: bool = False
    alibi: bool = False
    soft_cap: float | None = None
    kv_sharing: bool = False
    batch_invariant: bool = False
    max_model_len: int | None = None
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None
    qk_nope_head_dim: int | None = None
    _hash: int = field(default=0, init=False, repr=False, compare=False)
    _demands: frozenset[str] = field(default=frozenset(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        def given(name: str) -> object:  # before the checks below nothing is known of its type
            return getattr(self, name)

        if self.kind not in ("attention", "mla_attention"):
            raise ConfigError(f"kind={self.kind!r}: known are 'attention' and 'mla_attention'", field="kind")
        put("kind", str(self.kind))
        put("dtype", normalise_dtype(self.dtype))
        cache_dtype = "auto"
        if str(self.kv_cache_dtype).strip().lower() != "auto":
            cache_dtype = normalise_dtype(self.kv_cache_dtype, field_name="kv_cache_dtype")
        # One spelling for one meaning, so that equal requests are equal.
        put("kv_cache_dtype", "auto" if cache_dtype == self.dtype else cache_dtype)
        for name in ("head_size", "num_heads"):
            put(name, _integer(name, given(name)))
        put("v_head_size", self._settled_v_head_size(given("v_head_size"), given("kv_lora_rank")))
        num_kv_heads = given("num_kv_heads")
        put("num_kv_heads", self.num_heads if num_kv_heads is None else _integer("num_kv_heads", num_kv_heads))
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_heads={self.num_heads} is no multiple of num_kv_heads={self.num_kv_heads}", field="num_kv_heads"
            )
        for name in ("block_size", "sliding_window", "max_model_len"):
            if (value := given(name)) is not None:
                put(name, _integer(name, value))
        try:
            put("attention_type", str(AttentionType(str(self.attention_type))))
        except ValueError:
            known = ", ".join(AttentionType)
            raise ConfigError(
                f"attention_type={self.attention_type!r}: known are {known}", field="attention_type"
            ) from None
        if given("causal") is None:
            put("causal", self.attention_type == AttentionType.DECODER)
        for name in ("causal", "sinks", "alibi", "kv_sharing", "batch_invariant"):
            if not isinstance(value := given(name), bool):
                raise ConfigError(f"{name}={value!r}: expected True or False, got {type(value).__name__}", field=name)
        put("soft_cap", _soft_cap(given("soft_cap")))
        self._check_latent()
        put("_hash", hash(tuple([getattr(self, name) for name in FIELD_NAMES])))
        put("_demands", self._find_demands())

    def _settled_v_head_size(self, v_head_size: object, kv_lora_rank: object) -> int:
        if v_head_size is not None:
            return _integer("v_head_size", v_head_size)
        if self.kind == "mla_attention" and kv_lora_rank is not None:
            return _integer("kv_lora_rank", kv_lora_rank)
        return self.head_size

    def _check_latent(self) -> None:
        latent = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim")
        if self.kind == "attention":
            for name in latent:
                if getattr(self, name) is not None:
                    raise ConfigError(
                        f"{name}={getattr(self, name)!r} has a meaning for kind='mla_attention' only", field=name
                    )
            return
        for name in latent[:2]:
            if getattr(self, name) is None:
                raise ConfigError(f"kind='mla_attention' needs {name}", field=name)
        for name in latent:
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _integer(name, value, minimum=0 if name == "qk_rope_head_dim" else 1))
        assembled = (self.kv_lora_rank or 0) + (self.qk_rope_head_dim or 0)
        if self.head_size != assembled:
            raise ConfigError(
                f"head_size={self.head_size}: the latent form has kv_lora_rank + qk_rope_head_dim = {assembled}",
                field="head_size",
            )
        if self.v_head_size != self.kv_lora_rank:
            raise ConfigError(
                f"v_head_size={self.v_head_size}: the latent form has kv_lora_rank = {self.kv_lora_rank}",
                field="v_head_size",
            )
        if self.num_kv_heads != 1:
            if self.num_kv_heads != self.num_heads:
                raise ConfigError(f"num_kv_heads={self.num_kv_heads}: the latent form has one", field="num_kv_heads")
            object.__setattr__(self, "num_kv_heads", 1)

    def _find_demands(self) -> frozenset[str]:
        demands = {name for name, neutral in _NEUTRAL_VALUES.items() if getattr(self, name) != neutral}
        if self.v_head_size != self.head_size:
            demands.add("v_head_size")
        if self.num_kv_heads != self.num_heads:
            demands.add("num_kv_heads")
        if self.causal != (self.attention_type == AttentionType.DECODER):
            demands.add("causal")
        return frozenset(demands)

    def __hash__(self) -> int:
        return self._hash

    @property
    def demands(self) -> frozenset[str]:
        """Names of the fields whose value is not neutral: a backend that does not mention one of them refuses."""
        return self._demands

    @property
    def group_size(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def cache_dtype(self) -> str:
        """The cache's storage dtype, with ``auto`` resolved."""
        return self.dtype if self.kv_cache_dtype == "auto" else self.kv_cache_dtype

    def as_dict(self) -> dict[str, Any]:  # Any: JSON
        """Every field by name."""
        return {name: getattr(self, name) for name in FIELD_NAMES}

    def describe(self) -> str:
        """One line with every field that is not neutral."""
        shown = [f"kind={self.kind}", f"head_size={self.head_size}"]
        if self.v_head_size != self.head_size:
            shown.append(f"v_head_size={self.v_head_size}")
        shown += [f"num_heads={self.num_heads}", f"num_kv_heads={self.num_kv_heads}", f"dtype={self.dtype}"]
        shown += [f"kv_cache_dtype={self.kv_cache_dtype}"]
        for name in ("block_size", "sliding_window", "soft_cap", "max_model_len", *FIELD_NAMES[-3:]):
            if (value := getattr(self, name)) is not None:
                shown.append(f"{name}={value}")
        shown.append(f"attention_type={self.attention_type}")
        if self.causal != (self.attention_type == AttentionType.DECODER):
            shown.append(f"causal={self.causal}")
        shown += [name for name in ("sinks", "alibi", "kv_sharing", "batch_invariant") if getattr(self, name)]
        return ", ".join(shown)

    def __reduce__(self) -> tuple[Any, ...]:  # Any: the pickle protocol's own type
        # The stored hash is of this process: strings hash differently in the next one.
        return _rebuild, (self.as_dict(),)


FIELD_NAMES: Final = tuple(item.name for item in fields(AttentionConfig) if not item.name.startswith("_"))
"""The names of the request's fields, in their order."""

_NEUTRAL_ANYWAY: Final = ("kind", "num_heads", "max_model_len", "qk_nope_head_dim")
_NEUTRAL_BY_RELATION: Final = ("v_head_size", "num_kv_heads", "causal")
# Derived, so that a field which joins later is neutral at its default only. MISSING equals no value: never neutral.
_NEUTRAL_VALUES: Final = {
    item.name: item.default
    for item in fields(AttentionConfig)
    if item.name in FIELD_NAMES and item.name not in _NEUTRAL_ANYWAY + _NEUTRAL_BY_RELATION
}


def _rebuild(values: dict[str, Any]) -> AttentionConfig:
    return AttentionConfig(**values)
