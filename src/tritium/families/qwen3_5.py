"""Qwen3.5, its text part: three of four layers are gated delta nets, the fourth is attention with an output gate and RoPE of a quarter
of each head. Ternary-Bonsai-27B."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritium.families.common import QK_NORMS
from tritium.families.description import Attention, DeltaNet, Dense, Description, Layer, Rope
from tritium.families.family import Arch, Config, Family, Parameters, Tiling, Value
from tritium.families.fields import MOST_LAYERS, every, read_count, read_layer_types, read_real, refused
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
            if "mrope_section" in rope:
                fields["mrope_section"] = rope["mrope_section"]
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
        read_count(own, "linear_conv_kernel_dim", 4),
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
    hadamard = read_hadamard(own)
    apart = hadamard is not None and not hadamard.grouped and delta.value_heads != delta.key_heads
    if hadamard is not None and apart and any(name.endswith(f"{OUT}.weight") for name in hadamard.names):
        needed = "true where the output of a delta net is folded: the rotation mixes neighbouring heads"
        raise refused("hadamard_grouped", False, needed)
    return Description(layers, extra_layers=extra, norm_offset=1.0, hadamard=hadamard, trained_int8=False)


def read_keys(value: Value, config: Config) -> dict[str, Any]:
    """Return the sizes of the delta nets, and the kinds of the layers."""
    heads, inner = value("ssm.time_step_rank"), value("ssm.inner_size")
    fields: dict[str, Any] = {}
    extra, blocks = value("nextn_predict_layers"), config.get("num_hidden_layers")
    if isinstance(extra, int) and isinstance(blocks, int):
        fields |= {"mtp_num_hidden_layers": extra, "num_hidden_layers": blocks - extra}
    if isinstance(heads, int) and isinstance(inner, int) and heads > 0:
        fields["linear_value_head_dim"] = inner // heads
    sections = value("rope.dimension_sections")
    if isinstance(sections, list) and "rope_scaling" not in config:
        rope = {k: config[k] for k in ("rope_theta", "partial_rotary_factor") if k in config}
        fields["rope_parameters"] = {
            "rope_type": "default",
            **rope,
            "mrope_section": sections[:3],
            "mrope_interleaved": True,
        }
    pattern = value("attention.recurrent_layers")
    if isinstance(pattern, list):
        own = len(pattern) - (extra if isinstance(extra, int) else 0)
        fields["layer_types"] = [LINEAR if recurrent else FULL for recurrent in pattern[:own]]
    return fields


def write_keys(config: Config) -> dict[str, tuple[str, Any]]:
    """Return what no field of the table says: the size of all value heads, the sections of the RoPE, which llama.cpp needs, and the
    kinds of the layers where they do not follow from a period."""
    layers = read_count(config, "num_hidden_layers")
    heads, size = read_count(config, "linear_num_value_heads", 32), read_count(config, "linear_value_head_dim", 128)
    period = read_count(config, "full_attention_interval", PERIOD)
    types = read_layer_types(config, layers, (LINEAR, FULL), every(period, layers, LINEAR, FULL))
    period = next((n for n in range(1, layers + 2) if types == every(n, layers, LINEAR, FULL)), 0)
    keys: dict[str, tuple[str, Any]] = {
        "ssm.inner_size": ("u32", heads * size),
        "rope.dimension_sections": ("[i32]", [*_sections(config), 0, 0, 0, 0][:4]),
        "full_attention_interval": ("u32", period or PERIOD),
    }
    if not period:
        keys["attention.recurrent_layers"] = ("[bool]", [kind == LINEAR for kind in types])
    return keys


def _sections(config: Config) -> list[int]:
    """Return the pairs of each section of the RoPE, of text alone where a configuration has none."""
    sections = config.get("mrope_section")
    if isinstance(sections, list | tuple) and len(sections) <= 4 and all(type(n) is int and n >= 0 for n in sections):
        return list(sections)
    return [int(read_count(config, "head_dim", 256) * read_real(config, "partial_rotary_factor", 0.25)) // 2]


def tiling(name: str, config: Config) -> Tiling | None:
    """Return the order of value heads, which GGUF stores so that key heads alternate; None where there is one for each key head."""
    stem = name.removesuffix(".weight")
    if stem not in TILED or (stem == OUT and config.get("hadamard_grouped")):
        return None
    counts: list[Any] = [
        config.get(f"linear_{field}")
        for field in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    ]
    if not all(type(n) is int and n > 0 for n in counts):
        return None
    keys, heads, key_dim, value_dim = counts
    if heads % keys or heads == keys:
        return None
    first = 2 * keys * key_dim if stem in CHANNELS else 0
    return Tiling(int(stem == OUT), keys, heads, 1 if stem in SCALARS else value_dim, first)


OUT, CHANNELS = "linear_attn.out_proj", ("linear_attn.in_proj_qkv", "linear_attn.conv1d")
SCALARS = tuple(f"linear_attn.{name}" for name in ("in_proj_a", "in_proj_b", "A_log", "dt_bias"))
TILED = frozenset((OUT, *CHANNELS, *SCALARS, "linear_attn.in_proj_z"))
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
        "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim", "mtp_num_hidden_layers",
    )),
    fixed={"attn_output_gate": (None, True), "mlp_only_layers": (None, []), "mamba_ssm_dtype": (None, "float32")},
    # Of the head for speculation, which is not used; and of positions in pictures: those of text are the same in all sections.
    ignores=frozenset(("mtp_use_dedicated_embeddings", "mrope_section")),
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
    tiling=tiling,
    squeezed=frozenset(("linear_attn.conv1d",)),
    wide=frozenset(("linear_attn.conv1d",)),
    keys={
        "linear_conv_kernel_dim": ("ssm.conv_kernel", "u32"), "linear_key_head_dim": ("ssm.state_size", "u32"),
        "linear_num_key_heads": ("ssm.group_count", "u32"), "linear_num_value_heads": ("ssm.time_step_rank", "u32"),
        "full_attention_interval": ("full_attention_interval", "u32"),
    },
    read_keys=read_keys,
    write_keys=write_keys,
    ignores_keys=frozenset((
        "ssm.inner_size", "rope.dimension_sections", "attention.recurrent_layers", "nextn_predict_layers",
    )),
)  # fmt: skip
