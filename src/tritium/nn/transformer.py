"""The modules of a transformer: embedding, norms, RoPE, attention with a KV cache, MLPs, blocks, output head.

A module is created from its weights and called with tensors, eagerly or while a graph is traced; nothing here decides
when to compile.

    cache = tt.nn.KVCache.empty(slots=1, heads=2, capacity=64, size=32)
    y = attention(x, angles, cache, places)     # x: [batch, tokens, hidden_size]

`places` is i32 [batch, 3]: for each sequence its slot in the KV cache, the number of tokens cached already, and the number
of new tokens that are real (the others are padding).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from tritium import dtype as dt, ops
from tritium.arguments import checked_class
from tritium.errors import ArgumentError, ShapeError
from tritium.interop import read_tensor
from tritium.nn.linear import QuantLinear
from tritium.nn.rope import Angles, RoPE
from tritium.tensor import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu2": ops.relu2, "silu": ops.silu, "relu": ops.relu, "gelu": ops.gelu,
    "gelu_pytorch_tanh": partial(ops.gelu, approximate="tanh"),
}  # fmt: skip


@checked_class
class Embedding:
    """Token embeddings: the row of a table for each token, in f32, times a multiplier."""

    __slots__ = ("multiplier", "weight")

    def __init__(self, weight: Tensor, multiplier: float = 1.0) -> None:
        if weight.ndim != 2:
            raise ShapeError(f"Embedding: a table [vocab_size, hidden_size] is needed, given {weight.spec}.")
        self.weight, self.multiplier = weight, multiplier

    def __call__(self, ids: Tensor) -> Tensor:
        rows = ops.take(self.weight, ids, axis=0).to(dt.f32)
        return rows if self.multiplier == 1 else rows * self.multiplier

    def to(self, device: Any) -> Embedding:
        """Return the same module on another device."""
        return Embedding(self.weight.to(device=device), self.multiplier)


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
class QuantizedKVCache(NamedTuple):
    """The KV cache of one layer in integers of 8 or 4 bits, u8 [slots, kv heads, capacity, bytes of a head]; see
    `tt.update_quantized_cache`. Heads are rotated before they are rounded, so that no element is much larger than the others."""

    k: Tensor
    v: Tensor

    @classmethod
    def empty(
        cls, *, slots: int, heads: int, capacity: int, size: int, bits: tuple[int, int] = (8, 8), device: Any = None
    ) -> QuantizedKVCache:
        """Allocate a cache with so many bits an element of keys and of values; unwritten positions are never read."""
        if size % ops.KV_BLOCK or not size or any(b not in ops.KV_BYTES for b in bits):
            raise ArgumentError(
                f"QuantizedKVCache: 8 or 4 bits and a head_dim that is a multiple of {ops.KV_BLOCK} are needed, given {bits} and "
                f"{size}."
            )
        rows = (ops.kv_row_bytes(size, b) for b in bits)
        return cls(*(ops.empty((slots, heads, capacity, n), dtype=dt.u8, device=device) for n in rows))


@checked_class
class Parallel:
    """Projections of one input that are not one matrix, since each has a norm of its own: their results side by side."""

    __slots__ = ("parts",)

    def __init__(self, *parts: QuantLinear) -> None:
        if not parts or any(p.in_features != parts[0].in_features for p in parts):
            raise ShapeError(f"Parallel: projections of one input are needed, given {list(parts)}.")
        self.parts = parts

    @property
    def in_features(self) -> int:
        return self.parts[0].in_features

    @property
    def out_features(self) -> int:
        return sum(p.out_features for p in self.parts)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the results of all projections, joined along the last axis."""
        return ops.concat(*(p(x) for p in self.parts), axis=-1)

    def to(self, device: Any) -> Parallel:
        """Return the same module on another device."""
        return Parallel(*(p.to(device) for p in self.parts))


Linear = QuantLinear | Parallel


def _moved(module: Any, device: Any) -> Any:
    return None if module is None else module.to(device)


@checked_class
class Attention:
    """Causal grouped-query attention: one product for Q, K and V, RoPE, the KV cache, one output projection.

    qkv: [(heads + 2 kv heads) * head_dim, hidden_size], rows of Q, K and V in this order, and with `gate` those of a gate for each
    head after them: the result is multiplied by its sigmoid. With a sub-norm the result is normalised before the output
    projection, as in BitNet b1.58; q_norm and k_norm are norms of each head. rope: None where the layer has no positions;
    head_dim: where RoPE rotates only a part of a head. window: positions that a token sees, itself included.
    """

    __slots__ = (
        "gate", "heads", "k_norm", "kv_heads", "out", "q_norm", "qkv", "rope", "scale", "size", "sub_norm", "window",
    )  # fmt: skip

    def __init__(
        self, qkv: QuantLinear | Parallel, out: QuantLinear, rope: RoPE | None, *, heads: int, kv_heads: int,
        sub_norm: RMSNorm | None = None, head_dim: int | None = None, q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None, gate: bool = False, window: int | None = None, scale: float | None = None,
    ) -> None:  # fmt: skip
        if rope is None and head_dim is None:
            raise ArgumentError("Attention: without RoPE, which tells the size of a head, head_dim= is needed.")
        self.qkv, self.out, self.rope, self.sub_norm = qkv, out, rope, sub_norm
        self.q_norm, self.k_norm, self.gate, self.window, self.scale = q_norm, k_norm, gate, window, scale
        self.heads, self.kv_heads = heads, kv_heads
        self.size = head_dim if head_dim is not None else 2 * rope.frequencies.shape[0]  # type: ignore[union-attr]
        rows = (heads * (1 + gate) + 2 * kv_heads) * self.size
        if qkv.out_features != rows or out.in_features != heads * self.size:
            raise ShapeError(
                f"Attention: {heads} heads and {kv_heads} kv heads of {self.size} need {rows} rows of Q, K and V and "
                f"{heads * self.size} columns of the result, given {qkv} and {out}."
            )

    def __call__(self, x: Tensor, angles: Angles | None, cache: KVCache | QuantizedKVCache, places: Tensor) -> Tensor:
        """Return the attention output of new tokens x [batch, tokens, hidden_size]; write their keys and values to the KV cache."""
        batch, tokens, _ = x.shape
        joined = self.qkv(x).reshape(batch, tokens, -1, self.size)
        q, kv = self._positioned(joined, angles)
        limits: dict[str, Any] = {} if self.window is None else {"window": self.window}
        if isinstance(cache, QuantizedKVCache):
            y = self._attend_quantized(q, kv, cache, places, limits)
        else:
            ops.update_cache(cache.kv, kv, places, out=cache.kv)
            y = ops.attention(q, cache.k, cache.v, places, scale=self.scale, **limits)
        if self.gate:
            y = y * ops.sigmoid(joined[:, :, self.heads + 2 * self.kv_heads :])
        y = y.reshape(batch, tokens, self.heads * self.size)
        return self.out(y if self.sub_norm is None else self.sub_norm(y))

    def _attend_quantized(
        self, q: Tensor, kv: Tensor, cache: QuantizedKVCache, places: Tensor, limits: dict[str, Any]
    ) -> Tensor:
        """Return the attention over a cache of integers. The rotation keeps the products of queries and keys, and is its own inverse."""
        rotated = ops.hadamard(kv)
        ops.update_quantized_cache(cache.k, rotated[:, :, : self.kv_heads], places, out=cache.k)
        ops.update_quantized_cache(cache.v, rotated[:, :, self.kv_heads :], places, out=cache.v)
        y = ops.quantized_attention(ops.hadamard(q), cache.k, cache.v, places, scale=self.scale, **limits)
        return ops.hadamard(y)

    def _positioned(self, joined: Tensor, angles: Angles | None) -> tuple[Tensor, Tensor]:
        """Return Q, and K and V side by side: heads normalised, Q and K rotated."""
        keys, end = self.heads + self.kv_heads, self.heads + 2 * self.kv_heads
        if self.q_norm is None and self.k_norm is None:
            if self.rope is not None and angles is not None:
                joined = self.rope(joined, angles, keys)
            return joined[:, :, : self.heads], joined[:, :, self.heads : end]
        q, k = joined[:, :, : self.heads], joined[:, :, self.heads : keys]
        q = q if self.q_norm is None else self.q_norm(q)
        k = k if self.k_norm is None else self.k_norm(k)
        if self.rope is None or angles is None:
            return q, ops.concat(k, joined[:, :, keys:end], axis=2)
        if self.rope.frequencies.device.type == "cpu":  # which has no call for a whole decode step, and copies less so
            return self.rope(q, angles), ops.concat(self.rope(k, angles), joined[:, :, keys:end], axis=2)
        turned = self.rope(ops.concat(q, k, joined[:, :, keys:end], axis=2), angles, keys)
        return turned[:, :, : self.heads], turned[:, :, self.heads :]

    def to(self, device: Any) -> Attention:
        """Return the same module on another device, its weights repacked for it."""
        return Attention(
            self.qkv.to(device), self.out.to(device), _moved(self.rope, device), heads=self.heads, kv_heads=self.kv_heads,
            sub_norm=_moved(self.sub_norm, device), head_dim=self.size, q_norm=_moved(self.q_norm, device),
            k_norm=_moved(self.k_norm, device), gate=self.gate, window=self.window, scale=self.scale,
        )  # fmt: skip


@checked_class
class MLP:
    """down(activation(gate(x)) * up(x)), gate and up in one product; with a sub-norm before the last, as in BitNet b1.58.

    clamp: the input of the activation is at most this, and up(x) is within plus and minus this.
    """

    __slots__ = ("activation", "clamp", "down", "gate_up", "sub_norm")

    def __init__(
        self, gate_up: QuantLinear | Parallel, down: QuantLinear, activation: str = "relu2",
        sub_norm: RMSNorm | None = None, clamp: float | None = None,
    ) -> None:  # fmt: skip
        if activation not in ACTIVATIONS:
            raise ArgumentError(
                f"MLP: the activation {activation!r} is unknown; known are {', '.join(sorted(ACTIVATIONS))}."
            )
        if gate_up.out_features != 2 * down.in_features:
            raise ShapeError(
                f"MLP: gate and up must have twice the columns of down as rows, given {gate_up} and {down}."
            )
        if clamp is not None and not clamp > 0:
            raise ArgumentError(f"MLP: clamp must be a positive number or None, given {clamp}.")
        self.gate_up, self.down, self.activation, self.sub_norm = gate_up, down, ACTIVATIONS[activation], sub_norm
        self.clamp = clamp

    def to(self, device: Any) -> MLP:
        """Return the same module on another device, its weights repacked for it."""
        activation = next(name for name, row in ACTIVATIONS.items() if row is self.activation)
        return MLP(self.gate_up.to(device), self.down.to(device), activation, _moved(self.sub_norm, device), self.clamp)

    def __call__(self, x: Tensor) -> Tensor:
        both, intermediate_size = self.gate_up(x), self.down.in_features
        gate, up = both[..., :intermediate_size], both[..., intermediate_size:]
        if self.clamp is not None:
            gate, up = ops.minimum(gate, self.clamp), ops.clip(up, -self.clamp, self.clamp)
        y = self.activation(gate) * up
        return self.down(y if self.sub_norm is None else self.sub_norm(y))


@checked_class
class Block(NamedTuple):
    """One layer of a transformer: attention and MLP, each with a pre-norm, perhaps a post-norm, and a residual connection.

    attention: an Attention, or another mixer of tokens with a state of its own, such as a GatedDeltaNet; mlp: an MLP or a MoE.
    residual: what attention and MLP are multiplied by before they are added. rope: which of a network's position embeddings the
    layer is called with.
    """

    attention_norm: RMSNorm
    attention: Any
    mlp_norm: RMSNorm
    mlp: Any
    attention_post_norm: RMSNorm | None = None
    mlp_post_norm: RMSNorm | None = None
    residual: float = 1.0
    rope: int | None = 0

    def __call__(self, x: Tensor, angles: Angles | None, cache: Any, places: Tensor) -> Tensor:
        """Return the layer's output for new tokens x [batch, tokens, hidden_size]; cache: the KV cache or state of its mixer."""
        positions = (angles,) if isinstance(self.attention, Attention) else ()
        y = self.attention(self.attention_norm(x), *positions, cache, places)
        x = x + self._added(y, self.attention_post_norm)
        return x + self._added(self.mlp(self.mlp_norm(x)), self.mlp_post_norm)

    def _added(self, y: Tensor, norm: RMSNorm | None) -> Tensor:
        y = y if norm is None else norm(y)
        return y if self.residual == 1 else y * self.residual

    def to(self, device: Any) -> Block:
        """Return the same module on another device."""
        norms = {name: _moved(norm, device) for name, norm in self._asdict().items() if name.endswith("norm")}
        return self._replace(attention=self.attention.to(device), mlp=self.mlp.to(device), **norms)


@checked_class
class Head:
    """The output head: the last norm and the product with a float table (of any dtype, tied to the embedding or not) or an
    int8 one with a scale for each row of the vocabulary; the logits times a multiplier."""

    __slots__ = ("multiplier", "norm", "weight")

    def __init__(self, norm: RMSNorm, weight: Tensor | QuantLinear, multiplier: float = 1.0) -> None:
        self.norm, self.weight, self.multiplier = norm, weight, multiplier

    def __call__(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        logits = self.weight(y) if isinstance(self.weight, QuantLinear) else ops.linear(y, self.weight)
        return logits if self.multiplier == 1 else logits * self.multiplier

    def to(self, device: Any) -> Head:
        """Return the same module on another device."""
        return Head(self.norm.to(device), self.weight.to(device), self.multiplier)
