"""Maple: a mixture of experts with a clamped SwiGLU; windows in three of four layers, and RoPE only there. DeepGrove's 20B-A1B."""

from __future__ import annotations

from typing import Any

from tritium.families.common import QK_NORMS
from tritium.families.description import Attention, Description, Experts, Layer, Rope
from tritium.families.family import Arch, Config, Family, Parameters, Value
from tritium.families.fields import every, read_count, read_flag, read_layer_types, read_real, refused

WINDOW, FULL = "sliding_attention", "full_attention"
CLAMP = 7.0  # in the code of the model, and in no field of its configuration
FACTORS = "mlp.experts.gate_proj", "mlp.experts.up_proj", "mlp.experts.down_proj"


def normalise(config: Config) -> dict[str, Any]:
    """Return a configuration that has an intermediate_size: that of an expert, since no layer has another MLP."""
    fields = dict(config)
    if not fields.get("intermediate_size"):
        fields["intermediate_size"] = fields.get("moe_intermediate_size")
    rope = fields.get("rope_parameters")
    if isinstance(rope, dict) and "partial_rotary_factor" in rope:
        fields["rope_parameters"] = {k: v for k, v in rope.items() if k != "partial_rotary_factor"}
        fields["partial_rotary_factor"] = rope["partial_rotary_factor"]
    return fields


def describe(p: Parameters) -> Description:
    """Return layers with experts; those with a window have RoPE, of a part of each head."""
    own = dict(p.own)
    types = read_layer_types(own, p.layers, (WINDOW, FULL), every(4, p.layers, WINDOW, FULL))
    part = read_real(own, "partial_rotary_factor", 1.0)
    dims = int(p.head_dim * part)
    if part > 1 or dims % 2 or not dims:
        raise refused("partial_rotary_factor", part, f"a part of a head of {p.head_dim} that is pairs")
    rope = Rope(p.rope_theta, dims, p.scaling)
    # The token itself included, as transformers' FlashAttention (window_size is sliding_window - 1 to the left) and llama.cpp have it.
    window = read_count(own, "sliding_window", 512)
    positions = {WINDOW: rope, FULL: None if read_flag(own, "nope_on_global_attention") else rope}
    count, active = read_count(own, "num_experts"), read_count(own, "num_experts_per_tok")
    if active > count:
        raise refused("num_experts_per_tok", active, f"at most the {count} experts")
    experts = Experts(
        count, active, read_count(own, "moe_intermediate_size", p.intermediate_size), p.activation,
        read_real(own, "swiglu_limit", CLAMP), normalise=read_flag(own, "norm_topk_prob", True),
    )  # fmt: skip

    def layer(kind: str) -> Layer:
        limit = window if kind == WINDOW else None
        return Layer(Attention(p.heads, p.kv_heads, p.head_dim, positions[kind], window=limit, qk_norm=True), experts)

    return Description(tuple(layer(kind) for kind in types), trained_int8=False)


def read_keys(value: Value, config: Config) -> dict[str, Any]:
    """Return the windows and the clamp of a GGUF file. Its global layers have no RoPE: llama.cpp knows no others."""
    fields: dict[str, Any] = {"nope_on_global_attention": True}
    pattern, clamp = value("attention.sliding_window_pattern"), value("swiglu_clamp_exp")
    if isinstance(pattern, list):
        fields["layer_types"] = [WINDOW if windowed else FULL for windowed in pattern]
    if isinstance(clamp, list):
        if len(set(clamp)) != 1:
            raise refused("swiglu_clamp_exp", clamp, "the same number for every layer")
        clamp = clamp[0]
    if clamp is not None:
        fields["swiglu_limit"] = clamp
    return fields


def write_keys(config: Config) -> dict[str, tuple[str, Any]]:
    """Return the windows and the clamp, for each layer."""
    layers = read_count(config, "num_hidden_layers")
    types = read_layer_types(config, layers, (WINDOW, FULL), every(4, layers, WINDOW, FULL))
    return {
        "attention.sliding_window_pattern": ("[bool]", [kind == WINDOW for kind in types]),
        "swiglu_clamp_exp": ("[f32]", [read_real(config, "swiglu_limit", CLAMP)] * layers),
    }


MAPLE = Family(
    name="maple",
    model_types=("maple",),
    archs=(Arch("maple", "maple", "MapleForCausalLM", "silu"),),
    describe=describe,
    absent={"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu"},
    reads=frozenset((
        "layer_types", "sliding_window", "partial_rotary_factor", "nope_on_global_attention", "num_experts", "num_experts_per_tok",
        "moe_intermediate_size", "norm_topk_prob", "swiglu_limit",
    )),
    fixed={
        "num_shared_experts": (None, 0), "router_dtype": (None, "fp32", "float32"), "use_qk_norm": (None, True),
        "qk_norm": (None, True),
    },
    ignores=frozenset(("router_aux_loss_coef", "output_router_logits", "router_jitter_noise")),
    normalise=normalise,
    tensors={
        **QK_NORMS, "mlp.gate": "ffn_gate_inp", "mlp.experts.gate_proj": "ffn_gate_exps",
        "mlp.experts.up_proj": "ffn_up_exps", "mlp.experts.down_proj": "ffn_down_exps",
    },
    linears=frozenset(FACTORS),
    stacked=frozenset(FACTORS),
    wide=frozenset(("mlp.gate",)),
    keys={
        "num_experts": ("expert_count", "u32"), "num_experts_per_tok": ("expert_used_count", "u32"),
        "moe_intermediate_size": ("expert_feed_forward_length", "u32"), "sliding_window": ("attention.sliding_window", "u32"),
    },
    read_keys=read_keys,
    write_keys=write_keys,
    ignores_keys=frozenset(("attention.sliding_window_pattern", "swiglu_clamp_exp")),
    fixed_keys={"expert_shared_count": (0,), "expert_gating_func": (1,), "expert_weights_norm": (True,)},
)  # fmt: skip
