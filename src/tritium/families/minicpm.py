"""MiniCPM: a Llama whose embeddings, residuals and logits have multipliers, with LongRoPE. BitCPM-CANN 0.5B to 8B."""

from __future__ import annotations

import math
from typing import Any

from tritium.families.description import Attention, Dense, Description, Layer, Rope
from tritium.families.family import Arch, Config, Family, Parameters, Value
from tritium.families.fields import read_real

EMBEDDING, DEPTH, BASE = 12.0, 1.4, 256.0  # of the first models, whose files leave them out


def describe(p: Parameters) -> Description:
    """Return a Llama with multipliers."""
    own = dict(p.own)
    rope = Rope(p.rope_theta, p.head_dim, p.scaling)
    layer = Layer(Attention(p.heads, p.kv_heads, p.head_dim, rope), Dense(p.intermediate_size, p.activation))
    return Description(
        (layer,) * p.layers,
        embedding_multiplier=read_real(own, "scale_emb", EMBEDDING),
        residual_multiplier=read_real(own, "scale_depth", DEPTH) / math.sqrt(p.layers),
        logits_multiplier=read_real(own, "dim_model_base", BASE) / p.hidden_size,
        trained_int8=False,
    )


def read_keys(value: Value, config: Config) -> dict[str, Any]:
    """Return the multipliers as config.json has them; GGUF has what they amount to."""
    depth, logits = value("residual_scale"), value("logit_scale")
    layers, hidden_size = config.get("num_hidden_layers"), config.get("hidden_size")
    fields: dict[str, Any] = {}
    if depth and isinstance(depth, float) and isinstance(layers, int) and layers > 0:
        fields["scale_depth"] = float(f"{depth * math.sqrt(layers):.6g}")
    if logits and isinstance(logits, float) and isinstance(hidden_size, int):
        fields["dim_model_base"] = float(f"{hidden_size / logits:.6g}")
    return fields


def write_keys(config: Config) -> dict[str, tuple[str, Any]]:
    """Return what the multipliers of a configuration amount to."""
    depth, base = read_real(config, "scale_depth", DEPTH), read_real(config, "dim_model_base", BASE)
    layers, hidden_size = read_real(config, "num_hidden_layers", 0), read_real(config, "hidden_size", 0)
    return {
        "embedding_scale": ("f32", read_real(config, "scale_emb", EMBEDDING)),
        "residual_scale": ("f32", depth / math.sqrt(layers)),
        "logit_scale": ("f32", hidden_size / base),
    }


MINICPM = Family(
    name="minicpm",
    model_types=("minicpm",),
    archs=(Arch("minicpm", "minicpm", "MiniCPMForCausalLM", "silu", interleaved=True),),
    describe=describe,
    absent={"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": True},
    reads=frozenset(("scale_emb", "scale_depth", "dim_model_base")),
    fixed={"num_experts": (None, 0)},
    ignores=frozenset(("mup_denominator",)),  # of a draft model's training
    keys={"scale_emb": ("embedding_scale", "f32")},
    read_keys=read_keys,
    write_keys=write_keys,
    ignores_keys=frozenset(("residual_scale", "logit_scale")),
)
