"""Small random decoders on disk in every format, and the same decoder in NumPy, written from the published formulas.

The NumPy decoder shares no code with the package: it is what the package is held against where torch is not there.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import tiny
import tritium as tt
from tritium.io import Ternary, codecs
from tritium.models.load import Model
from tritium.nn.transformer import KVCache

Array = np.ndarray[Any, Any]

AUTO = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}
ONLINE = AUTO | {"quantization_mode": "online"}
DIVIDED = {"quant_method": "bitnet", "linear_class": "bitlinear"}


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder."""

    family: str = "bitnet"
    width: int = 64
    inner: int = 96
    heads: int = 4
    kv_heads: int = 2
    layers: int = 2
    vocab: int = 80
    context: int = 96
    theta: float = 500000.0
    eps: float = 1e-5
    tied: bool = True
    activation: str = ""
    more: dict[str, Any] = field(default_factory=dict)  # further fields of config.json

    @property
    def size(self) -> int:
        return self.width // self.heads

    @property
    def act(self) -> str:
        return self.activation or {"bitnet": "relu2", "llama": "silu"}[self.family]

    def config(self, **more: Any) -> dict[str, Any]:
        """config.json."""
        made = {
            "model_type": self.family,
            "architectures": [{"bitnet": "BitNetForCausalLM", "llama": "LlamaForCausalLM"}[self.family]],
            "hidden_act": self.act, "hidden_size": self.width, "intermediate_size": self.inner,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "num_hidden_layers": self.layers,
            "vocab_size": self.vocab, "max_position_embeddings": self.context, "rms_norm_eps": self.eps,
            "rope_theta": self.theta, "tie_word_embeddings": self.tied, "bos_token_id": 0, "eos_token_id": 1,
        }  # fmt: skip
        return made | self.more | more

    def projections(self) -> dict[str, tuple[int, int]]:
        w, kv = self.width, self.kv_heads * self.size
        return {
            "self_attn.q_proj": (w, w), "self_attn.k_proj": (kv, w), "self_attn.v_proj": (kv, w), "self_attn.o_proj": (w, w),
            "mlp.gate_proj": (self.inner, w), "mlp.up_proj": (self.inner, w), "mlp.down_proj": (w, self.inner),
        }  # fmt: skip

    def norms(self) -> dict[str, int]:
        plain = {"input_layernorm": self.width, "post_attention_layernorm": self.width}
        inside = {"self_attn.attn_sub_norm": self.width, "mlp.ffn_sub_norm": self.inner}
        return plain | (inside if self.family == "bitnet" else {})


TINY = Shape(width=32, inner=48, vocab=48, context=48)
EVERY_FORMAT = Shape(width=256, inner=512, vocab=96, context=128)  # rows of 256 suit the blocks of all formats


@dataclass(frozen=True)
class Weights:
    """Ternary projections with their scales, and plain numbers; bf16 and fp16 hold all of them exactly."""

    shape: Shape
    ternary: dict[str, tuple[Array, np.float32]]
    plain: dict[str, Array]


def simple(x: Any) -> Array:
    """float32 that bf16 and fp16 both hold."""
    x = np.asarray(x, np.float32)
    return np.where(np.abs(x) < 2.0**-14, 0, x).astype(ml_dtypes.bfloat16).astype(np.float32)


def random(shape: Shape, seed: int = 0) -> Weights:
    """Weights whose activations keep the size of one, and a vocabulary that tells tokens apart."""
    rng = np.random.default_rng(seed)
    ternary, plain = {}, {}
    plain["model.embed_tokens.weight"] = simple(rng.normal(size=(shape.vocab, shape.width)) * shape.width**-0.5)
    if not shape.tied:
        plain["lm_head.weight"] = simple(rng.normal(size=(shape.vocab, shape.width)) * shape.width**-0.5)
    plain["model.norm.weight"] = simple(rng.normal(1, 0.2, shape.width))
    for i in range(shape.layers):
        for name, (n, k) in shape.projections().items():
            scale = simple((1.5 / k) ** 0.5 * rng.uniform(0.7, 1.4))
            ternary[f"model.layers.{i}.{name}.weight"] = (rng.integers(-1, 2, (n, k)).astype(np.int8), scale[()])
        for name, size in shape.norms().items():
            plain[f"model.layers.{i}.{name}.weight"] = simple(rng.normal(1, 0.2, size))
    return Weights(shape, ternary, plain)


# ---- on disk


def folder(
    path: Path, w: Weights, *, quantization: dict[str, Any] = AUTO, dtype: Any = np.float32, **config: Any
) -> Path:
    """A directory of Hugging Face: packed, with scales that multiply (AUTO) or divide (DIVIDED)."""
    tensors: dict[str, Any] = {name: a.astype(dtype) for name, a in w.plain.items()}
    for name, (t, scale) in w.ternary.items():
        tensors[name] = codecs.hf.encode(Ternary.from_values(t, scale))
        stored = np.float32(1) / scale if quantization is DIVIDED else scale
        tensors[f"{name}_scale"] = np.asarray([stored], np.float32 if quantization is DIVIDED else dtype)
    return written(path, tensors, w.shape.config(quantization_config=quantization, **config))


def masters(path: Path, shape: Shape, seed: int = 0, dtype: Any = ml_dtypes.bfloat16) -> tuple[Path, Weights]:
    """A directory whose projections are floats that are made ternary when they are used; and what they become by the
    formula of the paper."""
    w, rng = random(shape, seed), np.random.default_rng(seed + 1000)
    tensors: dict[str, Any] = {name: a.astype(dtype) for name, a in w.plain.items()}
    ternary = {}
    for name, (t, scale) in w.ternary.items():
        tensors[name] = (rng.normal(size=t.shape) * scale).astype(dtype)
        wide = tensors[name].astype(np.float64)
        mean = max(np.abs(wide).mean(), 1e-5)
        ternary[name] = (np.clip(np.rint(wide / mean), -1, 1).astype(np.int8), np.float32(mean))
    return written(path, tensors, shape.config(quantization_config=ONLINE)), replace(w, ternary=ternary)


def written(path: Path, tensors: dict[str, Any], config: dict[str, Any]) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    tiny.save(path / "model.safetensors", tensors, {"format": "pt"})
    return path


# ---- the decoder in NumPy


@dataclass(frozen=True)
class Inputs:
    """What went into the projections of one token sequence, in order: for each layer QKV, O, gate and up, down."""

    all: list[Array] = field(default_factory=list)


def largest(x: Array) -> Array:
    return np.maximum(np.abs(x).max(axis=-1, keepdims=True), x.dtype.type(1e-5))


def steps(x: Array) -> Array:
    """The int8 numbers of each token, as floats."""
    return np.clip(np.rint(x * (x.dtype.type(127) / largest(x))), -128, 127)


def from_tie(x: Array) -> Array:
    """How far each number is from the middle of two int8 steps, in steps."""
    x = x.astype(np.float64)
    scaled = x * (127 / largest(x))
    return np.abs(scaled - np.floor(scaled) - 0.5)


def decode(w: Weights, ids: Sequence[int], inputs: Inputs | None = None, dtype: Any = np.float64) -> Array:
    """Logits [tokens, vocab] of a whole sequence."""
    s, count = w.shape, len(ids)
    x = w.plain["model.embed_tokens.weight"].astype(dtype)[list(ids)]

    def norm(x: Array, name: str) -> Array:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + dtype(s.eps)) * w.plain[f"{name}.weight"].astype(dtype)

    def linear(x: Array, name: str) -> Array:
        t, scale = w.ternary[f"{name}.weight"]
        return steps(x) @ t.T.astype(dtype) * dtype(scale) / (127 / largest(x))

    def see(x: Array) -> Array:
        if inputs is not None:
            inputs.all.append(x)
        return x

    act: dict[str, Callable[[Array], Array]] = {
        "relu2": lambda x: np.maximum(x, 0) ** 2,
        "silu": lambda x: x / (1 + np.exp(-x)),
    }
    turns = np.arange(count)[:, None] * s.theta ** (-np.arange(0, s.size, 2) / s.size)
    for i in range(s.layers):
        at = f"model.layers.{i}"
        n = see(norm(x, f"{at}.input_layernorm"))
        q, k, v = (linear(n, f"{at}.self_attn.{p}_proj").reshape(count, -1, s.size) for p in "qkv")
        y = see(_attention(turned(q, turns), turned(k, turns), v).reshape(count, -1))
        if s.family == "bitnet":
            y = norm(y, f"{at}.self_attn.attn_sub_norm")
            if inputs is not None:
                inputs.all[-1] = y
        x = x + linear(y, f"{at}.self_attn.o_proj")
        n = see(norm(x, f"{at}.post_attention_layernorm"))
        y = act[s.act](linear(n, f"{at}.mlp.gate_proj")) * linear(n, f"{at}.mlp.up_proj")
        y = see(norm(y, f"{at}.mlp.ffn_sub_norm") if s.family == "bitnet" else y)
        x = x + linear(y, f"{at}.mlp.down_proj")
    out = w.plain["model.embed_tokens.weight" if s.tied else "lm_head.weight"].astype(dtype)
    return norm(x, "model.norm") @ out.T


def turned(x: Array, turns: Array) -> Array:
    """Pairs (i, i + half) of each head turned by angles [tokens, half]."""
    a, b = np.split(x, 2, axis=-1)
    cos, sin = np.cos(turns)[:, None], np.sin(turns)[:, None]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _attention(q: Array, k: Array, v: Array) -> Array:
    """q [tokens, heads, size], k and v [tokens, kv heads, size]."""
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(a, group, axis=1) for a in (k, v))
    scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(np.tri(len(q), dtype=bool), scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hts,shd->thd", e / e.sum(-1, keepdims=True), v)


# ---- our parts, led by the inputs of another


@dataclass
class Lead:
    """Gives each of our projections the input that another decoder gave to its own, and keeps how far ours was from it."""

    inputs: list[Array]
    steps: Callable[[Array], Array] = steps  # of the other decoder
    follow: bool = True  # False: only look on, and let our projections have our own inputs
    apart: float = 0.0  # largest distance of two inputs, as a part of the largest number of the token
    flips: int = 0  # numbers that fell to another int8 step
    first: int = 1 << 30  # the first token with such a number: all before it must agree to rounding
    from_tie: float = 0.0  # how far from the middle of two steps the farthest of them was, in steps
    numbers: int = 0

    def __call__(self, ours: Array) -> Array:
        x = self.inputs.pop(0)
        mine = ours.reshape(x.shape)
        self.apart = max(self.apart, float((np.abs(mine - x) / largest(x)).max()))
        found = self.steps(x)
        fell = steps(mine) != found
        self.flips += int(fell.sum())
        self.numbers += fell.size
        self.first = min(self.first, *np.nonzero(fell.any(-1))[0].tolist(), 1 << 30)
        self.from_tie = max(self.from_tie, *from_tie(x)[fell], 0.0)
        return (found * (largest(x) / 127)).astype(np.float32).reshape(ours.shape) if self.follow else ours


@dataclass(frozen=True)
class _Led:
    layer: Any
    lead: Lead

    def __call__(self, x: tt.Tensor) -> tt.Tensor:
        return self.layer(tt.tensor(self.lead(x.numpy())))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.layer, name)


def led(model: Model, ids: Sequence[int], lead: Lead) -> Array:
    """Logits [tokens, vocab] of our parts, called one after the other, each projection led."""
    network, config = model.network, model.config
    x = network.embedding(tt.tensor(np.asarray([ids], np.int32)))
    places = tt.tensor(np.asarray([[0, 0, len(ids)]], np.int32))
    angles = network.rope.angles(tt.tensor(np.arange(len(ids), dtype=np.int32)[None]))
    for block in network.blocks:
        attention, mlp = copy.copy(block.attention), copy.copy(block.mlp)
        attention.qkv, attention.out = _Led(attention.qkv, lead), _Led(attention.out, lead)  # type: ignore[assignment]
        mlp.gate_up, mlp.down = _Led(mlp.gate_up, lead), _Led(mlp.down, lead)  # type: ignore[assignment]
        cache = KVCache.empty(slots=1, heads=config.kv_heads, capacity=len(ids), size=config.head_dim, dtype="f32")
        x = block._replace(attention=attention, mlp=mlp)(x, angles, cache, places)
    return network.head(x).numpy()[0]


# ---- tokens


def greedy(model: Model, prompt: Sequence[int], count: int) -> tuple[list[int], Array]:
    """The most probable token, `count` times, and the logits [count, vocab] each was taken from."""
    session = model.session(context=len(prompt) + count)
    rows = [session.extend(0, prompt)]
    for _ in range(count - 1):
        rows.append(session.step([0], [int(rows[-1].argmax())])[0])
    return [int(r.argmax()) for r in rows], np.stack(rows)


def prompt(shape: Shape, count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, shape.vocab, count).tolist()
