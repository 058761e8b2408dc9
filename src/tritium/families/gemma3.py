"""Gemma 3, its text part: norms before and after attention and MLP, windows in five of six layers with a RoPE of their own.
BitNet-embedding 270M, which has a norm before each projection as well."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tritium.families.common import PROJECTION_NORMS, QK_NORMS
from tritium.families.description import Attention, Dense, Description, Layer, Norms, Rope
from tritium.families.family import Arch, Config, Family, Parameters, Value
from tritium.families.fields import every, read_count, read_flag, read_layer_types, read_real, refused

WINDOW, FULL = "sliding_attention", "full_attention"
NORMS = Norms("input_layernorm", "pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm")
PERIOD = 6  # each sixth layer sees all positions


def normalise(config: Config) -> dict[str, Any]:
    """Return the text part of a configuration, its two kinds of RoPE in fields of their own."""
    text = config.get("text_config")
    fields = dict(config)
    if isinstance(text, Mapping):
        fields = {k: v for k, v in config.items() if k not in ("text_config", *VISION)} | dict(text)
    if "hidden_activation" in fields:
        fields["hidden_act"] = fields.pop("hidden_activation")
    rope = fields.get("rope_parameters")
    if isinstance(rope, Mapping) and {WINDOW, FULL} & set(rope):
        del fields["rope_parameters"]
        local, whole = rope.get(WINDOW) or {}, rope.get(FULL) or {}
        if not isinstance(local, Mapping) or not isinstance(whole, Mapping) or set(rope) - {WINDOW, FULL}:
            raise refused("rope_parameters", rope, f"objects for {WINDOW} and {FULL}")
        if local.get("rope_type", "default") != "default":
            raise refused(f"rope_parameters.{WINDOW}", dict(local), "plain RoPE")
        fields["rope_parameters"] = dict(whole)
        if "rope_theta" in local:
            fields["rope_local_base_freq"] = local["rope_theta"]
    return fields


def describe(p: Parameters) -> Description:
    """Return layers with four norms; those with a window have the local RoPE."""
    own = dict(p.own)
    period = read_count(own, "sliding_window_pattern", PERIOD)
    types = read_layer_types(own, p.layers, (WINDOW, FULL), every(period, p.layers, WINDOW, FULL))
    ropes = {
        WINDOW: Rope(read_real(own, "rope_local_base_freq", 10000.0), p.head_dim),
        FULL: Rope(p.rope_theta, p.head_dim, p.scaling),
    }
    scale = read_real(own, "query_pre_attn_scalar", 256) ** -0.5
    window = read_count(own, "sliding_window", 4096) if WINDOW in types else None

    def layer(kind: str) -> Layer:
        limit = window if kind == WINDOW else None
        attention = Attention(p.heads, p.kv_heads, p.head_dim, ropes[kind], scale, limit, qk_norm=True)
        return Layer(attention, Dense(p.intermediate_size, p.activation), NORMS)

    norms = read_flag(own, "projection_norms")
    return Description(
        tuple(layer(kind) for kind in types), embedding_multiplier=math.sqrt(p.hidden_size), norm_offset=1.0,
        projection_norms=norms, trained_int8=norms,
    )  # fmt: skip


def read_keys(value: Value, config: Config) -> dict[str, Any]:
    """Return the windows of a GGUF file and the scale of its scores, which no key says: llama.cpp knows it by the model's size."""
    heads, hidden_size, head_dim = (config.get(k) for k in ("num_attention_heads", "hidden_size", "head_dim"))
    fields: dict[str, Any] = {"query_pre_attn_scalar": head_dim}
    if config.get("num_hidden_layers") == 62 and isinstance(heads, int) and isinstance(hidden_size, int) and heads > 0:
        fields["query_pre_attn_scalar"] = hidden_size // heads
    pattern, layers = value("attention.sliding_window_pattern"), config.get("num_hidden_layers")
    if isinstance(pattern, list):
        fields["layer_types"] = [WINDOW if windowed else FULL for windowed in pattern]
    elif pattern is not None:
        fields["sliding_window_pattern"] = pattern
    if not value("attention.sliding_window") and isinstance(layers, int):
        fields["layer_types"] = [FULL] * min(layers, 1 << 12)
    return fields


def write_keys(config: Config) -> dict[str, tuple[str, Any]]:
    """Return the windows; raise for what llama.cpp has no key for: other patterns, and another scale of the scores than a head's."""
    layers, head_dim = read_count(config, "num_hidden_layers"), read_count(config, "head_dim")
    period = read_count(config, "sliding_window_pattern", PERIOD)
    types = read_layer_types(config, layers, (WINDOW, FULL), every(period, layers, WINDOW, FULL))
    period = next((n for n in range(1, layers + 2) if types == every(n, layers, WINDOW, FULL)), 0)
    if not period:
        raise refused("layer_types", list(types), "each n-th layer without a window", "Keep the model as safetensors.")
    if read_real(config, "query_pre_attn_scalar", 256) != head_dim:
        scale = config.get("query_pre_attn_scalar")
        raise refused("query_pre_attn_scalar", scale, f"{head_dim}, as a head has", "Keep the model as safetensors.")
    return {"attention.sliding_window_pattern": ("u32", period)}


VISION = (
    "vision_config", "image_token_index", "boi_token_index", "eoi_token_index", "mm_tokens_per_image", "image_token_id",
)  # fmt: skip
GEMMA3 = Family(
    name="gemma3",
    model_types=("gemma3_text", "gemma3"),
    archs=(Arch("gemma3", "gemma3_text", "Gemma3ForCausalLM", "gelu_pytorch_tanh"),),
    describe=describe,
    absent={
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "gelu_pytorch_tanh", "head_dim": 256, "tie_word_embeddings": True,
        "max_position_embeddings": 131072, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262208,
    },
    reads=frozenset((
        "layer_types", "sliding_window", "sliding_window_pattern", "query_pre_attn_scalar", "rope_local_base_freq", "projection_norms",
    )),
    fixed={"use_bidirectional_attention": (None, False)},
    ignores=frozenset(("_sliding_window_pattern", "cache_implementation")),
    normalise=normalise,
    tensors={
        **QK_NORMS, **PROJECTION_NORMS, "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
    },
    skips=("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."),
    norm_offset=1.0,
    plain_norms=frozenset(PROJECTION_NORMS),
    keys={"sliding_window": ("attention.sliding_window", "u32"), "rope_local_base_freq": ("rope.freq_base_swa", "f32")},
    read_keys=read_keys,
    write_keys=write_keys,
    ignores_keys=frozenset(("attention.sliding_window_pattern",)),
)  # fmt: skip
