"""What a configuration leaves out because its class has it so.

transformers writes of a nested configuration only what differs from its class (`PretrainedConfig.to_diff_dict`), so
that the head counts of a published Gemma 3 are in no file. The figures are those of the classes in transformers 5.
"""

from __future__ import annotations

from typing import Any, Final

from hardpoint.cli._model_fields import model_type_of


def _row(heads: int, kv_heads: int | None, hidden: int, layers: int, **more: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
    # None: as many as there are heads, however many those are.
    return {
        "num_attention_heads": heads,
        **({} if kv_heads is None else {"num_key_value_heads": kv_heads}),
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        **more,
    }


DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "llama": _row(32, None, 4096, 32),
    "mistral": _row(32, 8, 4096, 32, sliding_window=4096),
    "ministral": _row(32, 8, 4096, 32, sliding_window=4096),
    "mixtral": _row(32, 8, 4096, 32),
    "gemma": _row(16, 16, 3072, 28, head_dim=256),
    "gemma2": _row(8, 4, 2304, 26, head_dim=256, sliding_window=4096, attn_logit_softcapping=50.0),
    "gemma3_text": _row(8, 4, 2304, 26, head_dim=256, sliding_window=4096, max_position_embeddings=131072),
    "gemma3n_text": _row(8, 2, 2048, 35, head_dim=256, sliding_window=512, num_kv_shared_layers=15),
    "gpt_oss": _row(64, 8, 2880, 36, head_dim=64, sliding_window=128),
    "qwen2": _row(32, 32, 4096, 32),
    "qwen2_vl_text": _row(64, 8, 8192, 80),
    "qwen2_5_vl_text": _row(64, 8, 8192, 80),
    "qwen3": _row(32, 32, 4096, 32, head_dim=128),
    "qwen3_moe": _row(32, 4, 2048, 24),
    "qwen3_next": _row(16, 2, 2048, 48, head_dim=256, full_attention_interval=4),
    "llama4_text": _row(40, 8, 5120, 48, head_dim=128, attention_chunk_size=8192, no_rope_layers=[]),
    "mllama_text_model": _row(32, 8, 4096, 40, cross_attention_layers=[3, 8, 13, 18, 23, 28, 33, 38]),
    "phi3": _row(32, None, 3072, 32),
    "cohere2": _row(64, 64, 8192, 40, sliding_window=4096),
    "deepseek_v2": _row(32, 32, 4096, 32, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128),
    "deepseek_v3": _row(
        128, 128, 7168, 61, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
    ),
    "siglip_vision_model": _row(12, None, 768, 12),
    "siglip2_vision_model": _row(12, None, 768, 12),
    "clip_vision_model": _row(12, None, 768, 12),
    "vit": _row(12, None, 768, 12),
    "dinov2": _row(12, None, 768, 12),
    "pixtral": _row(16, None, 1024, 24, head_dim=64),
    "bert": _row(12, None, 768, 12),
    "roberta": _row(12, None, 768, 12),
    "xlm-roberta": _row(12, None, 768, 12),
    "modernbert": _row(12, None, 768, 22, local_attention=128, global_attn_every_n_layers=3),
    "jamba": _row(32, 8, 4096, 32, attn_layer_period=8, attn_layer_offset=4),
    "t5": {"d_model": 512, "d_kv": 64, "num_heads": 8, "num_layers": 6},
}


def with_defaults(data: dict[str, Any]) -> dict[str, Any]:
    """The configuration with what its class adds. One that states a thing under another name keeps its own."""
    model_type = model_type_of(data)
    known = DEFAULTS.get(model_type, {})
    stated = {name: value for name, value in data.items() if value is not None or name == "sliding_window"}
    more = {name: value for name, value in known.items() if name not in stated}
    if "layer_types" in data:
        for name in ("full_attention_interval", "attn_layer_period", "global_attn_every_n_layers"):
            more.pop(name, None)
    return {**data, **more}
