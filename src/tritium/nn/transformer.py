"""The modules of a transformer: embedding, norms, RoPE, attention with a KV cache, MLPs, blocks, output head.

Knows nothing of models, files or text. A module is created from its weights and called with tensors, eagerly or while a
graph is traced; nothing here decides when to compile.

    cache = tt.nn.KVCache.empty(slots=1, heads=2, capacity=64, size=32)
    y = attention(x, angles, cache, places)     # x: [batch, tokens, hidden_size]

`places` is i32 [batch, 3]: for each sequence its slot in the KV cache, the number of tokens cached already, and the number
of new tokens that are real (the others are padding).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tritium import dtype as dt, ops
from tritium.arguments import checked_class, checked_except
from tritium.errors import ArgumentError, ShapeError, shown
from tritium.functions import asarray
from tritium.interop import read_tensor
from tritium.nn.linear import QuantLinear
from tritium.op import Op
from tritium.tensor import Tensor

ACTIVATIONS: dict[str, Op] = {"relu2": ops.relu2, "silu": ops.silu, "relu": ops.relu, "gelu": ops.gelu}
SCALINGS: dict[str, tuple[str, ...]] = {  # kinds of RoPE scaling, and the fields each needs
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "factors": ("factors",),
}
MOST_SIZE = 1 << 20  # of a head


@checked_class
class Embedding:
    """Token embeddings: the row of a table for each token, in f32."""

    __slots__ = ("weight",)

    def __init__(self, weight: Tensor) -> None:
        if weight.ndim != 2:
            raise ShapeError(f"Embedding: a table [vocab_size, hidden_size] is needed, given {weight.spec}.")
        self.weight = weight

    def __call__(self, ids: Tensor) -> Tensor:
        return ops.take(self.weight, ids, axis=0).to(dt.f32)

    def to(self, device: Any) -> Embedding:
        """Return the same module on another device."""
        return Embedding(self.weight.to(device=device))


@checked_class
class RMSNorm:
    """x / sqrt(mean(x²) + eps), times a weight for each column."""

    __slots__ = ("eps", "weight")

    def __init__(self, weight: Any, eps: float = 1e-5) -> None:
        self.weight = read_tensor(weight, "RMSNorm").to(dt.f32)
        self.eps = eps
        if self.weight.ndim != 1:
            raise ShapeError(f"RMSNorm: one weight for each column is needed, given {self.weight.spec}.")

    def __call__(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, eps=self.eps)

    def to(self, device: Any) -> RMSNorm:
        """Return the same module on another device."""
        return RMSNorm(self.weight.to(device=device), self.eps)


class Angles(NamedTuple):
    """Rotation angles of each pair of a head at each position: cosine and sine, f32 [batch, tokens, D / 2]."""

    cos: Tensor
    sin: Tensor


@checked_class
class RoPE:
    """Rotary position embeddings: pair i of a head of size D is rotated by position / theta^(2i / D).

    Pairs are (i, i + D/2), as Hugging Face and `bitnet` files have them, or (2i, 2i + 1) with interleaved=True, as `llama`
    files do; rows of Q and K are permuted between the two. `scaling` is that of a configuration: {"rope_type": "linear",
    "factor": …}, {"rope_type": "llama3", …} or {"rope_type": "factors", "factors": [one for each pair]}.
    """

    __slots__ = ("frequencies", "interleaved")

    @checked_except("theta")
    def __init__(
        self, size: int, theta: float = 10000.0, *, interleaved: bool = False, scaling: Mapping[str, Any] | None = None
    ) -> None:
        if (
            not 2 <= size <= MOST_SIZE
            or size % 2
            or not isinstance(theta, (int, float, np.integer, np.floating))
            or not theta > 0
        ):
            raise ArgumentError(
                f"RoPE: an even size and a positive theta are needed, given {shown(size)} and {shown(theta)}."
            )
        frequencies = np.float64(theta) ** -(np.arange(0, size, 2) / size)
        self.frequencies = asarray(scaled(frequencies, scaling or {}).astype(np.float32))
        self.interleaved = interleaved

    def angles(self, positions: Tensor) -> Angles:
        """Return the angles of positions [batch, tokens]; they are the same for every layer.

        The product is f32, as in training; its cosine and sine are taken in f64 and rounded, so that they are the same on
        every device that has f64."""
        angles = ops.expand_dims(positions.to(dt.f32), -1) * self.frequencies
        if self.frequencies.device.backend.has_f64:
            angles = angles.to(dt.f64)
        return Angles(ops.cos(angles).to(dt.f32), ops.sin(angles).to(dt.f32))

    def __call__(self, x: Tensor, angles: Angles, heads: int | None = None) -> Tensor:
        """Rotate x [batch, tokens, heads, D]; with `heads`, only the first `heads` of them."""
        return ops.rope(x, angles.cos, angles.sin, interleaved=self.interleaved, heads=heads)

    def to(self, device: Any) -> RoPE:
        """Return the same module on another device."""
        moved = RoPE.__new__(RoPE)
        moved.frequencies, moved.interleaved = self.frequencies.to(device=device), self.interleaved
        return moved


def scaled(frequencies: np.ndarray[Any, Any], scaling: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return the RoPE frequencies scaled for longer contexts, as a configuration defines."""
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return frequencies
    if kind not in SCALINGS:
        raise ArgumentError(f"RoPE: scaling {kind!r} is unknown; known are {', '.join(SCALINGS)}.")
    if kind == "factors":  # one for each pair, as stored in GGUF
        return np.asarray(frequencies / np.asarray(scaling["factors"], np.float64))
    factor = float(scaling["factor"])
    if kind == "linear":
        return frequencies / factor
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    cycles = float(scaling["original_max_position_embeddings"]) * frequencies / (2 * np.pi)  # within the first context
    smooth = np.clip((cycles - low) / (high - low), 0, 1)
    return np.asarray((1 - smooth) * frequencies / factor + smooth * frequencies)


@checked_class
class KVCache(NamedTuple):
    """The KV cache of one layer in one tensor [slots, 2 kv heads, capacity, D], keys first: one call writes both."""

    kv: Tensor

    @property
    def k(self) -> Tensor:
        """Return the keys [slots, kv heads, capacity, D], a view."""
        return self.kv[:, : self.kv.shape[1] // 2]

    @property
    def v(self) -> Tensor:
        """Return the values, a view."""
        return self.kv[:, self.kv.shape[1] // 2 :]

    @classmethod
    def empty(
        cls, *, slots: int, heads: int, capacity: int, size: int, dtype: Any = dt.f16, device: Any = None
    ) -> KVCache:
        """Allocate a cache for `capacity` tokens in each of `slots` sequences; unwritten positions are never read."""
        return cls(ops.empty((slots, 2 * heads, capacity, size), dtype=dtype, device=device))


@checked_class
class Attention:
    """Causal grouped-query attention: one product for Q, K and V, RoPE, the KV cache, one output projection.

    qkv: [(heads + 2 kv heads) * head_dim, hidden_size], rows of Q, K and V in this order. With a sub-norm the result is normalised
    before the output projection, as in BitNet b1.58.
    """

    __slots__ = ("heads", "kv_heads", "out", "qkv", "rope", "size", "sub_norm")

    def __init__(
        self, qkv: QuantLinear, out: QuantLinear, rope: RoPE, *, heads: int, kv_heads: int, sub_norm: RMSNorm | None = None
    ) -> None:  # fmt: skip
        self.qkv, self.out, self.rope, self.sub_norm = qkv, out, rope, sub_norm
        self.heads, self.kv_heads = heads, kv_heads
        self.size = 2 * rope.frequencies.shape[0]
        rows = (heads + 2 * kv_heads) * self.size
        if qkv.out_features != rows or out.in_features != heads * self.size:
            raise ShapeError(
                f"Attention: {heads} heads and {kv_heads} kv heads of {self.size} need {rows} rows of Q, K and V and "
                f"{heads * self.size} columns of the result, given {qkv} and {out}."
            )

    def __call__(self, x: Tensor, angles: Angles, cache: KVCache, places: Tensor) -> Tensor:
        """Return the attention output of new tokens x [batch, tokens, hidden_size]; write their keys and values to the KV cache."""
        batch, tokens, _ = x.shape
        joined = self.qkv(x).reshape(batch, tokens, self.heads + 2 * self.kv_heads, self.size)
        rotated = self.rope(joined, angles, self.heads + self.kv_heads)
        ops.update_cache(cache.kv, rotated[:, :, self.heads :], places, out=cache.kv)
        y = ops.attention(rotated[:, :, : self.heads], cache.k, cache.v, places)
        y = y.reshape(batch, tokens, self.heads * self.size)
        return self.out(y if self.sub_norm is None else self.sub_norm(y))

    def to(self, device: Any) -> Attention:
        """Return the same module on another device, its weights repacked for it."""
        return Attention(
            self.qkv.to(device), self.out.to(device), self.rope.to(device), heads=self.heads, kv_heads=self.kv_heads,
            sub_norm=None if self.sub_norm is None else self.sub_norm.to(device),
        )  # fmt: skip


@checked_class
class MLP:
    """down(activation(gate(x)) * up(x)), gate and up in one product; with a sub-norm before the last, as in BitNet b1.58."""

    __slots__ = ("activation", "down", "gate_up", "sub_norm")

    def __init__(
        self, gate_up: QuantLinear, down: QuantLinear, activation: str = "relu2", sub_norm: RMSNorm | None = None
    ) -> None:
        if activation not in ACTIVATIONS:
            raise ArgumentError(
                f"MLP: the activation {activation!r} is unknown; known are {', '.join(sorted(ACTIVATIONS))}."
            )
        if gate_up.out_features != 2 * down.in_features:
            raise ShapeError(
                f"MLP: gate and up must have twice the columns of down as rows, given {gate_up} and {down}."
            )
        self.gate_up, self.down, self.activation, self.sub_norm = gate_up, down, ACTIVATIONS[activation], sub_norm

    def to(self, device: Any) -> MLP:
        """Return the same module on another device, its weights repacked for it."""
        activation = next(name for name, row in ACTIVATIONS.items() if row is self.activation)
        norm = None if self.sub_norm is None else self.sub_norm.to(device)
        return MLP(self.gate_up.to(device), self.down.to(device), activation, norm)

    def __call__(self, x: Tensor) -> Tensor:
        both, intermediate_size = self.gate_up(x), self.down.in_features
        y = self.activation(both[..., :intermediate_size]) * both[..., intermediate_size:]
        return self.down(y if self.sub_norm is None else self.sub_norm(y))


@checked_class
class Block(NamedTuple):
    """One layer of a transformer: attention and MLP, each with a pre-norm and a residual connection."""

    attention_norm: RMSNorm
    attention: Attention
    mlp_norm: RMSNorm
    mlp: MLP

    def __call__(self, x: Tensor, angles: Angles, cache: KVCache, places: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), angles, cache, places)
        return x + self.mlp(self.mlp_norm(x))

    def to(self, device: Any) -> Block:
        """Return the same module on another device."""
        return Block(*(part.to(device) for part in self))  # type: ignore[arg-type]


@checked_class
class Head:
    """The output head: the last norm and the product with a float table (of any dtype, tied to the embedding or not) or an
    int8 one with a scale for each row of the vocabulary."""

    __slots__ = ("norm", "weight")

    def __init__(self, norm: RMSNorm, weight: Tensor | QuantLinear) -> None:
        self.norm, self.weight = norm, weight

    def __call__(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return self.weight(y) if isinstance(self.weight, QuantLinear) else ops.linear(y, self.weight)

    def to(self, device: Any) -> Head:
        """Return the same module on another device."""
        return Head(self.norm.to(device), self.weight.to(device))
