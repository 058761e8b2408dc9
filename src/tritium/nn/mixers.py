"""Modules of hybrid and sparse transformers: linear attention by the gated delta rule, mixtures of experts, rotated layers.

As in `transformer`, a module is created from its weights and called with tensors, eagerly or while a graph is traced.

    states = tt.nn.DeltaState.empty(slots=1, net=net)
    y = net(x, states, places)     # x: [batch, tokens, hidden_size]

`places` is i32 [batch, 3]: for each sequence its slot, the number of tokens that came before, and the number of new tokens that are
real (the others are padding).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from tritium import dtype as dt, ops, quant
from tritium.arguments import checked, checked_class
from tritium.errors import ArgumentError, DTypeError, ShapeError, shown
from tritium.interop import read_tensor
from tritium.nn.linear import ACTIVATIONS as INPUTS, QuantLinear
from tritium.nn.transformer import ACTIVATIONS, MLP, RMSNorm
from tritium.quant import Quantized
from tritium.tensor import Tensor

Projection = QuantLinear | Tensor  # a layer, or float weights [out, in]
L2_EPS = 1e-6  # added to the squares of a query or key


@checked
def project(layer: Projection, x: Tensor) -> Tensor:
    """Return x times the weights of a layer, quantised or float."""
    return layer(x) if isinstance(layer, QuantLinear) else ops.linear(x, layer)


def _rows(layer: Projection) -> int:
    return layer.out_features if isinstance(layer, QuantLinear) else layer.shape[0]


def _columns(layer: Projection) -> int:
    return layer.in_features if isinstance(layer, QuantLinear) else layer.shape[1]


def _moved(layer: Projection, device: Any) -> Projection:
    return layer.to(device) if isinstance(layer, QuantLinear) else layer.to(device=device)


def _vector(values: Any, size: int, what: str) -> Tensor:
    t = read_tensor(values, what).to(dt.f32)
    if t.shape != (size,):
        raise ShapeError(f"{what} must have shape [{size}], given {t.spec}.")
    return t


# ---- linear attention


@checked_class
class DeltaState(NamedTuple):
    """The state of one GatedDeltaNet: the last inputs of its convolution [slots, K - 1, channels] and the memory of its heads
    [slots, heads, Dk, Dv], both f32. A sequence without tokens before needs no clearing: its old state is not read."""

    conv: Tensor
    memory: Tensor

    @classmethod
    def empty(cls, *, slots: int, net: GatedDeltaNet, device: Any = None) -> DeltaState:
        """Allocate the states of `slots` sequences for a net."""
        taps, channels = net.conv.shape
        shape = (slots, net.heads, net.key_size, net.value_size)
        return cls(ops.full((slots, taps - 1, channels), 0.0, device=device), ops.full(shape, 0.0, device=device))


@checked_class
class GatedDeltaNet:
    """Linear attention by the gated delta rule, as in Qwen3-Next and Qwen3.5: in place of a KV cache a state of fixed size.

    qkv: rows of Q, K (key_heads * key_size each) and V (heads * value_size); z: the output gate, as many rows as V; b and a: a row for
    each head, the strength of a correction and its decay. conv: [channels, K], the short causal convolution of Q, K and V. For each head
    decay = exp(-exp(a_log) * softplus(a + dt_bias)) and beta = sigmoid(b); queries and keys have length 1; the result of a head is
    normalised, gated by silu(z) and projected by `out`. Key head h serves heads / key_heads heads in a row.
    """

    __slots__ = ("a", "a_log", "b", "conv", "decay_rate", "dt_bias", "heads", "key_heads", "key_scale", "key_size", "norm", "out",
                 "qkv", "query_scale", "value_size", "z")  # fmt: skip

    def __init__(
        self, qkv: Any, z: Any, b: Any, a: Any, conv: Any, a_log: Any, dt_bias: Any, norm: RMSNorm, out: Any, *, heads: int,
        key_heads: int,
    ) -> None:  # fmt: skip
        self.qkv, self.z, self.b, self.a, self.norm, self.out = qkv, z, b, a, norm, out
        self.heads, self.key_heads = heads, key_heads
        self.value_size = norm.weight.shape[0]
        key_rows = _rows(qkv) - heads * self.value_size
        if min(heads, key_heads) < 1 or heads % key_heads or key_rows <= 0 or key_rows % (2 * key_heads):
            raise ShapeError(
                f"GatedDeltaNet: {heads} heads of {self.value_size} and {key_heads} key heads need rows of V and twice as many for each "
                f"key head, and heads a multiple of key heads; given {_rows(qkv)} rows of Q, K and V."
            )
        self.key_size = key_rows // (2 * key_heads)
        rows = {"z": heads * self.value_size, "b": heads, "a": heads}
        wrong = [f"{name} with {n} rows" for name, n in rows.items() if _rows(getattr(self, name)) != n]
        if wrong or _columns(out) != heads * self.value_size:
            needed = ", ".join(wrong or [f"out with {heads * self.value_size} columns"])
            raise ShapeError(f"GatedDeltaNet: {heads} heads of {self.value_size} need {needed}.")
        taps = read_tensor(conv, "GatedDeltaNet: conv").to(dt.f32)
        if taps.ndim != 2 or taps.shape[0] != _rows(qkv) or not taps.shape[1]:
            raise ShapeError(f"GatedDeltaNet: conv must be [{_rows(qkv)}, taps], given {taps.spec}.")
        self.conv = taps.T.contiguous()  # [K, channels]: as the convolution reads it
        self.a_log = _vector(a_log, heads, "GatedDeltaNet: a_log")
        self.dt_bias = _vector(dt_bias, heads, "GatedDeltaNet: dt_bias")
        self._prepare()

    def _prepare(self) -> None:
        """Compute what the weights alone decide."""
        self.decay_rate = -ops.exp(self.a_log)
        size, device = self.key_size, self.conv.device
        # x / sqrt(sum(x²) + eps) is an RMS norm over size elements, times 1 / sqrt(size); queries are divided by sqrt(size) again.
        self.key_scale = ops.full((size,), 1 / math.sqrt(size), dt.f32, device=device)
        self.query_scale = ops.full((size,), 1 / size, dt.f32, device=device)

    def __call__(self, x: Tensor, states: DeltaState, places: Tensor) -> Tensor:
        """Return the output for new tokens x [batch, tokens, hidden_size]; write the states of their sequences."""
        batch, tokens, _ = x.shape
        _, mixed = ops.causal_conv1d(states.conv, project(self.qkv, x), self.conv, places, out=(states.conv, None))
        mixed = ops.silu(mixed)
        keys = self.key_heads * self.key_size
        q, k = (
            mixed[..., i * keys : (i + 1) * keys].reshape(batch, tokens, self.key_heads, self.key_size) for i in (0, 1)
        )
        v = mixed[..., 2 * keys :].reshape(batch, tokens, self.heads, self.value_size)
        eps = L2_EPS / self.key_size
        q, k = ops.rms_norm(q, self.query_scale, eps=eps), ops.rms_norm(k, self.key_scale, eps=eps)
        decay = ops.exp(self.decay_rate * ops.logaddexp(project(self.a, x).to(dt.f32) + self.dt_bias, 0.0))  # softplus
        beta = ops.sigmoid(project(self.b, x).to(dt.f32))
        _, y = ops.gated_delta_rule(states.memory, q, k, v, decay, beta, places, out=(states.memory, None))
        gate = project(self.z, x).reshape(batch, tokens, self.heads, self.value_size)
        y = self.norm(y) * ops.silu(gate.to(dt.f32))
        return project(self.out, y.reshape(batch, tokens, self.heads * self.value_size))

    def to(self, device: Any) -> GatedDeltaNet:
        """Return the same module on another device, its weights repacked for it."""
        moved = GatedDeltaNet.__new__(GatedDeltaNet)
        for name in ("qkv", "z", "b", "a", "out"):
            setattr(moved, name, _moved(getattr(self, name), device))
        for name in ("conv", "a_log", "dt_bias"):
            setattr(moved, name, getattr(self, name).to(device=device))
        for name in ("heads", "key_heads", "key_size", "value_size"):
            setattr(moved, name, getattr(self, name))
        moved.norm = self.norm.to(device)
        moved._prepare()
        return moved


# ---- mixtures of experts

GATES = ("softmax", "sigmoid", "softmax_of_chosen")


@checked_class
class Experts:
    """Quantised weights of all experts [E, N, K] as one tensor, tiled for its device; called with tokens and the experts they chose.

    activations: 'token', 'group' or 'float', as of `QuantLinear`, whose products these are: each expert's results have the bits of
    a `QuantLinear` with its weights. Scales are f32, or f16 where they are given so.
    """

    __slots__ = ("_activations", "_group", "data", "scale")

    def __init__(self, data: Tensor, scale: Tensor, group: int = 0, *, activations: str = "token") -> None:
        if data.ndim != 3 or data.dtype not in ops.WEIGHTS:
            raise DTypeError(f"Experts: packed or i8 weights [experts, N, K] are needed, given {data.spec}.")
        kind = data.device.backend.tiling(data.dtype)
        fits = group % kind.block == 0
        self.data = ops.repack(data, kind) if fits and kind is not data.dtype else data
        self.scale, self._group = scale if scale.dtype is dt.f16 else scale.to(dt.f32), group
        ops.check_activations(activations, group, "Experts")
        self._activations = activations
        pairs = ops.full((1, 1), 0, dt.i32, device=data.device)
        self(ops.full((1, data.shape[2]), 0.0, device=data.device), pairs)  # checks

    @classmethod
    def from_matrices(cls, matrices: list[Quantized], *, activations: str = "token") -> Experts:
        """Join one quantised matrix for each expert: the same shape, dtype and kind of scale."""
        if not matrices:
            raise ArgumentError("Experts: at least one matrix is needed, none was given.")
        plain = [m.plain() for m in matrices]
        first = plain[0]
        for m in plain:
            if m.scale is None or first.scale is None or m.zero is not None:
                raise ArgumentError(
                    f"Experts: scheme {m.scheme!r} has no integer product; use ternary, symmetric int8 or int4."
                )
            same = (m.data.spec, m.scale.spec, m.group) == (first.data.spec, first.scale.spec, first.group)
            if not same:
                raise ShapeError(f"Experts: all matrices must be alike, given {first.data.spec} and {m.data.spec}.")
        integers = ops.stack([ops.repack(m.data, dt.i8) for m in plain])
        scales = ops.stack([m.scale for m in plain])
        return cls(ops.repack(integers, first.data.dtype), scales, first.group, activations=activations)

    @classmethod
    def from_float(
        cls, w: Any, *, axis: int | None = None, group: int = 0, scale_dtype: Any = dt.f32, activations: str = "token"
    ) -> Experts:
        """Quantise float weights [experts, N, K] to -1, 0 and 1, each expert by itself; see `quant.ternary` for axis, group and
        scale_dtype."""
        weights = read_tensor(w, "Experts")
        if weights.ndim != 3:
            raise ShapeError(f"Experts: weights [experts, N, K] are needed, given {weights.spec}.")
        matrices = [
            quant.ternary(weights[e], axis=axis, group=group, scale_dtype=scale_dtype) for e in range(weights.shape[0])
        ]
        return cls.from_matrices(matrices, activations=activations)

    @property
    def group(self) -> int:
        """Return the columns of a row that share a scale; 0: all do."""
        return self._group

    @property
    def activations(self) -> str:
        """Return how x is multiplied: 'token', 'group' or 'float'."""
        return self._activations

    @property
    def shape(self) -> tuple[int, int, int]:
        experts, rows, columns = self.data.shape
        return experts, rows, columns

    @property
    def nbytes(self) -> int:
        """Return the bytes of weights and scales."""
        return self.data.nbytes + self.scale.nbytes

    def __call__(self, x: Tensor, experts: Tensor) -> Tensor:
        """Return x times the weights of the chosen experts; see `tt.expert_matmul`."""
        return ops.expert_matmul(x, self.data, self.scale, experts, self._group, self._activations)

    def to(self, device: Any) -> Experts:
        """Return the same weights on another device, repacked for it."""
        kind = dt.tern2 if self.data.dtype.is_ternary else dt.i8
        plain = self.data if self.data.dtype is kind else ops.repack(self.data, kind)
        return Experts(
            plain.to(device=device), self.scale.to(device=device), self._group, activations=self._activations
        )

    def __repr__(self) -> str:
        experts, rows, columns = self.shape
        how = f"activations {INPUTS[self._activations]}"
        return f"Experts({experts} of {columns} -> {rows}, {self.data.dtype}, scale {self.scale.spec}, {how}, {self.data.device})"


@checked_class
class Routing(NamedTuple):
    """The experts of each token in order of their number, i32 [..., active], and the weight of each, f32."""

    experts: Tensor
    weights: Tensor


@checked_class
class Router:
    """Chooses `active` experts for each token: scores = x times weight (float [E, hidden_size]), then a gate.

    gate: 'softmax' over all experts, 'sigmoid' of each, or 'softmax_of_chosen', the softmax of the chosen scores. normalise: divide the
    chosen weights by their sum. bias: added to the gated scores to choose, not to weigh. scale: multiplies the weights.
    """

    __slots__ = ("active", "bias", "gate", "normalise", "scale", "weight")

    def __init__(
        self, weight: Tensor, *, active: int, gate: str = "softmax", normalise: bool = True, bias: Any = None, scale: float = 1.0
    ) -> None:  # fmt: skip
        if weight.ndim != 2 or not 1 <= active <= weight.shape[0]:
            raise ShapeError(
                f"Router: weights [experts, hidden_size] and 1 to that many active experts are needed, given {weight.spec} and {active}."
            )
        if gate not in GATES:
            raise ArgumentError(f"Router: the gate {shown(gate)} is unknown; known are {', '.join(GATES)}.")
        self.weight, self.active, self.gate, self.normalise, self.scale = weight, active, gate, normalise, scale
        self.bias = None if bias is None else _vector(bias, weight.shape[0], "Router: bias")

    def __call__(self, x: Tensor) -> Routing:
        """Return the experts of each token x [..., hidden_size] and their weights; of equal scores the first expert is chosen."""
        scores = ops.linear(x, self.weight).to(dt.f32)
        if self.gate != "softmax_of_chosen":
            scores = ops.softmax(scores) if self.gate == "softmax" else ops.sigmoid(scores)
        _, chosen = ops.topk(scores if self.bias is None else scores + self.bias, self.active)
        experts = ops.sort(chosen)
        weights = ops.take_along_axis(scores, experts)
        if self.gate == "softmax_of_chosen":
            weights = ops.softmax(weights)
        if self.normalise:
            weights = weights / self._total(weights)
        return Routing(experts.to(dt.i32), weights if self.scale == 1 else weights * self.scale)

    def _total(self, weights: Tensor) -> Tensor:
        """Return the sum of the weights of a token, added in order of experts."""
        total = weights[..., :1]
        for i in range(1, self.active):
            total = total + weights[..., i : i + 1]
        return total

    def to(self, device: Any) -> Router:
        """Return the same module on another device."""
        bias = None if self.bias is None else self.bias.to(device=device)
        return Router(
            self.weight.to(device=device), active=self.active, gate=self.gate, normalise=self.normalise, bias=bias, scale=self.scale
        )  # fmt: skip


@checked_class
class MoE:
    """A mixture of experts in place of an MLP: sum over the chosen experts e of `weight * down[e](activation(gate[e](x)) * up[e](x))`.

    gate_up: [E, 2 * intermediate_size, hidden_size], rows of gate, then up; down: [E, hidden_size, intermediate_size]. Only chosen
    experts are computed; they are added in order of their number, so that a token's bits do not depend on its batch. limit: the gate
    is held to at most, up to between minus and plus this number, before they meet. shared: an MLP for every token; shared_gate:
    float weights [1, hidden_size] whose sigmoid multiplies it.
    """

    __slots__ = ("activation", "down", "gate_up", "limit", "router", "shared", "shared_gate")

    def __init__(
        self, router: Router, gate_up: Experts, down: Experts, *, activation: str = "silu", limit: float | None = None,
        shared: MLP | None = None, shared_gate: Tensor | None = None,
    ) -> None:  # fmt: skip
        if activation not in ACTIVATIONS:
            raise ArgumentError(
                f"MoE: the activation {shown(activation)} is unknown; known are {', '.join(sorted(ACTIVATIONS))}."
            )
        experts, rows, hidden = gate_up.shape
        if down.shape != (experts, hidden, rows // 2) or rows % 2 or router.weight.shape != (experts, hidden):
            raise ShapeError(
                f"MoE: gate_up [E, 2 n, h], down [E, h, n] and router weights [E, h] are needed, given {gate_up}, {down} and "
                f"{router.weight.spec}."
            )
        if limit is not None and not limit > 0:
            raise ArgumentError(f"MoE: limit must be None or above 0, given {shown(limit)}.")
        if shared_gate is not None and (shared is None or shared_gate.shape != (1, hidden)):
            raise ShapeError(
                f"MoE: shared_gate needs a shared MLP and weights [1, {hidden}], given {shared_gate.spec}."
            )
        self.router, self.gate_up, self.down, self.activation = router, gate_up, down, activation
        self.limit, self.shared, self.shared_gate = limit, shared, shared_gate

    def __call__(self, x: Tensor) -> Tensor:
        """Return the output for tokens x [..., hidden_size]."""
        experts, weights = self.router(x)
        both, size = self.gate_up(x, experts), self.down.shape[2]
        y = self.down(gated(both[..., :size], both[..., size:], self.activation, self.limit), experts)
        total = y[..., 0, :] * weights[..., :1]
        for i in range(1, self.router.active):
            total = total + y[..., i, :] * weights[..., i : i + 1]
        if self.shared is None:
            return total
        more = self.shared(x)
        return total + (more if self.shared_gate is None else ops.sigmoid(ops.linear(x, self.shared_gate)) * more)

    def to(self, device: Any) -> MoE:
        """Return the same module on another device, its weights repacked for it."""
        return MoE(
            self.router.to(device), self.gate_up.to(device), self.down.to(device), activation=self.activation, limit=self.limit,
            shared=None if self.shared is None else self.shared.to(device),
            shared_gate=None if self.shared_gate is None else self.shared_gate.to(device=device),
        )  # fmt: skip


@checked
def gated(gate: Tensor, up: Tensor, activation: str, limit: float | None = None) -> Tensor:
    """Return activation(gate) * up; with a limit, of min(gate, limit) and of up held to -limit … limit (a clamped SwiGLU)."""
    if activation not in ACTIVATIONS:
        known = ", ".join(sorted(ACTIVATIONS))
        raise ArgumentError(f"gated: the activation {shown(activation)} is unknown; known are {known}.")
    if limit is not None:
        gate, up = ops.minimum(gate, limit), ops.clip(up, -limit, limit)
    return ACTIVATIONS[activation](gate) * up
