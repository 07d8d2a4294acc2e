"""Which layer of a model attends how: the many ways in which configurations say it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

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
    window = data.get("sliding_window")
    window = window if isinstance(window, int) and not isinstance(window, bool) and window > 0 else None
    names = _names(data, count, window)
    found: list[tuple[str, int | None]] = []
    for name in names:
        if name in (_SLIDING, "local_attention", "local", "sliding_window"):
            both_sides = data.get("local_attention")
            # ModernBERT counts the tokens of both sides together.
            found.append((_SLIDING, both_sides // 2 + 1 if isinstance(both_sides, int) else window))
        elif name == "gpt_neo_local":
            found.append((_SLIDING, int(data.get("window_size", 256))))
        elif name in ("attention", "global", "full", "hybrid", "*"):
            found.append((_FULL, None))
        else:
            found.append((name, None))
    return found


def _names(data: Mapping[str, Json], count: int, window: int | None) -> list[str]:
    stated = data.get("layer_types") or data.get("layers_block_type") or data.get("block_types")
    if isinstance(stated, list) and stated:
        # A pattern that is shorter than the model is repeated, as RecurrentGemma's is.
        return [str(stated[number % len(stated)]) for number in range(count)]
    model_type = str(data.get("model_type", "")).lower()
    special = _special(data, count, model_type)
    if special is not None:
        return special
    if window is None:
        return [_FULL] * count
    pattern = data.get("sliding_window_pattern") or data.get("_sliding_window_pattern") or _PATTERNS.get(model_type)
    if isinstance(pattern, str) and pattern:
        return [_FULL if pattern[number % len(pattern)].upper() == "G" else _SLIDING for number in range(count)]
    if isinstance(pattern, int) and pattern > 1:
        return [_SLIDING if (number + 1) % pattern else _FULL for number in range(count)]
    if model_type in ("gemma2", "gpt_oss"):
        return [_FULL if number % 2 else _SLIDING for number in range(count)]
    if "use_sliding_window" in data or model_type.startswith("qwen2"):
        if data.get("use_sliding_window") is not True:
            return [_FULL] * count
        first = data.get("max_window_layers")
        first = first if isinstance(first, int) else 0
        return [_SLIDING if number >= first else _FULL for number in range(count)]
    return [_SLIDING] * count


def _special(data: Mapping[str, Json], count: int, model_type: str) -> list[str] | None:
    """Models that say it in a way of their own."""
    hybrid = data.get("hybrid_override_pattern")
    if isinstance(hybrid, str) and hybrid:
        return ["attention" if mark == "*" else "mlp" if mark == "-" else "mamba" for mark in hybrid]
    period = data.get("attn_layer_period")
    if isinstance(period, int) and period > 0:
        offset = data.get("attn_layer_offset") or 0
        return ["attention" if number % period == offset else "mamba" for number in range(count)]
    indices = data.get("attn_layer_indices")
    if isinstance(indices, list):
        return ["attention" if number in indices else "mamba" for number in range(count)]
    kinds = data.get("attn_type_list")
    if isinstance(kinds, list) and kinds:
        return ["attention" if kinds[number % len(kinds)] else "linear_attention" for number in range(count)]
    every = data.get("full_attention_interval")
    if isinstance(every, int) and every > 0:
        return ["linear_attention" if (number + 1) % every else _FULL for number in range(count)]
    every = data.get("global_attn_every_n_layers")
    if isinstance(every, int) and every > 0 and isinstance(data.get("local_attention"), int):
        return [_SLIDING if number % every else _FULL for number in range(count)]
    kinds = data.get("attention_types")
    if model_type == "gpt_neo" and isinstance(kinds, list):
        names = [name for group, times in kinds for _ in range(times) for name in group]
        return ["gpt_neo_local" if name == "local" else _FULL for name in names][:count]
    if isinstance(data.get("attention_chunk_size"), int) and isinstance(data.get("no_rope_layers"), list):
        marks = data["no_rope_layers"] or [0 if (number + 1) % 4 == 0 else 1 for number in range(count)]
        return ["chunked_attention" if mark else _FULL for mark in marks][:count]
    return None
