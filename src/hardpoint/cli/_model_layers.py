"""Which layer of a model attends how: the many ways in which configurations say it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hardpoint.cli._model_fields import MAX_LAYERS, FieldError, integer, items, model_type_of, text, unlimited

if TYPE_CHECKING:
    from collections.abc import Mapping

    Json = Any  # what JSON can hold

_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"
_PATTERNS: Final = {"gemma3_text": 6, "gemma3": 6, "gemma3n_text": 5, "cohere2": 4}
"""Every how manieth layer is a full one, where the configuration leaves it to its class."""


def layer_types_of(data: Mapping[str, Json], count: int, attention_type: str) -> list[tuple[str, int | None]]:
    """For each layer its type, and its window where it has one."""
    if attention_type == "encoder_decoder":
        return [(_FULL, None)] * count
    window = unlimited(data, ("sliding_window",))
    both_sides = unlimited(data, ("local_attention",))
    names = _names(data, count, window)
    found: list[tuple[str, int | None]] = []
    for name in names:
        if name in (_SLIDING, "local_attention", "local", "sliding_window"):
            # ModernBERT counts the tokens of both sides together.
            found.append((_SLIDING, both_sides // 2 + 1 if both_sides else window))
        elif name == "gpt_neo_local":
            found.append((_SLIDING, integer(data, ("window_size",)) or 256))
        elif name in ("attention", "global", "full", "hybrid", "*"):
            found.append((_FULL, None))
        else:
            found.append((name, None))
    return found


def _names(data: Mapping[str, Json], count: int, window: int | None) -> list[str]:
    stated = items(data, ("layer_types", "layers_block_type", "block_types"), str, "strings")
    if stated:
        # A pattern that is shorter than the model is repeated, as RecurrentGemma's is.
        return [stated[number % len(stated)] for number in range(count)]
    model_type = model_type_of(data)
    special = _special(data, count, model_type)
    if special is not None:
        return special
    if window is None:
        return [_FULL] * count
    key = "sliding_window_pattern" if data.get("sliding_window_pattern") else "_sliding_window_pattern"
    letters = data.get(key)
    if isinstance(letters, str) and letters:
        return [_FULL if letters[number % len(letters)].upper() == "G" else _SLIDING for number in range(count)]
    if letters is not None and (not isinstance(letters, int) or isinstance(letters, bool) or letters < 0):
        raise FieldError(key, letters, "an integer of 0 or more, or a string of the letters L and G")
    pattern = letters or _PATTERNS.get(model_type, 0)
    if pattern > 1:
        return [_SLIDING if (number + 1) % pattern else _FULL for number in range(count)]
    if model_type in ("gemma2", "gpt_oss"):
        return [_FULL if number % 2 else _SLIDING for number in range(count)]
    if "use_sliding_window" in data or model_type.startswith("qwen2"):
        if data.get("use_sliding_window") is not True:
            return [_FULL] * count
        first = integer(data, ("max_window_layers",), minimum=0) or 0
        return [_SLIDING if number >= first else _FULL for number in range(count)]
    return [_SLIDING] * count


def _special(data: Mapping[str, Json], count: int, model_type: str) -> list[str] | None:
    """Models that say it in a way of their own."""
    across = items(data, ("cross_attention_layers",), int, "integers")
    if across:
        # Llama 3.2's: they attend to the picture alone.
        return ["cross_attention" if number in across else _FULL for number in range(count)]
    hybrid = text(data, ("hybrid_override_pattern",))
    if hybrid:
        if len(hybrid) > MAX_LAYERS:
            raise FieldError("hybrid_override_pattern", hybrid, f"a string of at most {MAX_LAYERS:,} marks")
        return ["attention" if mark == "*" else "mlp" if mark == "-" else "mamba" for mark in hybrid]
    period = integer(data, ("attn_layer_period",), minimum=0)
    if period:
        offset = integer(data, ("attn_layer_offset",), minimum=0) or 0
        return ["attention" if number % period == offset else "mamba" for number in range(count)]
    indices = items(data, ("attn_layer_indices",), int, "integers")
    if indices is not None or data.get("attn_layer_indices") == []:
        places = frozenset(indices or ())
        return ["attention" if number in places else "mamba" for number in range(count)]
    kinds = items(data, ("attn_type_list",), int, "integers")
    if kinds:
        return ["attention" if kinds[number % len(kinds)] else "linear_attention" for number in range(count)]
    every = integer(data, ("full_attention_interval",), minimum=0)
    if every:
        return ["linear_attention" if (number + 1) % every else _FULL for number in range(count)]
    every = integer(data, ("global_attn_every_n_layers",), minimum=0)
    if every and data.get("local_attention") is not None:
        return [_SLIDING if number % every else _FULL for number in range(count)]
    if model_type == "gpt_neo" and data.get("attention_types") is not None:
        return _gpt_neo(data["attention_types"])[:count]
    if data.get("attention_chunk_size") is not None and isinstance(data.get("no_rope_layers"), list):
        marks = items(data, ("no_rope_layers",), int, "integers") or [
            0 if (number + 1) % 4 == 0 else 1 for number in range(count)
        ]
        return ["chunked_attention" if mark else _FULL for mark in marks][:count]
    return None


def _gpt_neo(kinds: Json) -> list[str]:
    """Groups of layers with how often each is repeated: ``[[["global", "local"], 12]]``."""
    names: list[str] = []
    for item in kinds if isinstance(kinds, list) else [None]:
        group, times = item if isinstance(item, list) and len(item) == 2 else ("", 0)
        is_group = isinstance(group, list) and all(name in ("global", "local") for name in group)
        if not is_group or type(times) is not int or not 0 <= times * len(group) <= MAX_LAYERS:
            accepted = "a list of pairs: a list of 'global' and 'local', and how often it is repeated"
            raise FieldError("attention_types", kinds, accepted)
        names += group * times
    return ["gpt_neo_local" if name == "local" else _FULL for name in names]
