"""Names in GGUF and in Hugging Face: tensors, configuration keys, architectures, and the order of Q and K rows.

Hugging Face's names are the common ones. What distinguishes families is in `tritium.families`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from tritium.escape import visible
from tritium.families import ARCHS, BY_ARCH, BY_TYPE, FAMILIES, Arch
from tritium.families.common import KEYS, LAYER, LINEARS, MODEL, WRAPPERS, check_config
from tritium.families.family import no_tiling
from tritium.families.fields import MOST_LAYERS, REMEDY
from tritium.families.rope import kind_of
from tritium.io import gguf
from tritium.io.model.supported import check_keys, hadamard_fields
from tritium.io.reader import fault
from tritium.io.ternary import Array

__all__ = ["ARCHS", "Arch"]

_HF_LAYER = re.compile(r"model\.layers\.(\d{1,5})\.(.+)")
_GGUF_LAYER = re.compile(r"blk\.(\d{1,5})\.(.+)")
_EXPERT = re.compile(r"mlp\.experts\.\d{1,5}\.")
_OUTER = tuple(outer for outer, _ in WRAPPERS)
KINDS = ("weight", "bias")


@dataclass(frozen=True)
class _Names:
    """The names of one architecture's tensors, both ways: those of the model, and those within a layer."""

    gguf: Mapping[str, str]
    hf: Mapping[str, str]
    gguf_layer: Mapping[str, str]
    hf_layer: Mapping[str, str]


@cache
def _names(arch: Arch | None) -> _Names:
    """Return the names of an architecture; without one, those of all families where they do not contradict each other."""
    families = [BY_ARCH[arch.gguf]] if arch is not None else list(FAMILIES.values())
    layer: dict[str, str] = {}
    former: dict[str, str] = {}
    for family in families:
        layer = dict(family.tensors) | layer
        former |= family.former
    layer = LAYER | layer if arch is not None else layer | LAYER
    back = {v: k for k, v in reversed(layer.items())} | ({v: k for k, v in LAYER.items()} if arch is None else {})
    return _Names(MODEL, {v: k for k, v in MODEL.items()}, layer | former, back)


def _swap(
    name: str, layer: re.Pattern[str], outer: Mapping[str, str], inner: Mapping[str, str], form: str
) -> str | None:
    if match := layer.fullmatch(name):
        if match[2] in inner:  # a name without .weight or .bias
            return form.format(match[1], inner[match[2]])
        stem, _, kind = match[2].rpartition(".")
        return form.format(match[1], f"{inner[stem]}.{kind}") if stem in inner and kind in KINDS else None
    stem, _, kind = name.rpartition(".")
    return f"{outer[stem]}.{kind}" if stem in outer and kind in KINDS else None


def unwrapped(name: str) -> str:
    """Return Hugging Face's name of a decoder's tensor without the name of a model around the decoder."""
    if not name.startswith(_OUTER):
        return name
    return next(inner + name.removeprefix(outer) for outer, inner in WRAPPERS if name.startswith(outer))


def to_gguf(name: str, arch: Arch | None = None) -> str | None:
    """Return GGUF's name: blk.0.attn_q.weight for model.layers.0.self_attn.q_proj.weight; None where there is none."""
    names = _names(arch)
    return _swap(unwrapped(name), _HF_LAYER, names.gguf, names.gguf_layer, "blk.{}.{}")


def to_hf(name: str, arch: Arch | None = None) -> str | None:
    """Return Hugging Face's name: model.layers.0.self_attn.q_proj.weight for blk.0.attn_q.weight; None where there is none."""
    names = _names(arch)
    return _swap(name, _GGUF_LAYER, names.hf, names.hf_layer, "model.layers.{}.{}")


def common(name: str, arch: Arch | None = None) -> str:
    """Return the name by which tensors of two files are compared; unknown ones lose .weight, which only packed formats need."""
    inner = unwrapped(name)
    if _EXPERT.search(inner):
        return inner
    return _hf(name, arch) or inner.removesuffix(".weight")


def _hf(name: str, arch: Arch | None = None) -> str | None:
    return to_hf(name, arch) or to_hf(to_gguf(name, arch) or "", arch)


def known(name: str, arch: Arch | None = None) -> bool:
    """Return True if the name is that of a transformer's tensor, in GGUF or Hugging Face."""
    return to_hf(name, arch) is not None or to_gguf(name, arch) is not None


def is_linear(name: str, arch: Arch | None = None) -> bool:
    """Return True if a tensor is the weight of a projection, which BitNet models store as ternary."""
    match = _HF_LAYER.fullmatch(_EXPERT.sub("mlp.experts.", common(name, arch)))
    return match is not None and match[2].removesuffix(".weight") in _linears() and match[2].endswith(".weight")


@lru_cache(maxsize=1)
def _linears() -> frozenset[str]:
    return LINEARS.union(*(family.linears for family in FAMILIES.values()))


# ---- architectures

MAX_HEADS = 1 << 16


def arch_of(config: Mapping[str, Any]) -> Arch | None:
    """Return the architecture a Hugging Face configuration describes; None where it is not one of ARCHS."""
    kind, classes = config.get("model_type"), config.get("architectures")
    first = classes[0] if isinstance(classes, list) and classes else ""
    family = BY_TYPE.get(kind) if isinstance(kind, str) else None
    if str(first).lower().startswith("bitnet"):  # 1bitLLM's say that their model_type is llama
        family = FAMILIES["bitnet"]
    return family.arch(config.get("hidden_act")) if family is not None else None


def interleave(rows: int, heads: int) -> Array:
    """Return the row order of Q and K in `llama` GGUF files: hf[interleave(...)] is GGUF's order."""
    return np.arange(rows).reshape(heads, 2, rows // heads // 2).swapaxes(1, 2).reshape(-1)


def deinterleave(rows: int, heads: int) -> Array:
    """Return the inverse order: gguf[deinterleave(...)] is Hugging Face's order."""
    return np.argsort(interleave(rows, heads))


def head_order(name: str, shape: tuple[int, ...], config: Mapping[str, Any], arch: Arch | None) -> tuple[Any, Any]:
    """Return the orders of rows and of columns by which Hugging Face's tensor becomes GGUF's: gguf = hf[rows][:, columns]; None
    for each that is the same, or whose sizes do not fit."""
    inside = _HF_LAYER.fullmatch(common(name, arch)) if arch is not None else None
    tiling = BY_ARCH[arch.gguf].tiling(inside[2], config) if inside is not None and arch is not None else None
    length = tiling.first + tiling.heads * tiling.size if tiling is not None else 0
    if tiling is None or len(shape) <= tiling.axis or shape[tiling.axis] != length:
        return None, None
    heads = np.arange(length - tiling.first).reshape(tiling.groups, -1, tiling.size).swapaxes(0, 1).reshape(-1)
    order = np.concatenate([np.arange(tiling.first), tiling.first + heads])
    return (None, order) if tiling.axis else (order, None)


def sizes_of_heads(metadata: Mapping[str, Any], arch: Arch | None) -> dict[str, Any]:
    """Return the fields of a GGUF file by which `head_order` knows its heads; {} where its weights keep Hugging Face's order."""
    if arch is None or BY_ARCH[arch.gguf].tiling is no_tiling:
        return {}
    family = BY_ARCH[arch.gguf]

    def value(key: str) -> Any:
        return _value(metadata, f"{arch.gguf}.{key}")

    fields = {field: value(key) for field, (key, _) in family.keys.items()} | family.read_keys(value, {})
    return fields | {k: v for k, v in hadamard_fields(metadata, arch.gguf).items() if k == "hadamard_grouped"}


def is_squeezed(name: str, arch: Arch | None) -> bool:
    """Return True if GGUF leaves out sides of 1 of a tensor."""
    return arch is not None and _stem(name, arch) in BY_ARCH[arch.gguf].squeezed


def is_wide(name: str, arch: Arch | None) -> bool:
    """Return True if GGUF's engines need a tensor as F32: vectors, and some matrices."""
    return arch is not None and _stem(name, arch) in BY_ARCH[arch.gguf].wide


def _stem(name: str, arch: Arch) -> str:
    """Return the name of a tensor within its layer; "" for others."""
    inside = _HF_LAYER.fullmatch(common(name, arch))
    return inside[2].removesuffix(".weight") if inside is not None else ""


def heads_of(name: str, rows: int, n_heads: Any, n_kv: Any) -> int:
    """Return the number of heads in the rows of a Q or K projection; 0 for other tensors."""
    name = common(name)
    heads = n_heads if name.endswith(".q_proj.weight") else n_kv if name.endswith(".k_proj.weight") else 0
    if (
        isinstance(heads, bool)
        or not isinstance(heads, int)
        or not 0 <= heads <= MAX_HEADS
        or (heads and rows % (2 * heads))
    ):
        needed = f"an even number of rows for each of at most {MAX_HEADS} heads"
        raise fault(f"tensor {visible(name)!r}", f"{rows} rows for {visible(str(heads))} heads", needed)
    return heads if rows else 0


def norm_shift(name: str, arch: Arch | None) -> float:
    """Return GGUF's weight of a norm less Hugging Face's, whose files of some families leave out the 1 that is added to it."""
    if arch is None or not (family := BY_ARCH[arch.gguf]).norm_offset:
        return 0.0
    inside = _HF_LAYER.fullmatch(common(name, arch))
    stem = (inside[2] if inside else common(name, arch)).removesuffix(".weight")
    return family.norm_offset if stem.endswith("norm") and stem not in family.plain_norms else 0.0


def has_raw_norms(tensors: Iterable[str]) -> bool:
    """Return True if a GGUF file has norms as Hugging Face stores them: those with a norm before each projection, which only
    Microsoft's converter of embedding models writes, and it adds nothing to a norm."""
    return any(name.endswith(("_norm_in.weight", "_proj.norm.weight")) for name in tensors)


def is_exponent(name: str, arch: Arch | None) -> bool:
    """Return True if GGUF stores -exp(x) of a tensor x."""
    inside = _HF_LAYER.fullmatch(common(name, arch)) if arch is not None else None
    return inside is not None and arch is not None and inside[2] in BY_ARCH[arch.gguf].exponents


# ---- configuration


def config_to_gguf(config: Mapping[str, Any], arch: Arch) -> dict[str, bytes]:
    """Return the metadata values, as bytes, for a configuration. Raise for what has no key here: RoPE scaled by factors, and every
    field that changes the results or is unknown."""
    family = BY_ARCH[arch.gguf]
    config = family.normalise(config)
    check_config(config, family)
    rope = config.get("rope_parameters")
    rope = rope if isinstance(rope, dict) else {}
    complete = {k: v for k, v in family.absent.items() if k != "hidden_act"} | {
        k: v for k, v in config.items() if v is not None
    }
    if config.get("rope_theta") is None and rope.get("rope_theta") is not None:
        complete["rope_theta"] = rope["rope_theta"]
    complete.setdefault("num_key_value_heads", complete.get("num_attention_heads"))
    values = {name: (kind, complete.get(key)) for key, (name, kind) in (KEYS | dict(family.keys)).items()}
    values |= _head_to_gguf(complete) | _rope_to_gguf(config.get("rope_scaling") or rope) | family.write_keys(complete)
    return {
        f"{arch.gguf}.{name}": _encoded(name, kind, value)
        for name, (kind, value) in values.items()
        if value is not None
    }


def _encoded(name: str, kind: str, value: Any) -> bytes:
    """Return a metadata value; `kind` is u32, f32, bool, str or a list of one of them, such as [bool]."""
    if kind == "str":
        return gguf.string(value)
    if kind.startswith("["):
        return gguf.array(kind[1:-1], value)
    most = 2**32 - 1 if kind == "u32" else 3e38
    if kind != "bool" and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most):
        raise fault("config.json", f"{name} = {visible(repr(value))}", f"a number from 0 to {most:g}")
    return gguf.number(kind, value if kind == "bool" else int(value) if kind == "u32" else float(value))


def _head_to_gguf(config: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return the keys of a head's size: how much of it is rotated, and the whole where neither that nor hidden_size implies it."""
    hidden_size, heads, head_dim = (config.get(k) for k in ("hidden_size", "num_attention_heads", "head_dim"))
    implied = hidden_size // heads if isinstance(hidden_size, int) and isinstance(heads, int) and heads > 0 else None
    head_dim = head_dim or implied
    part = config.get("partial_rotary_factor") or 1.0
    if not isinstance(head_dim, int) or not isinstance(part, int | float) or not 0 < part <= 1:
        return {}
    if not 0 < head_dim < 1 << 32:
        return {"rope.dimension_count": ("u32", head_dim)}  # which is refused by its name
    whole = (
        {}
        if head_dim == implied and part == 1
        else dict.fromkeys(("attention.key_length", "attention.value_length"), ("u32", head_dim))
    )
    return {"rope.dimension_count": ("u32", int(head_dim * part))} | whole


def _rope_to_gguf(scaling: Any) -> dict[str, tuple[str, Any]]:
    """Return the keys of scaled RoPE; raise for kinds that GGUF stores as tensors."""
    kind = kind_of(scaling or {})
    if kind == "default":
        return {}
    if kind not in ("linear", "yarn"):
        remedy = (
            "RoPE that is scaled by a factor for each pair cannot be written to GGUF; keep the model as safetensors."
        )
        raise fault("config.json", f"rope_scaling {visible(str(scaling))}", "none, linear or yarn", remedy)
    names = {
        "factor": "factor", "original_max_position_embeddings": "original_context_length", "beta_fast": "yarn_beta_fast",
        "beta_slow": "yarn_beta_slow", "attention_factor": "yarn_attn_factor",
    }  # fmt: skip
    keys = {f"rope.scaling.{key}": ("f32", scaling.get(name)) for name, key in names.items()}
    original = scaling.get("original_max_position_embeddings")
    return keys | {"rope.scaling.type": ("str", kind), "rope.scaling.original_context_length": ("u32", original)}


def config_from_gguf(metadata: Mapping[str, Any], arch: Arch, tied: bool) -> dict[str, Any]:
    """Return a Hugging Face configuration from the metadata of a GGUF file; raise for an unknown key, by name."""
    check_keys(metadata, arch.gguf)
    family = BY_ARCH[arch.gguf]
    config: dict[str, Any] = {
        "architectures": [arch.model_class],
        "model_type": arch.model_type,
        "hidden_act": arch.activation,
        "tie_word_embeddings": tied,
    }

    def value(key: str) -> Any:
        return _value(metadata, f"{arch.gguf}.{key}")

    for name, (key, kind) in (KEYS | dict(family.keys)).items():
        if isinstance(value(key), int | float):
            # fp32 keys: 1e-05 is 9.999999747e-06 in the file; write the shortest number with the same fp32 value
            config[name] = value(key) if kind == "u32" else _shortest(value(key))
    for key in ("bos", "eos"):
        token = gguf.scalar(metadata, f"tokenizer.ggml.{key}_token_id")
        if isinstance(token, int):
            config[f"{key}_token_id"] = token
    config |= _head_from_gguf(value, arch.gguf) | _rope_from_gguf(value, arch.gguf)
    rotation = hadamard_fields(metadata, arch.gguf)
    if rotation:
        rotation["hadamard_names"] = [common(name, arch) for name in rotation["hadamard_names"]]
    return config | family.read_keys(value, config) | rotation


def _shortest(value: float) -> float:
    return float(str(np.float32(value)))


def _value(metadata: Mapping[str, Any], key: str) -> Any:
    """Return a number, a string, or a list of at most as many items as a model may have layers; None for all else."""
    if isinstance(metadata, gguf.Metadata):
        stored = metadata.values_by_key.get(key)
        if (
            stored is not None
            and stored.kind == gguf.ARRAY
            and stored.item != gguf.STRING
            and stored.count <= MOST_LAYERS
        ):
            return stored.read()
        return gguf.scalar(metadata, key)
    value = metadata.get(key)
    return value if not isinstance(value, list) or len(value) <= MOST_LAYERS else None


def _head_from_gguf(value: Any, arch: str) -> dict[str, Any]:
    """Return the size of a head, and how much of it is rotated where that is not all."""
    rotated, key_length, value_length = (
        value(k) for k in ("rope.dimension_count", "attention.key_length", "attention.value_length")
    )
    head_dim = rotated if key_length is None else key_length
    if value_length is not None and head_dim is not None and value_length != head_dim:
        raise fault(
            f"GGUF metadata, {arch}.attention.value_length",
            visible(repr(value_length)),
            f"{head_dim}, as keys have",
            REMEDY,
        )
    fields: dict[str, Any] = {} if head_dim is None else {"head_dim": head_dim}
    if isinstance(rotated, int) and isinstance(head_dim, int) and 0 < rotated < head_dim:
        fields["partial_rotary_factor"] = rotated / head_dim
    elif rotated is not None and rotated != head_dim:
        needed = f"at most the {visible(repr(head_dim))} numbers of a head"
        raise fault(f"GGUF metadata, {arch}.rope.dimension_count", visible(repr(rotated)), needed, REMEDY)
    return fields


def _rope_from_gguf(value: Any, arch: str) -> dict[str, Any]:
    """Return the RoPE fields of a GGUF file beyond the table; its defaults are not those of Hugging Face."""
    rope: dict[str, Any] = {"rope_theta": 10000.0} if value("rope.freq_base") is None else {}
    kind = value("rope.scaling.type")
    factor = value("rope.scaling.attn_factor")
    if kind != "longrope" and factor not in (None, 1):
        raise fault(f"GGUF metadata, {arch}.rope.scaling.attn_factor", visible(repr(factor)), "1, or longrope", REMEDY)
    names = {
        "factor": "factor", "original_max_position_embeddings": "original_context_length", "beta_fast": "yarn_beta_fast",
        "beta_slow": "yarn_beta_slow", "attention_factor": "yarn_attn_factor",
    }  # fmt: skip
    if kind in ("linear", "yarn", "longrope"):
        fields = {name: value(f"rope.scaling.{key}") for name, key in names.items()}
        if kind == "longrope":
            # A file without the key means 1, as llama.cpp reads it: a converter that wants another factor writes it.
            fields["attention_factor"] = 1.0 if factor is None else factor
        rope["rope_scaling"] = {"rope_type": kind} | {
            name: _shortest(v) if isinstance(v, float) else v for name, v in fields.items() if v is not None
        }
    return rope
