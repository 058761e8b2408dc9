"""A tiny configuration of each family, random weights for it on disk, and the same decoder in NumPy, float64.

The NumPy decoder reads config.json itself and is written from the formulas of transformers, of llama.cpp and of the models' own
code; it shares nothing with the package but the way activations become int8.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import tiny
from models import AUTO, largest, simple, steps
from tritium.families.config import Config
from tritium.io import Ternary, codecs, gguf
from tritium.io.model import names
from tritium.models.parts import shapes_in_files

Array = np.ndarray[Any, Any]
COMMON: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
    "vocab_size": 80, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "bos_token_id": 0,
    "eos_token_id": 1,
}  # fmt: skip
FACTORS = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONG = {
    "rope_type": "longrope", "short_factor": FACTORS[::-1], "long_factor": FACTORS, "original_max_position_embeddings": 32,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "bitnet": COMMON | {"model_type": "bitnet", "hidden_act": "relu2", "rope_theta": 5e5},
    "llama": COMMON | {"model_type": "llama", "hidden_act": "silu", "rope_theta": 1e4, "tie_word_embeddings": False},
    "qwen3": COMMON | {"model_type": "qwen3", "hidden_act": "silu", "head_dim": 32, "rope_theta": 1e6},
    "qwen3 yarn": COMMON
    | {"model_type": "qwen3", "hidden_act": "silu", "head_dim": 32, "rope_theta": 1e4, "rope_scaling": YARN},
    "qwen3 norms": COMMON
    | {"model_type": "qwen3", "hidden_act": "silu", "head_dim": 16, "rope_theta": 1e6, "projection_norms": True},
    "minicpm": COMMON
    | {"model_type": "minicpm", "hidden_act": "silu", "rope_theta": 1e4, "scale_emb": 12, "scale_depth": 1.4,
       "dim_model_base": 16, "rope_scaling": LONG},
    "gemma3": COMMON
    | {"model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "head_dim": 32, "rope_theta": 1e6,
       "rope_local_base_freq": 1e4, "sliding_window": 12, "sliding_window_pattern": 3, "num_hidden_layers": 3,
       "query_pre_attn_scalar": 24},
    "gemma3 norms": COMMON
    | {"model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "head_dim": 16, "rope_theta": 1e6,
       "rope_local_base_freq": 1e4, "sliding_window": 6, "sliding_window_pattern": 2, "query_pre_attn_scalar": 16,
       "projection_norms": True},
    "maple": COMMON
    | {"model_type": "maple", "hidden_act": "silu", "head_dim": 32, "rope_theta": 1e4, "num_hidden_layers": 4,
       "tie_word_embeddings": False, "sliding_window": 9, "partial_rotary_factor": 0.5, "nope_on_global_attention": True,
       "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True,
       "layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
    "qwen3_5": COMMON
    | {"model_type": "qwen3_5_text", "hidden_act": "silu", "head_dim": 32, "num_hidden_layers": 4, "tie_word_embeddings": False,
       "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1]},
       "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
       "linear_conv_kernel_dim": 4, "layer_types": ["linear_attention"] * 3 + ["full_attention"]},
}  # fmt: skip


@dataclass(frozen=True)
class Weights:
    """Ternary projections with their scales, and plain numbers, under Hugging Face's names."""

    config: dict[str, Any]
    ternary: dict[str, tuple[Array, np.float32]]
    plain: dict[str, Array]


def random(config: dict[str, Any], seed: int = 0, group: int = 0) -> Weights:
    """Return weights whose activations keep the size of one; with scales for groups of columns, which f16 holds."""
    rng = np.random.default_rng(seed)
    ternary, plain = {}, {}
    checked = Config.from_hf(config)
    arch = names.arch_of(config)
    for name, shape in shapes_in_files(checked):
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        if names.is_linear(name, arch):
            scale = simple((1.5 / shape[-1]) ** 0.5 * rng.uniform(0.7, 1.4))
            if group:
                scale = np.float32(np.float16(scale * rng.uniform(0.7, 1.4, (shape[0], shape[1] // group))))
            ternary[name] = (rng.integers(-1, 2, shape).astype(np.int8), scale[()])
        elif len(shape) > 1:
            plain[name] = simple(rng.normal(size=shape) * shape[-1] ** -0.5)
        else:
            middle = 0 if names.norm_shift(name, arch) else 1
            plain[name] = simple(rng.normal(middle, 0.2, shape))
    return Weights(config, ternary, plain)


def write_folder(path: Path, w: Weights) -> Path:
    """Write a directory of Hugging Face, projections packed."""
    path.mkdir(parents=True)
    tensors: dict[str, Any] = dict(w.plain)
    for name, (t, scale) in w.ternary.items():
        tensors[name] = codecs.hf.encode(Ternary.from_values(t, scale))
        tensors[f"{name}_scale"] = np.asarray([scale], np.float32)
    config = {k: v for k, v in w.config.items() if k != "projection_norms"}
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": AUTO}))
    tiny.save(path / "model.safetensors", tensors, {"format": "pt"})
    return path


def write_gguf(path: Path, w: Weights, **more: bytes) -> Path:
    """Write a GGUF file as llama.cpp's converters do: their names, their order of rows and heads, norms with what they leave out.
    A key in `more` without bytes is left out."""
    arch = names.arch_of(w.config)
    assert arch is not None
    config = {k: v for k, v in w.config.items() if k != "rope_scaling" or v["rope_type"] != "longrope"}
    keys = {"general.architecture": gguf.string(arch.gguf)} | names.config_to_gguf(config, arch) | more
    tensors: dict[str, Array] = {}
    if config != w.config:
        scaling = w.config["rope_scaling"]
        keys |= {
            f"{arch.gguf}.rope.scaling.type": gguf.string("longrope"),
            f"{arch.gguf}.rope.scaling.original_context_length": gguf.number("u32", scaling["original_max_position_embeddings"]),
        }  # fmt: skip
        factor = long_factor(w.config["max_position_embeddings"], scaling["original_max_position_embeddings"])
        keys.setdefault(f"{arch.gguf}.rope.scaling.attn_factor", gguf.number("f32", factor))
        tensors |= {f"rope_factors_{k}.weight": np.float32(scaling[f"{k}_factor"]) for k in ("long", "short")}
    if arch.gguf == "qwen35":
        inner = w.config["linear_num_value_heads"] * w.config["linear_value_head_dim"]
        keys["qwen35.ssm.inner_size"] = gguf.number("u32", inner)
    dense = {name: to_dense(t, scale) for name, (t, scale) in w.ternary.items()}
    for name, values in (w.plain | dense).items():
        if ".mlp.experts." in name:
            stem, _, rest = name.partition(".mlp.experts.")
            stacked = f"{stem}.mlp.experts.{rest.partition('.')[2]}"
            if rest.startswith("0."):
                each = [dense[f"{stem}.mlp.experts.{e}.{rest[2:]}"] for e in range(w.config["num_experts"])]
                tensors[str(names.to_gguf(stacked, arch))] = np.stack(each)
            continue
        grouped = "out_proj" in name and "prism.hadamard.gdn_v_grouped" in more
        tensors[str(names.to_gguf(name, arch))] = values if grouped else _as_gguf(name, values, w.config, arch)
    kept = {key: value for key, value in keys.items() if value}
    with path.open("wb") as file:
        gguf.write(file, kept, [tiny.piece(n, np.float32(a)) for n, a in tensors.items()])
    return path


def to_dense(t: Array, scale: Any) -> Array:
    """Return the numbers of a ternary matrix."""
    wide = np.repeat(scale, t.shape[1] // scale.shape[1], axis=1) if np.ndim(scale) else scale
    return t.astype(np.float32) * wide


def _as_gguf(name: str, values: Array, c: dict[str, Any], arch: names.Arch) -> Array:
    """Return the numbers of a tensor as GGUF has them."""
    if arch.interleaved and name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = c["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        return values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
    if name.endswith("norm.weight") and c["model_type"].startswith(("gemma3", "qwen3_5")):
        return values + np.float32("linear_attn" not in name and not c.get("projection_norms"))
    if "linear_attn." not in name:
        return values
    keys, heads = c["linear_num_key_heads"], c["linear_num_value_heads"]
    first = 2 * keys * c["linear_key_head_dim"] if "qkv" in name or "conv1d" in name else 0

    def tiled(a: Array, size: int) -> Array:
        rows = a.reshape(keys, heads // keys, size, *a.shape[1:]).swapaxes(0, 1)
        return rows.reshape(a.shape)

    if name.endswith("A_log"):
        return tiled(-np.exp(values), 1)
    if name.endswith(("dt_bias", "in_proj_a.weight", "in_proj_b.weight")):
        return tiled(values, 1)
    if "out_proj" in name:
        return tiled(values.T, c["linear_value_head_dim"]).T
    values = values[:, 0] if "conv1d" in name else values
    return np.concatenate([values[:first], tiled(values[first:], c["linear_value_head_dim"])])


# ---- the decoder in NumPy


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


ACTIVATIONS = {
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "silu": lambda x: x * sigmoid(x),
    "gelu_pytorch_tanh": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}


@dataclass
class Decoder:
    """One sequence through a decoder, in float64; inputs of folded weights are rotated."""

    w: Weights
    folded: frozenset[str] = frozenset()
    signs: dict[int, Array] = field(default_factory=dict)
    hadamard: Array = field(default_factory=lambda: np.ones((1, 1)))

    def __post_init__(self) -> None:
        c = self.c = self.w.config
        self.kind = c["model_type"].removesuffix("_text")
        self.head_dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
        self.offset = 1.0 if self.kind in ("gemma3", "qwen3_5") else 0.0

    def norm(self, x: Array, name: str, offset: float | None = None) -> Array:
        weight = self.w.plain[f"{name}.weight"].astype(np.float64) + (self.offset if offset is None else offset)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.c["rms_norm_eps"]) * weight

    def linear(self, x: Array, name: str) -> Array:
        x = self.rotation(x, f"{name}.weight")
        if f"{name}.norm.weight" in self.w.plain:
            x = self.norm(x, f"{name}.norm", 0.0)
        if f"{name}.weight" not in self.w.ternary:
            return x @ self.w.plain[f"{name}.weight"].astype(np.float64).T
        t, scale = self.w.ternary[f"{name}.weight"]
        if np.ndim(scale):  # by groups of columns, of the activations too
            parts = zip(np.split(x, scale.shape[1], axis=-1), np.split(t, scale.shape[1], axis=1), scale.T, strict=True)
            return sum(steps(a) @ b.T.astype(np.float64) * g / (127 / largest(a)) for a, b, g in parts)
        return steps(x) @ t.T.astype(np.float64) * float(scale) / (127 / largest(x))

    def rotation(self, x: Array, name: str) -> Array:
        """Return H (s * x) of the input of a folded weight."""
        if name not in self.folded:
            return x
        signs = self.signs[x.shape[-1]]
        blocks = (x * signs).reshape(*x.shape[:-1], -1, len(self.hadamard))
        return (blocks @ self.hadamard).reshape(x.shape)

    def logits(self, ids: Sequence[int]) -> Array:
        """Return the logits [tokens, vocab] of a whole sequence."""
        c, kind = self.c, self.kind
        x = self.w.plain["model.embed_tokens.weight"].astype(np.float64)[list(ids)]
        x = x * {"gemma3": np.sqrt(c["hidden_size"]), "minicpm": c.get("scale_emb", 1)}.get(kind, 1.0)
        depth = c["scale_depth"] / np.sqrt(c["num_hidden_layers"]) if kind == "minicpm" else 1.0
        for i in range(c["num_hidden_layers"]):
            layer = f"model.layers.{i}"
            linear = c.get("layer_types", [""] * (i + 1))[i] == "linear_attention"
            mixer = self.delta_net if linear else self.attention
            y = mixer(self.norm(x, f"{layer}.input_layernorm"), i)
            after = "post_attention_layernorm"
            if kind == "gemma3":
                y, after = self.norm(y, f"{layer}.{after}"), "pre_feedforward_layernorm"
            x = x + depth * y
            mlp = self.experts if kind == "maple" else self.mlp
            y = mlp(self.norm(x, f"{layer}.{after}"), f"{layer}.mlp")
            if kind == "gemma3":
                y = self.norm(y, f"{layer}.post_feedforward_layernorm")
            x = x + depth * y
        table = self.w.plain.get("lm_head.weight", self.w.plain["model.embed_tokens.weight"]).astype(np.float64)
        x = self.norm(x, "model.norm")
        return x @ table.T / (c["hidden_size"] / c["dim_model_base"] if kind == "minicpm" else 1.0)

    def attention(self, x: Array, i: int) -> Array:
        c, name, count = self.c, f"model.layers.{i}.self_attn", len(x)
        q, k, v = (self.linear(x, f"{name}.{p}_proj").reshape(count, -1, self.head_dim) for p in "qkv")
        gate = None
        if self.kind == "qwen3_5":
            q, gate = q[:, 0::2], q[:, 1::2]
        if self.kind in ("qwen3", "gemma3", "maple", "qwen3_5"):
            q, k = self.norm(q, f"{name}.q_norm"), self.norm(k, f"{name}.k_norm")
        window = None
        theta = c.get("rope_theta") or c["rope_parameters"]["rope_theta"]
        if self.kind == "gemma3" and (i + 1) % c["sliding_window_pattern"]:
            window, theta = c["sliding_window"], c["rope_local_base_freq"]
        if self.kind == "maple" and c["layer_types"][i] == "sliding_attention":
            window = c["sliding_window"]  # of FlashAttention's window_size=(sliding_window - 1, 0)
        if self.kind != "maple" or window:
            q, k = self.rotate(q, theta), self.rotate(k, theta)
        scale = c["query_pre_attn_scalar"] ** -0.5 if self.kind == "gemma3" else self.head_dim**-0.5
        y = attend(q, k, v, scale, window)
        y = (y if gate is None else y * sigmoid(gate)).reshape(count, -1)
        if self.kind == "bitnet":
            y = self.norm(y, f"{name}.attn_sub_norm")
        return self.linear(y, f"{name}.o_proj")

    def rotate(self, x: Array, theta: float) -> Array:
        """Rotate pairs (i, i + half); scaling by YaRN, and by LongRoPE's factors for the longest context."""
        part = {"maple": self.c.get("partial_rotary_factor"), "qwen3_5": 0.25}.get(self.kind, 1.0)
        half = int(self.head_dim * part) // 2
        frequencies = theta ** (-np.arange(half) / half)
        factor = 1.0
        scaling = self.c.get("rope_scaling") or {}
        if scaling.get("rope_type") == "yarn":
            frequencies, factor = yarn(frequencies, theta, scaling)
        if scaling.get("rope_type") == "longrope":
            original = scaling["original_max_position_embeddings"]
            frequencies = frequencies / np.array(scaling["long_factor"])
            factor = long_factor(self.c["max_position_embeddings"], original)
        angles = np.arange(len(x))[:, None] * frequencies
        a, b = x[..., :half], x[..., half : 2 * half]
        cos, sin = factor * np.cos(angles)[:, None], factor * np.sin(angles)[:, None]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], axis=-1)

    def experts(self, x: Array, name: str) -> Array:
        """Return the sum of each token's experts, their scores normalised."""
        scores = self.linear(x, f"{name}.gate")
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        out = np.zeros_like(x)
        for t, row in enumerate(scores):
            chosen = np.argsort(-row, kind="stable")[: self.c["num_experts_per_tok"]]
            for e in chosen:
                gate, up = (self.linear(x[t : t + 1], f"{name}.experts.{e}.{p}_proj") for p in ("gate", "up"))
                gate = np.minimum(gate, 7)
                y = self.linear(gate * sigmoid(gate) * np.clip(up, -7, 7), f"{name}.experts.{e}.down_proj")
                out[t] += row[e] / row[chosen].sum() * y[0]
        return out

    def delta_net(self, x: Array, i: int) -> Array:
        """Return the gated delta rule, token by token."""
        c, name, count = self.c, f"model.layers.{i}.linear_attn", len(x)
        heads, keys = c["linear_num_value_heads"], c["linear_num_key_heads"]
        size, width = c["linear_key_head_dim"], c["linear_value_head_dim"]
        mixed = self.linear(x, f"{name}.in_proj_qkv")
        taps = self.w.plain[f"{name}.conv1d.weight"].astype(np.float64)[:, 0]
        padded = np.concatenate([np.zeros((taps.shape[1] - 1, mixed.shape[1])), mixed])
        mixed = sum(padded[j : j + count] * taps[:, j] for j in range(taps.shape[1]))
        mixed = mixed * sigmoid(mixed)
        q, k, v = np.split(mixed, [keys * size, 2 * keys * size], axis=1)
        q, k = (a.reshape(count, keys, size) for a in (q, k))
        q, k = (np.repeat(a / np.sqrt((a * a).sum(-1, keepdims=True) + 1e-6), heads // keys, axis=1) for a in (q, k))
        q, v = q / np.sqrt(size), v.reshape(count, heads, width)
        beta = sigmoid(self.linear(x, f"{name}.in_proj_b"))
        rate = np.exp(self.w.plain[f"{name}.A_log"].astype(np.float64))
        decay = np.exp(-rate * np.logaddexp(self.linear(x, f"{name}.in_proj_a") + self.w.plain[f"{name}.dt_bias"], 0))
        state, y = np.zeros((heads, size, width)), np.zeros((count, heads, width))
        for t in range(count):
            state *= decay[t][:, None, None]
            delta = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
            state += k[t][:, :, None] * delta[:, None]
            y[t] = np.einsum("hkv,hk->hv", state, q[t])
        z = self.linear(x, f"{name}.in_proj_z").reshape(count, heads, width)
        y = self.norm(y, f"{name}.norm", 0.0) * z * sigmoid(z)
        return self.linear(y.reshape(count, -1), f"{name}.out_proj")

    def mlp(self, x: Array, name: str) -> Array:
        act = ACTIVATIONS[self.c.get("hidden_act") or self.c["hidden_activation"]]
        y = act(self.linear(x, f"{name}.gate_proj")) * self.linear(x, f"{name}.up_proj")
        if self.kind == "bitnet":
            y = self.norm(y, f"{name}.ffn_sub_norm")
        return self.linear(y, f"{name}.down_proj")


def long_factor(context: int, original: int) -> float:
    """Return LongRoPE's factor of cosine and sine, as its paper defines it."""
    return float(np.sqrt(1 + np.log(context / original) / np.log(original)))


def attend(q: Array, k: Array, v: Array, scale: float, window: int | None) -> Array:
    """Return causal attention, of q [tokens, heads, size] to k and v [tokens, kv heads, size]."""
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(a, group, axis=1) for a in (k, v))
    scores = np.einsum("thd,shd->hts", q, k) * scale
    distance = np.arange(len(q))[:, None] - np.arange(len(q))
    scores = np.where((distance >= 0) & (distance < (window or len(q))), scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hts,shd->thd", e / e.sum(-1, keepdims=True), v)


def yarn(frequencies: Array, theta: float, scaling: dict[str, Any]) -> tuple[Array, float]:
    """Return YaRN's frequencies and its factor of cosine and sine, as its paper defines them."""
    dims = 2 * len(frequencies)

    def pair(turns: float) -> float:
        return dims * np.log(scaling["original_max_position_embeddings"] / (turns * 2 * np.pi)) / (2 * np.log(theta))

    low, high = max(np.floor(pair(32)), 0), min(np.ceil(pair(1)), dims - 1)
    ramp = np.clip((np.arange(len(frequencies)) - low) / max(high - low, 0.001), 0, 1)
    return frequencies / scaling["factor"] * ramp + frequencies * (1 - ramp), 0.1 * np.log(scaling["factor"]) + 1
