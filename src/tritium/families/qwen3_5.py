"""Qwen3.5, its text part: three of four layers are gated delta nets, the fourth is attention with an output gate and RoPE of a quarter
of each head. Ternary-Bonsai-27B."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritium.families.common import QK_NORMS
from tritium.families.description import Attention, DeltaNet, Dense, Description, Layer, Rope
from tritium.families.family import Arch, Config, Family, Parameters, Value
from tritium.families.fields import MOST_LAYERS, every, read_count, read_flag, read_layer_types, read_real, refused
from tritium.families.hadamard import FIELDS as HADAMARD, read_hadamard

LINEAR, FULL = "linear_attention", "full_attention"
PERIOD = 4  # each fourth layer is attention


def normalise(config: Config) -> dict[str, Any]:
    """Return the text part of a configuration; positions of text are the same in all sections of its RoPE."""
    text = config.get("text_config")
    fields = dict(config)
    if isinstance(text, Mapping):
        fields = {k: v for k, v in config.items() if k not in ("text_config", *VISION)} | dict(text)
    for block in ("rope_parameters", "rope_scaling"):
        rope = fields.get(block)
        if isinstance(rope, Mapping):
            if "partial_rotary_factor" in rope:
                fields["partial_rotary_factor"] = rope["partial_rotary_factor"]
            sections = ("partial_rotary_factor", "mrope_section", "mrope_interleaved")
            fields[block] = {k: v for k, v in rope.items() if k not in sections}
    return fields


def describe(p: Parameters) -> Description:
    """Return a decoder of two kinds of layers."""
    own = dict(p.own)
    period = read_count(own, "full_attention_interval", PERIOD)
    types = read_layer_types(own, p.layers, (LINEAR, FULL), every(period, p.layers, LINEAR, FULL))
    part = read_real(own, "partial_rotary_factor", 0.25)
    dims = int(p.head_dim * part)
    if part > 1 or dims % 2 or not dims:
        raise refused("partial_rotary_factor", part, f"a part of a head of {p.head_dim} that is pairs")
    delta = DeltaNet(
        read_count(own, "linear_num_key_heads", 16), read_count(own, "linear_num_value_heads", 32),
        read_count(own, "linear_key_head_dim", 128), read_count(own, "linear_value_head_dim", 128),
        read_count(own, "linear_conv_kernel_dim", 4), read_flag(own, "linear_heads_tiled"),
    )  # fmt: skip
    if delta.value_heads % delta.key_heads:
        raise refused("linear_num_value_heads", delta.value_heads, f"a multiple of the {delta.key_heads} key heads")
    rope = Rope(p.rope_theta, dims, p.scaling)
    attention = Attention(p.heads, p.kv_heads, p.head_dim, rope, qk_norm=True, gate=True)
    mlp = Dense(p.intermediate_size, p.activation)
    layers = tuple(Layer(attention if kind == FULL else delta, mlp) for kind in types)
    extra = own.get("mtp_num_hidden_layers") or 0
    if isinstance(extra, bool) or not isinstance(extra, int) or not 0 <= extra <= MOST_LAYERS:
        raise refused("mtp_num_hidden_layers", extra, "a number of layers")
    return Description(layers, extra_layers=extra, norm_offset=1.0, hadamard=read_hadamard(own), trained_int8=False)


def read_keys(value: Value, config: Config) -> dict[str, Any]:
    """Return the sizes of the delta nets. GGUF orders their value heads so that key heads alternate."""
    heads, inner = value("ssm.time_step_rank"), value("ssm.inner_size")
    fields: dict[str, Any] = {"linear_heads_tiled": True}
    extra, blocks = value("nextn_predict_layers"), config.get("num_hidden_layers")
    if isinstance(extra, int) and isinstance(blocks, int):
        fields |= {"mtp_num_hidden_layers": extra, "num_hidden_layers": blocks - extra}
    if isinstance(heads, int) and isinstance(inner, int) and heads > 0:
        fields["linear_value_head_dim"] = inner // heads
    pattern = value("attention.recurrent_layers")
    if isinstance(pattern, list):
        own = len(pattern) - (extra if isinstance(extra, int) else 0)
        fields["layer_types"] = [LINEAR if recurrent else FULL for recurrent in pattern[:own]]
    return fields


VISION = (
    "vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id", "language_model_only",
)  # fmt: skip
QWEN3_5 = Family(
    name="qwen3_5",
    model_types=("qwen3_5_text", "qwen3_5"),
    archs=(Arch("qwen35", "qwen3_5_text", "Qwen3_5ForCausalLM", "silu"),),
    describe=describe,
    absent={"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "head_dim": 256, "partial_rotary_factor": 0.25},
    reads=HADAMARD | frozenset((
        "layer_types", "full_attention_interval", "partial_rotary_factor", "linear_num_key_heads", "linear_num_value_heads",
        "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim", "linear_heads_tiled",
        "mtp_num_hidden_layers",
    )),
    fixed={"attn_output_gate": (None, True), "mlp_only_layers": (None, []), "mamba_ssm_dtype": (None, "float32")},
    ignores=frozenset(("mtp_use_dedicated_embeddings",)),  # of the head for speculation, which is not used
    normalise=normalise,
    tensors={
        **QK_NORMS, "post_attention_layernorm": "post_attention_norm", "linear_attn.in_proj_qkv": "attn_qkv",
        "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
        "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
        "linear_attn.dt_bias": "ssm_dt.bias", "linear_attn.A_log": "ssm_a",
    },
    linears=frozenset(("linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.out_proj")),
    skips=("model.visual.", "visual.", "vision_tower.", "mtp.", "model.mtp."),
    norm_offset=1.0,
    plain_norms=frozenset(("linear_attn.norm",)),
    exponents=frozenset(("linear_attn.A_log",)),
    inconvertible="GGUF orders the heads of delta nets differently",
    keys={
        "linear_conv_kernel_dim": ("ssm.conv_kernel", "u32"), "linear_key_head_dim": ("ssm.state_size", "u32"),
        "linear_num_key_heads": ("ssm.group_count", "u32"), "linear_num_value_heads": ("ssm.time_step_rank", "u32"),
        "full_attention_interval": ("full_attention_interval", "u32"),
    },
    read_keys=read_keys,
    ignores_keys=frozenset((
        "ssm.inner_size", "rope.dimension_sections", "attention.recurrent_layers", "nextn_predict_layers",
    )),
)  # fmt: skip
