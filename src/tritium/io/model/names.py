"""Names in GGUF and in Hugging Face: tensors, configuration keys, architectures, and the order of Q and K rows.

Knows nothing of files or weights. Hugging Face's names are the common ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tritium.escape import visible
from tritium.io import gguf
from tritium.io.model.supported import REMEDY, check_config, check_keys
from tritium.io.reader import fault
from tritium.io.ternary import Array

_MODEL = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.attn_sub_norm": "attn_sub_norm", "mlp.ffn_sub_norm": "ffn_sub_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
_OLD = {"self_attn.inner_attn_ln": "attn_sub_norm", "mlp.ffn_layernorm": "ffn_sub_norm"}  # names used by 1bitLLM
_HF_LAYER = re.compile(r"model\.layers\.(\d{1,5})\.(.+)\.(weight|bias)")
_GGUF_LAYER = re.compile(r"blk\.(\d{1,5})\.(.+)\.(weight|bias)")
_LINEAR = re.compile(r".*\.(?:self_attn\.[qkvo]_proj|mlp\.(?:gate|up|down)_proj)\.weight")


def _swap(
    name: str, layer: re.Pattern[str], outer: Mapping[str, str], inner: Mapping[str, str], form: str
) -> str | None:
    if match := layer.fullmatch(name):
        other = inner.get(match[2])
        return form.format(match[1], other, match[3]) if other else None
    stem, _, kind = name.rpartition(".")
    return f"{outer[stem]}.{kind}" if stem in outer and kind in ("weight", "bias") else None


def to_gguf(name: str) -> str | None:
    """Return GGUF's name: blk.0.attn_q.weight for model.layers.0.self_attn.q_proj.weight; None where there is none."""
    return _swap(name, _HF_LAYER, _MODEL, _LAYER | _OLD, "blk.{}.{}.{}")


def to_hf(name: str) -> str | None:
    """Return Hugging Face's name: model.layers.0.self_attn.q_proj.weight for blk.0.attn_q.weight; None where there is none."""
    back = {v: k for k, v in _LAYER.items()}
    return _swap(name, _GGUF_LAYER, {v: k for k, v in _MODEL.items()}, back, "model.layers.{}.{}.{}")


def common(name: str) -> str:
    """Return the name by which tensors of two files are compared; unknown ones lose .weight, which only packed formats need."""
    return _hf(name) or name.removesuffix(".weight")


def _hf(name: str) -> str | None:
    return to_hf(name) or to_hf(to_gguf(name) or "")


def known(name: str) -> bool:
    """Return True if the name is that of a transformer's tensor, in GGUF or Hugging Face."""
    return to_hf(name) is not None or to_gguf(name) is not None


def is_linear(name: str) -> bool:
    """Return True if a tensor is the weight of a projection, which BitNet models store as ternary."""
    return bool(_LINEAR.fullmatch(_hf(name) or name))


# ---- architectures

MAX_HEADS = 1 << 16


@dataclass(frozen=True)
class Arch:
    """An architecture by its names in GGUF and in Hugging Face."""

    gguf: str
    model_type: str
    model_class: str
    activation: str
    interleaved: bool = False  # Q and K rows are stored in pairs, for interleaved RoPE


ARCHS = {
    a.gguf: a
    for a in (
        Arch("bitnet-b1.58", "bitnet", "BitNetForCausalLM", "relu2"),
        Arch("bitnet-25", "bitnet", "BitNetForCausalLM", "relu2"),
        Arch("bitnet", "bitnet", "BitnetForCausalLM", "silu"),
        Arch("llama", "llama", "LlamaForCausalLM", "silu", interleaved=True),
    )
}


def arch_of(config: Mapping[str, Any]) -> Arch | None:
    """Return the architecture a Hugging Face configuration describes; None where it is not one of ARCHS."""
    kind, act = config.get("model_type"), config.get("hidden_act")
    classes = config.get("architectures")
    first = classes[0] if isinstance(classes, list) and classes else ""
    if kind == "bitnet" or str(first).lower().startswith("bitnet"):
        return ARCHS["bitnet-b1.58" if act == "relu2" else "bitnet"]
    return ARCHS["llama"] if kind == "llama" else None


def interleave(rows: int, heads: int) -> Array:
    """Return the row order of Q and K in `llama` GGUF files: hf[interleave(...)] is GGUF's order."""
    return np.arange(rows).reshape(heads, 2, rows // heads // 2).swapaxes(1, 2).reshape(-1)


def deinterleave(rows: int, heads: int) -> Array:
    """Return the inverse order: gguf[deinterleave(...)] is Hugging Face's order."""
    return np.argsort(interleave(rows, heads))


def heads_of(name: str, rows: int, n_heads: Any, n_kv: Any) -> int:
    """Return the number of heads in the rows of a Q or K projection; 0 for other tensors."""
    name = common(name)
    heads = n_heads if ".q_proj." in name else n_kv if ".k_proj." in name else 0
    if (
        isinstance(heads, bool)
        or not isinstance(heads, int)
        or not 0 <= heads <= MAX_HEADS
        or (heads and rows % (2 * heads))
    ):
        needed = f"an even number of rows for each of at most {MAX_HEADS} heads"
        raise fault(f"tensor {visible(name)!r}", f"{rows} rows for {visible(str(heads))} heads", needed)
    return heads if rows else 0


# ---- configuration

_KEYS = {  # key of config.json: (GGUF's key after the architecture, its type)
    "vocab_size": ("vocab_size", "u32"),
    "max_position_embeddings": ("context_length", "u32"),
    "hidden_size": ("embedding_length", "u32"),
    "num_hidden_layers": ("block_count", "u32"),
    "intermediate_size": ("feed_forward_length", "u32"),
    "num_attention_heads": ("attention.head_count", "u32"),
    "num_key_value_heads": ("attention.head_count_kv", "u32"),
    "rms_norm_eps": ("attention.layer_norm_rms_epsilon", "f32"),
    "rope_theta": ("rope.freq_base", "f32"),
    "head_dim": ("rope.dimension_count", "u32"),
}


def config_to_gguf(config: Mapping[str, Any], arch: Arch) -> dict[str, bytes]:
    """Return the metadata values, as bytes, for a configuration. Raise for what has no key here: scaled RoPE, and every field
    that changes the results or is unknown."""
    check_config(config)
    rope = config.get("rope_parameters")
    rope = rope if isinstance(rope, dict) else {}
    scaling = config.get("rope_scaling") or (rope if rope.get("rope_type", "default") != "default" else None)
    if scaling:
        remedy = "Scaled RoPE cannot be written to GGUF; keep the model as safetensors."
        raise fault("config.json", f"rope_scaling {visible(str(scaling))}", "none", remedy)
    known = dict(config)
    known.setdefault("rope_theta", rope.get("rope_theta", 10000.0))
    known.setdefault("num_key_value_heads", known.get("num_attention_heads"))
    hidden_size, heads = known.get("hidden_size"), known.get("num_attention_heads")
    if not known.get("head_dim") and isinstance(hidden_size, int) and isinstance(heads, int) and heads > 0:
        known["head_dim"] = hidden_size // heads
    out = {}
    for key, (name, kind) in _KEYS.items():
        value = known.get(key)
        if value is None:
            continue
        most = 2**32 - 1 if kind == "u32" else 3e38
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
            raise fault("config.json", f"{key} = {visible(repr(value))}", f"a number from 0 to {most:g}")
        out[f"{arch.gguf}.{name}"] = gguf.number(kind, int(value) if kind == "u32" else float(value))
    return out


def config_from_gguf(metadata: Mapping[str, Any], arch: Arch, tied: bool) -> dict[str, Any]:
    """Return a Hugging Face configuration from the metadata of a GGUF file; raise for an unknown key, by name."""
    check_keys(metadata, arch.gguf)
    config: dict[str, Any] = {
        "architectures": [arch.model_class],
        "model_type": arch.model_type,
        "hidden_act": arch.activation,
        "tie_word_embeddings": tied,
    }
    for key, (name, kind) in _KEYS.items():
        value = gguf.scalar(metadata, f"{arch.gguf}.{name}")
        if isinstance(value, int | float):
            # fp32 keys: 1e-05 is 9.999999747e-06 in the file; write the shortest number with the same fp32 value
            config[key] = value if kind == "u32" else float(str(np.float32(value)))
    for key in ("bos", "eos"):
        token = gguf.scalar(metadata, f"tokenizer.ggml.{key}_token_id")
        if isinstance(token, int):
            config[f"{key}_token_id"] = token
    return config | _rope_from_gguf(metadata, arch.gguf, config.get("head_dim"))


def _rope_from_gguf(metadata: Mapping[str, Any], arch: str, head_dim: Any) -> dict[str, Any]:
    """Return the RoPE fields of a GGUF file beyond _KEYS; its defaults are not those of Hugging Face."""

    def value(key: str) -> Any:
        return gguf.scalar(metadata, f"{arch}.{key}")

    for key in ("attention.key_length", "attention.value_length"):
        if value(key) is not None and head_dim is not None and value(key) != head_dim:
            needed = f"{head_dim}, as rope.dimension_count"
            raise fault(f"GGUF metadata, {arch}.{key}", visible(repr(value(key))), needed, REMEDY)
    rope: dict[str, Any] = {"rope_theta": 10000.0} if value("rope.freq_base") is None else {}
    if value("rope.scaling.type") == "linear":
        rope["rope_scaling"] = {"rope_type": "linear", "factor": value("rope.scaling.factor")}
    return rope
